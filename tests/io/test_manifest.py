"""A result is what its manifest lists: nothing missing, nothing planted, nothing from elsewhere."""

from __future__ import annotations

import json
import shutil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tumoar.io.manifest import MANIFEST, add_files, publish_folder, read_manifest, write_manifest
from tumoar.io.manifest_schema import parse, seal
from tumoar.vocabulary.errors import IntegrityError, TumoarError, UnreadableFileError

ROW = {"outlined_cm3": 1.0, "mean_cm3": 1.0, "sd_cm3": 0.1, "p05_cm3": 0.9, "p95_cm3": 1.1}
ORGANS = ("Brainstem", "OpticChiasm")
LISTED = ("segmentation.nii.gz", "structures/Brainstem.nii.gz", "structures/OpticChiasm.nii.gz")


@pytest.fixture
def out(tmp_path):
    with publish_folder(tmp_path / "out", "the result") as work:
        (work / "structures").mkdir()
        for name in LISTED:
            (work / name).write_text(name)
        write_manifest(
            work, {"key": "k", "reference": "T1c", "volumes": [{"name": n, **ROW} for n in ORGANS]}
        )
    return tmp_path / "out"


def rewrite(out, **changes):
    """As somebody would who knows how the digest is made."""
    manifest = json.loads((out / MANIFEST).read_text())
    (out / MANIFEST).write_text(seal(manifest | changes))


@pytest.mark.parametrize("name", LISTED)
def test_a_listed_file_that_is_missing_is_refused(out, name):
    read_manifest(out)
    (out / name).unlink()
    with pytest.raises(IntegrityError, match="E12-result a file of the result is missing"):
        read_manifest(out)


def test_a_folder_in_place_of_a_file_is_refused(out):
    (out / LISTED[0]).unlink()
    (out / LISTED[0]).mkdir()
    with pytest.raises(IntegrityError, match="missing"):
        read_manifest(out)


def test_a_file_may_be_absent_only_while_it_is_joining(out):
    rewrite(out, coming={"dicom/RS.dcm": "0" * 64})
    assert set(read_manifest(out)["files"]) == set(LISTED)
    rewrite(out, coming={LISTED[0]: "0" * 64})
    read_manifest(out)  # the older one is still there
    (out / LISTED[0]).unlink()
    with pytest.raises(IntegrityError, match="missing"):
        read_manifest(out)


def test_a_link_in_place_of_a_file_is_refused(out, tmp_path):
    shutil.move(out / LISTED[1], tmp_path / "elsewhere")
    (out / LISTED[1]).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(IntegrityError, match="E12-link"):
        read_manifest(out)


def test_an_edited_manifest_is_refused(out):
    text = (out / MANIFEST).read_text()
    (out / MANIFEST).write_text(text.replace('"NEEDS REVIEW"', '"OK"').replace('"k"', '"other"'))
    with pytest.raises(IntegrityError, match="digest does not match"):
        read_manifest(out)


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"status": "FINE"}, "status"),
        ({"files": []}, "files"),
        ({"files": {"segmentation.nii.gz": "short"}}, "files"),
        ({"files": {".hidden": "0" * 64}}, "files"),
        ({"files": {"a\\b": "0" * 64}}, "files"),
        ({"files": {"a\x1b[31m": "0" * 64}}, "files"),
        ({"reference": "../T1c"}, "reference"),
        ({"volumes": [{"name": "../x", **ROW}]}, "volumes.0.name"),
        ({"volumes": [{"name": "Brainstem", **ROW, "outlined_cm3": -1.0}]}, "outlined_cm3"),
        ({"volumes": [{"name": "Brainstem", **ROW, "mean_cm3": float("inf")}]}, "mean_cm3"),
        ({"volumes": [{"name": "Lens_L", **ROW}]}, "mask of Lens_L is not listed"),
        ({"volumes": [{"name": "Brainstem", **ROW}] * 2}, "listed twice"),
        ({"margins": [{"name": "Brainstem", "outlined_cm3": 1.0}]}, "listed twice"),
        ({"margins": [{"name": "CTV", "outlined_cm3": 1.0}]}, "mask of CTV is not listed"),
        ({"notes": ["B20"]}, "notes"),
        ({"inputs": [{"contrast": "a/b"}]}, "contrast"),
        ({"format": "other program"}, "format"),
        ({"files": {"a" * 5000: "0" * 64}}, "too long"),
        ({"coming": {"ü" * 130: "0" * 64}}, "too long"),
    ],
)
def test_a_manifest_outside_its_schema_is_refused(out, changes, found):
    rewrite(out, **changes)
    with pytest.raises(IntegrityError, match="E12-result the manifest is damaged") as refusal:
        read_manifest(out)
    assert found in refusal.value.found


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "structures/../../secret"])
def test_names_that_leave_the_folder_are_refused(out, name):
    rewrite(out, files={name: "0" * 64})
    with pytest.raises(IntegrityError, match="names a file outside its folder"):
        read_manifest(out)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "[" * 100_000, '{"files": 3}', "\ud800"])
def test_damaged_manifests_are_refused(out, text):
    (out / MANIFEST).write_text(text, encoding="utf-8", errors="surrogatepass")
    with pytest.raises((IntegrityError, UnreadableFileError)):
        read_manifest(out)


def test_another_kind_of_folder_is_no_result(tmp_path):
    with publish_folder(tmp_path / "doses", "the doses") as work:
        (work / "dose.tsv").write_text("x")
        write_manifest(work, {}, "set of doses")
    read_manifest(tmp_path / "doses", "set of doses")
    with pytest.raises(UnreadableFileError, match="no finished result"):
        read_manifest(tmp_path / "doses")


def test_what_joins_is_listed_and_sealed(out):
    with add_files(out, margins=[{"name": "CTV", "outlined_cm3": 2.0}]) as work:
        (work / "structures").mkdir()
        (work / "structures" / "CTV.nii.gz").write_text("x")
    assert "structures/CTV.nii.gz" in read_manifest(out)["files"]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
MEMBERS = ("format", "files", "coming", "key", "status", "notes", "inputs", "reference", "patient", "volumes")


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.dictionaries(st.sampled_from(MEMBERS), JSON, max_size=3))
def test_any_member_of_any_kind_is_taken_or_refused(tmp_path_factory, members):
    whole = {"format": "tumoar result", "files": {}} | members
    try:
        found = parse(seal(whole), tmp_path_factory.getbasetemp())
    except TumoarError:
        return
    assert isinstance(found["files"], dict)
