"""Where output may go: no file of the user's is ever replaced or removed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tumoar.io.manifest import publish_folder, read_manifest, write_manifest
from tumoar.io.outputs import LONGEST, new_folder, require_new_model, require_place
from tumoar.vocabulary.errors import IntegrityError, OutputError, TumoarError, UsageError

KIND = "set of scores"


def result(path):
    with publish_folder(path, "the result") as work:
        (work / "a.tsv").write_text("x")
        write_manifest(work, {"key": "k"})
    return path


def everything(folder):
    return {p.relative_to(folder): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_a_new_folder_and_an_empty_one_are_fine(tmp_path):
    (tmp_path / "empty").mkdir()
    for name in ("new", "empty", "deep/er"):
        for overwrite in (False, True):
            require_place(tmp_path / name, overwrite=overwrite)


def test_a_whole_result_may_be_replaced(tmp_path):
    require_place(result(tmp_path / "out"), overwrite=True)


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_folder_of_scans_is_refused(tmp_path, overwrite):
    (tmp_path / "scans").mkdir()
    (tmp_path / "scans" / "t1c.nii.gz").write_text("x")
    with pytest.raises(IntegrityError, match=r"E12-B57 .*something else.*only a folder that tumoar wrote"):
        require_place(tmp_path / "scans", overwrite=overwrite)


@pytest.mark.parametrize("place", ["out/t1c.nii.gz", "out/deep/dicom", "out/deep/dicom#2", "out"])
def test_a_result_that_holds_an_input_is_never_replaced(tmp_path, place):
    out = result(tmp_path / "out")
    (out / "deep" / "dicom").mkdir(parents=True)
    (out / "t1c.nii.gz").write_text("x")
    with pytest.raises(IntegrityError, match="E12-B57 the output folder holds an input"):
        require_place(out, [tmp_path / place], overwrite=True)


def test_an_input_behind_a_link_counts_where_it_lies(tmp_path):
    out = result(tmp_path / "out")
    (out / "t1c.nii.gz").write_text("x")
    (tmp_path / "link").symlink_to(out)
    for given in (tmp_path / "link" / "t1c.nii.gz", out / "t1c.nii.gz"):
        for place in (out, tmp_path / "link"):
            with pytest.raises(IntegrityError, match="holds an input"):
                require_place(place, [given], overwrite=True)


def test_notes_of_the_user_in_a_result_are_not_deleted(tmp_path):
    out = result(tmp_path / "out")
    (out / "notes.txt").write_text("x")
    require_place(out)
    with pytest.raises(IntegrityError, match=r"did not write.*notes\.txt"):
        require_place(out, overwrite=True)
    (out / "notes.txt").unlink()
    (out / "link").symlink_to(tmp_path)
    with pytest.raises(IntegrityError, match="did not write"):
        require_place(out, overwrite=True)


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_damaged_result_is_not_replaced(tmp_path, overwrite):
    out = result(tmp_path / "out")
    (out / "a.tsv").unlink()
    with pytest.raises(IntegrityError, match=r"E12-B57 .*missing: a\.tsv"):
        require_place(out, overwrite=overwrite)


def test_a_file_in_its_place_is_refused(tmp_path):
    (tmp_path / "out").write_text("x")
    with pytest.raises(IntegrityError, match="E12-B57"):
        require_place(tmp_path / "out", overwrite=True)


@pytest.mark.parametrize("place", [".", "..", "/", "../here", "", "./", "deep/.."])
def test_the_current_folder_and_those_above_it_are_refused(tmp_path, monkeypatch, place):
    (tmp_path / "here" / "deep").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "here")
    with pytest.raises(UsageError, match="E2-output the output must be a folder of its own"):
        require_place(Path(place), overwrite=True)


def test_a_folder_appears_whole_or_not_at_all(tmp_path):
    with new_folder(tmp_path / "out", KIND) as work:
        (work / "scores.tsv").write_text("x")
        assert not (tmp_path / "out").exists()
    assert list(read_manifest(tmp_path / "out", KIND)["files"]) == ["scores.tsv"]
    before = everything(tmp_path)

    def fail():
        with new_folder(tmp_path / "other", KIND) as work:
            (work / "scores.tsv").write_text("x")
            raise OSError(28, "no space")

    with pytest.raises(OutputError, match="E9-B58"):
        fail()
    assert everything(tmp_path) == before


def test_a_folder_is_replaced_only_on_request_and_only_by_its_kind(tmp_path):
    with new_folder(tmp_path / "out", KIND) as work:
        (work / "scores.tsv").write_text("old")
    before = everything(tmp_path)
    for kind, overwrite in ((KIND, False), ("set of doses", False), ("set of doses", True)):
        with (
            pytest.raises(TumoarError, match="E12-B57"),
            new_folder(tmp_path / "out", kind, overwrite=overwrite),
        ):
            pass
    assert everything(tmp_path) == before
    with new_folder(tmp_path / "out", KIND, overwrite=True) as work:
        (work / "scores.tsv").write_text("new")
    assert (tmp_path / "out" / "scores.tsv").read_text() == "new"


def test_a_result_is_never_replaced_by_scores(tmp_path):
    out = result(tmp_path / "out")
    with pytest.raises(IntegrityError, match="E12-B57"), new_folder(out, KIND, overwrite=True):
        pass
    read_manifest(out)


def test_a_model_replaces_no_file(tmp_path):
    require_new_model(tmp_path / "model.npz")
    (tmp_path / "model.npz").symlink_to(tmp_path / "nowhere")
    with pytest.raises(IntegrityError, match="E12-B57 the model file already exists"):
        require_new_model(tmp_path / "model.npz")


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("target", ["empty", "out"])
def test_a_link_is_neither_followed_nor_replaced(tmp_path, target, overwrite):
    (tmp_path / "empty").mkdir()
    before = everything(result(tmp_path / "out"))
    (tmp_path / "link").symlink_to(tmp_path / target)
    with pytest.raises(IntegrityError, match=r"E12-link .*is a symbolic link"):
        require_place(tmp_path / "link", overwrite=overwrite)
    assert (tmp_path / "link").is_symlink()
    assert everything(tmp_path / "out") == before


def test_links_in_a_circle_are_refused(tmp_path):
    (tmp_path / "circle").symlink_to("circle")
    for place, given in (
        ("circle", "scan"),
        ("circle/out", "scan"),
        ("out", "circle"),
        ("out", "circle/scan"),
    ):
        with pytest.raises(TumoarError, match=r"E(12-link|2-output|3-B1) "):
            require_place(tmp_path / place, [tmp_path / given])


def test_a_mount_point_is_refused_before_the_work(tmp_path, monkeypatch):
    (tmp_path / "disk").mkdir()
    monkeypatch.setattr("os.path.ismount", lambda path: Path(path).name == "disk")
    with pytest.raises(UsageError, match=r"E2-output .*mount point.*-o .*disk/result"):
        require_place(tmp_path / "disk")
    require_place(tmp_path / "disk" / "result")


@pytest.mark.parametrize("name", ["n" * 225, "ü" * 112, "n" * 255, "n" * 5000])
def test_a_name_too_long_to_publish_is_refused_before_the_work(tmp_path, name):
    with pytest.raises(UsageError, match="E2-output the name of the output is too long"):
        require_place(tmp_path / name)


def test_the_longest_name_can_be_published_and_replaced(tmp_path):
    out = tmp_path / ("n" * LONGEST)
    require_place(out)
    for kind in (KIND, KIND):
        with new_folder(out, kind, overwrite=True) as work:
            (work / "a.tsv").write_text("x")


def test_a_folder_that_is_closed_to_us_is_refused(tmp_path, monkeypatch):
    (tmp_path / "closed").mkdir()

    def closed(path):
        raise PermissionError(13, "closed")

    monkeypatch.setattr(Path, "iterdir", closed)
    with pytest.raises(OutputError, match="E9-B58 cannot read the output folder"):
        require_place(tmp_path / "closed")


def test_a_current_folder_that_is_gone_hinders_only_relative_names(tmp_path, monkeypatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    require_place(tmp_path / "out", [tmp_path / "scan"])
    with pytest.raises(UsageError, match="E2-folder the current folder no longer exists"):
        require_place(Path("out"))
    with pytest.raises(UsageError, match="E2-folder the current folder no longer exists"):
        require_place(tmp_path / "out", ["scan"])


def test_a_parent_that_cannot_be_listed_is_refused(tmp_path, monkeypatch):
    def closed(path):
        raise PermissionError(13, "closed")

    monkeypatch.setattr(Path, "iterdir", closed)
    with pytest.raises(OutputError, match="E9-B58 cannot tidy up"), new_folder(tmp_path / "out", KIND):
        pass
    assert not (tmp_path / "out").exists()


def test_a_link_beside_the_output_is_not_taken_for_an_older_result(tmp_path):
    (tmp_path / "scans").mkdir()
    (tmp_path / "scans" / "t1c").write_text("x")
    (tmp_path / f".out.old-{'0' * 32}").symlink_to(tmp_path / "scans")
    with new_folder(tmp_path / "out", KIND) as work:
        (work / "a.tsv").write_text("x")
    assert not (tmp_path / "out").is_symlink()
    assert everything(tmp_path / "scans") == {Path("t1c"): b"x"}
