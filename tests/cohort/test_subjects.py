"""Subjects of a BIDS dataset: what is found, chosen, and said to be missing."""

import pytest

from tumoar.cohort.plan import check_contrasts, select
from tumoar.cohort.subjects import Subject, find_subjects
from tumoar.vocabulary.errors import UsageError
from tumoar.vocabulary.notes import Note


def dataset(root, *files):
    for file in files:
        path = root / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")
    return root


def test_subjects_sessions_and_contrasts(tmp_path):
    dataset(
        tmp_path,
        "sub-01/anat/sub-01_T1w.nii.gz",
        "sub-01/anat/sub-01_ce-gadolinium_T1w.nii.gz",
        "sub-01/anat/sub-01_T1w.json",
        "sub-01/anat/sub-01_part-phase_T2w.nii.gz",
        "sub-01/anat/sub-01_FLAIR.nii",
        "sub-01/dwi/sub-01_dwi.nii.gz",
        "sub-02/ses-a/anat/sub-02_ses-a_T2w.nii.gz",
        "sub-02/ses-b/ct/sub-02_ses-b_ct.nii.gz",
        "sub-02/ses-b/anat/sub-02_ses-b_ce-gd_T1w.nii.gz",
        "derivatives/x/sub-09/anat/sub-09_T1w.nii.gz",
    )
    found = find_subjects(tmp_path)
    assert [(s.name, list(s.images)) for s in found] == [
        ("sub-01", ["T1", "T1c", "FLAIR"]),
        ("sub-02_ses-a", ["T2"]),
        ("sub-02_ses-b", ["T1c", "CT"]),
    ]
    assert found[0].images["T1c"] == str(tmp_path / "sub-01/anat/sub-01_ce-gadolinium_T1w.nii.gz")
    told = check_contrasts(found, tumor=True)
    assert [s.code for s in told] == [0, 5, 0]
    assert told[1].problem.startswith("E5-B41 these contrasts cannot")
    assert [s.code for s in check_contrasts(found, tumor=False)] == [0, 0, 0]


def test_without_t1c_the_plan_says_so(tmp_path):
    dataset(tmp_path, "sub-01/anat/sub-01_FLAIR.nii.gz")
    assert check_contrasts(find_subjects(tmp_path), tumor=True)[0].notes == (
        Note("B42", "no T1c, whole tumor only", "info"),
    )


def test_of_several_images_the_plainest_or_first_run_is_taken_and_told(tmp_path):
    dataset(
        tmp_path,
        "sub-01/anat/sub-01_run-2_FLAIR.nii.gz",
        "sub-01/anat/sub-01_run-1_FLAIR.nii.gz",
        "sub-01/anat/sub-01_acq-fast_T2w.nii.gz",
        "sub-01/anat/sub-01_T2w.nii.gz",
    )
    (found,) = find_subjects(tmp_path)
    assert found.images["FLAIR"].endswith("run-1_FLAIR.nii.gz")
    assert found.images["T2"].endswith("sub-01_T2w.nii.gz")
    assert len(found.notes) == 2
    assert "B46 FLAIR: 2 images, run-1 used" in map(str, found.notes)


def test_what_cannot_be_told_apart_is_never_guessed(tmp_path):
    dataset(
        tmp_path, "sub-01/anat/sub-01_acq-a_ce-gd_T1w.nii.gz", "sub-01/anat/sub-01_acq-b_ce-gd_T1w.nii.gz"
    )
    (found,) = find_subjects(tmp_path)
    assert found.code == 5
    assert "2 images could be the T1c | found: acq-a, acq-b | do: choose with --prefer acq-a" in found.problem
    (found,) = find_subjects(tmp_path, ["acq-b"])
    assert found.images["T1c"].endswith("acq-b_ce-gd_T1w.nii.gz")
    with pytest.raises(UsageError, match="E2-prefer"):
        find_subjects(tmp_path, ["b"])


def test_everybody_who_is_missing_something_is_listed(tmp_path):
    dataset(tmp_path, "sub-01/anat/sub-02_T1w.nii.gz", "sub-03/func/sub-03_bold.nii.gz")
    link = tmp_path / "sub-04" / "anat" / "sub-04_FLAIR.nii.gz"
    link.parent.mkdir(parents=True)
    link.symlink_to(tmp_path / "annex" / "gone")
    (tmp_path / "participants.tsv").write_text("participant_id\tage\nsub-01\t3\nsub-07\t4\nsub-07\t4\n")
    found = find_subjects(tmp_path)
    assert [(s.name, s.code) for s in found] == [("sub-01", 4), ("sub-03", 3), ("sub-04", 3), ("sub-07", 3)]
    words = ["named for another subject", "no image found", "broken link", "has no folder"]
    assert all(word in s.problem for word, s in zip(words, found))


def test_folders_that_hold_nobody_and_names_that_clash(tmp_path):
    with pytest.raises(UsageError, match="E2-B61 no subjects found"):
        find_subjects(tmp_path)
    dataset(tmp_path, "sub-a/anat/sub-a_FLAIR.nii.gz", "sub-A/anat/sub-A_FLAIR.nii.gz")
    with pytest.raises(UsageError, match="appears twice"):
        find_subjects(tmp_path)


def test_selection_by_label_session_and_number(tmp_path):
    dataset(
        tmp_path,
        *(f"sub-{n}/ses-{s}/anat/sub-{n}_ses-{s}_FLAIR.nii.gz" for n in "12" for s in "ab"),
    )
    found = find_subjects(tmp_path)
    assert [s.name for s in select(found, ["sub-2"], ["b"], None)] == ["sub-2_ses-b"]
    assert [s.name for s in select(found, [], ["a"], None)] == ["sub-1_ses-a", "sub-2_ses-a"]
    assert [s.name for s in select(found, [], [], 1)] == ["sub-1_ses-b"]
    for wrong in ((["9"], [], None), ([], ["z"], None), ([], [], 4), ([], [], -1)):
        with pytest.raises(UsageError, match="E2-B61 no su"):
            select(found, *wrong)


def test_a_session_that_nobody_has_is_refused_beside_one_that_somebody_has():
    who = [Subject("01", "1"), Subject("02", "2")]
    with pytest.raises(UsageError, match=r"E2-B61 no such session \| found: 9"):
        select(who, [], ["1", "ses-9"], None)
