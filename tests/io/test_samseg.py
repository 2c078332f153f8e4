import gzip
import os
import tracemalloc
import zlib
from pathlib import Path

import numpy as np
import pytest
import reference_tetra as ref
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from tumoar.cli.model import model
from tumoar.geometry.image import Grid
from tumoar.io.nifti import write_nifti
from tumoar.io.samseg import import_samseg
from tumoar.io.store import load_atlas
from tumoar.model.atlas import pi, place
from tumoar.vocabulary.errors import ModelFileError, TumoarError

TABLE = """\
0 0 Unknown 0 0 0 0
17 2 Left-Hippocampus 220 216 20 255
53 1 Right-Hippocampus 220 216 20 255
16 3 Brain-Stem 119 159 176 255
258 4 Soft_Nonbrain_Tissue 128 128 128 255
10 5 Left-Thalamus 0 118 14 255
"""
SHARED = """\
# mergedName numberOfComponents searchStrings

Unknown 1 Unknown
WM 1 Brain-Stem Thalamus
GM 1 Hippocampus Thalamus
Soft 3 Soft
"""
AFFINE = np.array([[-1.0, 0, 0, 4], [0, 1, 0, -6], [0, 0, 1, -2], [0, 0, 0, 1]])


def mesh_text(nodes, tetrahedra, alpha, ids):
    """A mesh collection with lower cells between the tetrahedra and ids that are not contiguous."""
    held = (nodes == nodes.min(0)) | (nodes == nodes.max(0))
    positions = [f"{i} {x:.17g} {y:.17g} {z:.17g}" for i, (x, y, z) in zip(ids, nodes)]
    cells = []
    for four in ids[tetrahedra]:
        cells += [
            f"{len(cells)} VERTEX {four[0]}",
            f"{len(cells) + 1} TETRAHEDRON {' '.join(map(str, four))}",
        ]
    parameters = [
        f"{i} {' '.join(f'{v:.7g}' for v in row)} true {' '.join('false' if h else 'true' for h in fixed)}"
        for i, row, fixed in zip(ids, alpha, held)
    ]
    sizes = {"points": len(nodes), "cells": len(cells), "labels": alpha.shape[1], "meshes": 1}
    head = [f"Number of {what}: {n}" for what, n in sizes.items()]
    body = ["Reference position ", *positions, "K: 0.1", "Position 0", *positions, "Cells: ", *cells]
    return "\n".join([*head, *body, "Point parameters: ", *parameters, ""])


@pytest.fixture
def folder(tmp_path):
    return put_folder(tmp_path)


def put_folder(tmp_path):
    """A SAMSEG atlas folder with a small mesh."""
    rng = np.random.default_rng(0)
    nodes, tetrahedra = ref.jittered(*ref.body_centered((2, 3, 2), 4.0), 0.5, rng)
    alpha = rng.dirichlet(np.full(6, 0.5), len(nodes))
    text = mesh_text(nodes, tetrahedra, alpha, 7 + 3 * np.arange(len(nodes)))
    (tmp_path / "atlas_level2.txt.gz").write_bytes(gzip.compress(text.encode()))
    (tmp_path / "plain.txt").write_text(text)
    (tmp_path / "compressionLookupTable.txt").write_text(TABLE)
    (tmp_path / "sharedGMMParameters.txt").write_text(SHARED)
    write_nifti(tmp_path / "template.nii.gz", np.zeros((9, 13, 9), np.uint8), Grid((9, 13, 9), AFFINE))
    np.savez(tmp_path / "truth.npz", nodes=nodes, tetrahedra=tetrahedra, alpha=alpha)
    return tmp_path


def test_the_atlas_lands_in_the_world_of_its_template(folder):
    atlas = import_samseg(folder)
    truth = np.load(folder / "truth.npz")
    placed = place(atlas, np.eye(4), Grid((9, 13, 9), AFFINE))
    np.testing.assert_allclose(placed.reference, truth["nodes"], atol=1e-9)
    assert {frozenset(t) for t in placed.tetrahedra.tolist()} == {
        frozenset(t) for t in truth["tetrahedra"].tolist()
    }
    np.testing.assert_allclose(atlas.alpha, truth["alpha"], atol=1e-6)
    np.testing.assert_allclose(pi(placed, placed.reference).sum(-1), 1, atol=1e-6)
    assert atlas.stiffness == 0.1


def test_plain_and_compressed_text_are_the_same(folder):
    one, two = import_samseg(folder), import_samseg(folder, "plain.txt")
    np.testing.assert_array_equal(one.nodes, two.nodes)
    np.testing.assert_array_equal(one.alpha, two.alpha)


def test_labels_follow_the_tables(folder):
    labels = import_samseg(folder).labels
    assert [s.name for s in labels.structures][:3] == ["Unknown", "Right-Hippocampus", "Left-Hippocampus"]
    assert labels.structures[2].mirror == "Right-Hippocampus"
    assert labels.structures[5].side is None  # its twin is not in the table
    assert [s.in_brain for s in labels.structures] == [False, True, True, True, False, True]
    assert [s.gmm for s in labels.structures] == ["Unknown", "GM", "GM", "WM", "Soft", "WM"]
    assert labels.gmms[labels.x_named("Soft")].components == 3
    assert labels.organ("Hippocampus_L").structures == ("Left-Hippocampus",)
    provenance = import_samseg(folder).provenance
    assert set(provenance["lacks"]) == {"Brainstem", "OpticChiasm"}
    assert provenance["split_labels"] == {"Left-Thalamus": ["WM", "GM"]}
    assert provenance["source_labels"]["Soft_Nonbrain_Tissue"] == 258


def changed(text, old, new):
    assert old in text
    return text.replace(old, new, 1)


