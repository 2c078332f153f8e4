"""Names of files: from one function, and as BIDS wants them."""

import pytest

from tumoar.cohort.names import bids_path, case_name, label_of, tree_names


def test_labels_are_letters_and_digits():
    assert [label_of(t) for t in ("sub-01", "TCGA-02-0003", " x_1.b ")] == ["01", "TCGA020003", "x1b"]
    assert label_of("ses-pre", "session") == "pre"
    assert case_name("01") == "sub-01"
    assert case_name("01", "a") == "sub-01_ses-a"


def test_paths_have_their_entities_in_order():
    path = bids_path("sub-01_ses-a", "probseg", ".nii.gz", label="Hippocampus_L", space="T1c", seg="tumoar")
    assert path == ("sub-01/ses-a/anat/sub-01_ses-a_space-T1c_seg-tumoar_label-HippocampusL_probseg.nii.gz")
    with pytest.raises(ValueError, match="entities must be among"):
        bids_path("sub-01", "dseg", ".nii.gz", desc="x")


def test_files_of_a_result_have_their_places():
    files = [
        "segmentation.nii.gz", "segmentation.tsv", "structures/GTV.nii.gz", "probabilities/Eye_L.nii.gz",
        "native/T1c_segmentation.nii.gz", "native/other-2_segmentation.nii.gz", "report.html",
        "uncertainty.nii.gz", "samples/sample_001.nii.gz",
    ]  # fmt: skip
    names = tree_names("sub-01", files, "T1c")
    assert {source: target.removeprefix("sub-01/anat/sub-01_") for source, target in names.items()} == {
        "segmentation.nii.gz": "space-T1c_seg-tumoar_dseg.nii.gz",
        "segmentation.tsv": "space-T1c_seg-tumoar_dseg.tsv",
        "structures/GTV.nii.gz": "space-T1c_label-GTV_mask.nii.gz",
        "probabilities/Eye_L.nii.gz": "space-T1c_seg-tumoar_label-EyeL_probseg.nii.gz",
        "native/other-2_segmentation.nii.gz": "space-other2_seg-tumoar_dseg.nii.gz",
    }
