"""The atlas in the package: its card, its sides, where it has nodes."""

from __future__ import annotations

from importlib.resources import files

import numpy as np
import pytest

from tumoar.io.store import load_atlas
from tumoar.model.compartments import has_tentorium
from tumoar.numerics import tetra
from tumoar.numerics.tetra_raster import rasterize
from tumoar.train.atlas import AtlasSettings
from tumoar.train.mesh import quality
from tumoar.vocabulary.labels import default_labels

LABELS = default_labels()
PATH = files("tumoar") / "data" / "atlas.npz"


@pytest.fixture(scope="module")
def atlas():
    return load_atlas(str(PATH))


@pytest.fixture(scope="module")
def pi(atlas):
    shape = tuple(atlas.provenance["box"])
    return rasterize(atlas.nodes + (np.array(shape) - 1) / 2, atlas.tetrahedra, atlas.alpha, shape)


def test_card_tells_heads_command_seed_and_license(atlas):
    card = atlas.provenance
    assert len(card["heads"]) == 10
    assert card["held_out"] == ["head_10.nii.gz", "head_20.nii.gz"]
    assert not set(card["heads"]) & set(card["held_out"])
    assert card["figures"]["nodes"] == len(atlas.nodes)
    assert "tumoar train atlas" in card["command"]
    assert card["seed"] == 0
    assert "Apache-2.0" in card["source"]
    assert PATH.stat().st_size < 8_000_000


def test_labels_are_those_of_the_package(atlas):
    assert [s.name for s in atlas.labels.structures] == [s.name for s in LABELS.structures]


def test_no_tetrahedron_is_flat(atlas):
    assert quality(atlas.nodes, atlas.tetrahedra).min() >= AtlasSettings().min_quality
    volumes = tetra.volumes(atlas.nodes, atlas.tetrahedra)
    assert volumes.min() > 0
    assert volumes.sum() == pytest.approx(np.prod(atlas.provenance["box"]), rel=1e-9)


def test_expected_volumes_are_those_of_heads(pi):
    """Sum of probabilities per structure, in ml, against published ranges of individuals."""
    expected = {s.name: pi[..., k].sum(dtype=float) / 1000 for k, s in enumerate(LABELS.structures)}
    ranges = {"brainstem": (17, 32), "optic chiasm": (0.15, 0.6), "eye socket fat": (20, 35)}
    for side in ("left", "right"):
        ranges |= {f"{side} hippocampus": (2.2, 5.5), f"{side} optic nerve": (0.3, 1.0)}
        ranges |= {f"{side} eye tissue": (1.0, 2.6), f"{side} eye fluid": (3.2, 6.5)}
    for name, (low, high) in ranges.items():
        assert low < expected[name] < high, name


def test_left_is_left(pi):
    x = np.arange(pi.shape[0])
    for s in LABELS.structures:
        if s.side == "left" and s.mirror is not None:
            left, right = (pi[..., LABELS.l(n)].sum((1, 2), dtype=float) for n in (s.name, s.mirror))
            assert (left * x).sum() / left.sum() < (right * x).sum() / right.sum() - 10


def test_unspecified_tissue_lies_in_the_brain_alone(atlas):
    l = LABELS.l("unspecified brain tissue")
    brain = np.delete(atlas.alpha, l, 1)[:, np.delete(LABELS.in_brain, l)].max(1)
    added = atlas.alpha[:, l] > 0
    assert (brain[added] * 1.01 > 0.999e-3).all()
    assert (brain[~added] < 1.001e-3).all()


def test_eyes_are_impossible_in_the_brain_and_brain_in_air(atlas):
    eyes = [LABELS.l(f"{side} eye {part}") for side in ("left", "right") for part in ("tissue", "fluid")]
    back = atlas.nodes[:, 1] < atlas.nodes[:, 1].mean() - 20
    assert not atlas.alpha[np.ix_(back, eyes)].any()
    corner = (np.abs(atlas.nodes) > 0.9 * atlas.box[1]).all(1)
    assert corner.any()
    assert (atlas.alpha[corner, 0] == 1).all()


def test_nodes_are_dense_at_borders_and_sparse_elsewhere(atlas, pi):
    shape = np.array(atlas.provenance["box"])
    at = tuple(np.clip(np.rint(atlas.nodes + (shape - 1) / 2).astype(int), 0, shape - 1).T)

    def per_cm3(mask):
        return mask[at].sum() / mask.sum() * 1000

    stem = pi[..., LABELS.l("brainstem")]
    nerves = pi[..., LABELS.l("left optic nerve")] + pi[..., LABELS.l("right optic nerve")]
    border, nerve, air = (stem > 0.1) & (stem < 0.9), nerves > 0.1, pi[..., 0] > 0.999
    assert per_cm3(border) > 5 * per_cm3(air)
    assert per_cm3(nerve) > per_cm3(border)


# ---- all structures of the brain ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def brain():
    return load_atlas(str(files("tumoar") / "data" / "brain.npz"))


def test_the_atlas_of_all_structures_has_the_mesh_and_the_space_of_the_first(atlas, brain):
    np.testing.assert_array_equal(brain.tetrahedra, atlas.tetrahedra)
    np.testing.assert_allclose(brain.nodes, atlas.nodes, atol=1e-9)
    assert has_tentorium(brain)
    for key in ("box", "landmarks", "heads", "held_out", "seed"):
        assert brain.provenance[key] == atlas.provenance[key]
    assert "--keep-reference" in brain.provenance["command"]
    assert (files("tumoar") / "data" / "brain.npz").stat().st_size < 4_000_000


def test_merged_it_is_nearly_the_first(atlas, brain):
    fine = brain.labels
    assert fine.wholes == tuple(s.name for s in LABELS.structures)
    merged = np.zeros_like(atlas.alpha)
    np.add.at(merged.T, fine.whole_of_l, brain.alpha.T)
    assert 0.5 * np.abs(merged - atlas.alpha).sum(1).mean() < 0.04
    assert (merged.argmax(1) == atlas.alpha.argmax(1)).mean() > 0.97


def test_parts_lie_on_their_side(brain):
    fine = brain.labels
    for s in fine.structures:
        if s.side is not None:
            weight = brain.alpha[:, fine.l(s.name)]
            x = float((weight * brain.nodes[:, 0]).sum() / weight.sum())
            assert (x < -3) if s.side == "left" else (x > 3), s.name