BAD = {
    "no points": lambda t: changed(t, "Number of points: ", "Number of dots: "),
    "too many points": lambda t: changed(t, "Number of points: ", "Number of points: 9"),
    "cut": lambda t: t[: len(t) // 2],
    "fixed inside": lambda t: "\n".join(
        line[: -len("true true true")] + "false true true" if line.endswith("true true true true") else line
        for line in t.split("\n")
    ),
    "unknown node": lambda t: changed(t, "TETRAHEDRON ", "TETRAHEDRON 999999 "),
    "no number": lambda t: changed(t, "K: 0.1", "K: soft"),
    "other labels": lambda t: changed(t, "Number of labels: 6", "Number of labels: 5"),
}


@pytest.mark.parametrize("fault", BAD)
def test_damaged_meshes_are_refused(fault, folder):
    (folder / "bad.txt").write_text(BAD[fault]((folder / "plain.txt").read_text()))
    with pytest.raises(ModelFileError, match="SAMSEG atlas not usable"):
        import_samseg(folder, "bad.txt")


def test_damaged_tables_are_refused(folder):
    (folder / "sharedGMMParameters.txt").write_text(SHARED.replace("Brain-Stem", "Brainstem"))
    with pytest.raises(ModelFileError, match="no mixture for Brain-Stem"):
        import_samseg(folder)
    (folder / "compressionLookupTable.txt").write_text(TABLE.replace("16 3", "16 9"))
    with pytest.raises(ModelFileError, match="lookup table"):
        import_samseg(folder)
    (folder / "compressionLookupTable.txt").unlink()
    with pytest.raises(ModelFileError, match="cannot read"):
        import_samseg(folder)


# A line of a mesh in the place of another.
LINES = [
    "",
    "0",
    "1 2 3",
    "x",
    "nan nan nan nan",
    "1e999 0 0 0",
    "9" * 5000,
    "true",
    "a " * 9000,
    "\0",
    "K: nan",
]


@settings(max_examples=60, deadline=None, derandomize=True)
@given(at=st.integers(0, 400), line=st.sampled_from(LINES), how=st.sampled_from(["put", "replace", "drop"]))
def test_a_mesh_with_another_line_is_refused_or_whole(kept, at, line, how):
    lines = (kept / "plain.txt").read_text().split("\n")
    at %= len(lines)
    lines[at : at + (how != "put")] = [] if how == "drop" else [line]
    (kept / "bad.txt").write_text("\n".join(lines))
    try:
        atlas = import_samseg(kept, "bad.txt")
    except ModelFileError:
        return
    assert np.isfinite(atlas.nodes).all()


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    return put_folder(tmp_path_factory.mktemp("samseg"))


TABLES = ["0 0 Unknown 0 0 0 0", "0 0 Unknown 300 0 0 0", "x", " ", "0 0", "9 " * 300, "0 0 \x1b[2J 0 0 0 0"]


@pytest.mark.parametrize("text", TABLES)
@pytest.mark.parametrize("name", ["compressionLookupTable.txt", "sharedGMMParameters.txt"])
def test_other_tables_are_refused(folder, name, text):
    (folder / name).write_text(text)
    with pytest.raises(ModelFileError) as refusal:
        import_samseg(folder)
    assert str(refusal.value).isprintable()


@pytest.mark.parametrize(
    "name",
    ["atlas_level2.txt.gz", "compressionLookupTable.txt", "sharedGMMParameters.txt", "template.nii.gz"],
)
@pytest.mark.parametrize("kind", ["pipe", "device", "directory"])
def test_what_is_no_file_is_refused_at_once(folder, name, kind):
    (folder / name).unlink()
    if kind == "pipe":
        os.mkfifo(folder / name)
    elif kind == "device":
        (folder / name).symlink_to("/dev/zero")
    else:
        (folder / name).mkdir()
    with pytest.raises(TumoarError, match=r"not a regular file|is a directory"):
        import_samseg(folder)


def test_a_bomb_is_not_unpacked(folder):
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    bomb = b"".join(packer.compress(b"0 \n" * 10**6) for _ in range(400)) + packer.flush()
    (folder / "atlas_level2.txt.gz").write_bytes(bomb)
    tracemalloc.start()
    with pytest.raises(ModelFileError, match="too large"):
        import_samseg(folder)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 10**9


def test_commands_import_show_and_verify(folder):
    run = CliRunner()
    target = folder / "model.npz"
    done = run.invoke(model, ["import-samseg", str(folder), "-o", str(target)])
    assert done.exit_code == 0, done.output
    assert load_atlas(target).labels.K == 6
    shown = run.invoke(model, ["info", str(target)])
    assert "Left-Hippocampus" in shown.output
    assert run.invoke(model, ["verify", str(target)]).output.startswith("valid: atlas")
    target.write_bytes(target.read_bytes()[:-100])
    assert isinstance(run.invoke(model, ["verify", str(target)]).exception, ModelFileError)


def test_the_atlas_that_samseg_ships():
    where = os.environ.get("TUMOAR_SAMSEG_ATLAS")
    if not where:
        pytest.skip("needs a SAMSEG atlas folder (TUMOAR_SAMSEG_ATLAS)")
    atlas = import_samseg(Path(where))
    assert (len(atlas.nodes), len(atlas.tetrahedra), atlas.labels.K) == (54598, 338993, 44)
    np.testing.assert_allclose(atlas.box, [[-90, -126, -72], [90, 90, 108]])
    chiasm = atlas.alpha[:, atlas.labels.l("Optic-Chiasm")]
    center = chiasm @ atlas.nodes / chiasm.sum()
    assert abs(center[0]) < 2  # in the middle
    left = atlas.alpha[:, atlas.labels.l("Left-Hippocampus")]
    assert left @ atlas.nodes[:, 0] / left.sum() < -15
