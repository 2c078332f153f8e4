"""The label table belongs to the model and to the result: who reads it where, and what a model may lack."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import small_head
from heads import analytic_head

from tumoar.inference.gem import place_atlas
from tumoar.inference.initialise import tie_core_components
from tumoar.io.manifest_schema import parse, seal
from tumoar.io.models import default_model
from tumoar.io.store import labels_to_dict
from tumoar.model.atlas import Atlas
from tumoar.model.theta_prior import build_mean_constraints
from tumoar.placement.template import (
    ENDS,
    FIRST_NAMES,
    default_surroundings,
    fit_landmarks,
    landmarks,
    make_template,
)
from tumoar.placement.tissue_order import tissue_ratios
from tumoar.result.masks import label_table, table_of_labels
from tumoar.train.align import Alignment, align
from tumoar.vocabulary.config import GemConfig
from tumoar.vocabulary.contrasts import Contrast, MeanConstraint, default_contrasts
from tumoar.vocabulary.errors import IntegrityError, ModelFileError
from tumoar.vocabulary.labels import LabelTable, default_labels, parse_labels

LABELS = default_labels()
SRC = Path(__file__).resolve().parents[1] / "src" / "tumoar"

USES_OURS = {
    "simulate/ball_head.py": "a phantom, which has our structures",
    "cli/simulate.py": "simulated heads are made of our structures",
    "cli/train.py": "the table to train with, unless another is given",
    "io/models.py": "colors of the model in the package",
    "io/samseg.py": "another atlas is brought to our structures",
    "radiotherapy/structures.py": "colors for structures of a file, which has no table",
    "result/masks.py": "results of earlier versions, and label maps without a result",
    "vocabulary/labels.py": "defines it",
    "vocabulary/parts.py": "the table of the second model refines it",
}


def without(*names: str) -> LabelTable:
    """Our table without some structures, and without mixtures and organs that only they had."""
    structures = tuple(s for s in LABELS.structures if s.name not in names)
    used = {s.gmm for s in structures}
    there = {s.name for s in structures}
    return LabelTable(
        structures,
        tuple(g for g in LABELS.gmms if g.role != "normal" or g.name in used),
        LABELS.tumor,
        tuple(o for o in LABELS.organs if set(o.structures) <= there),
    )


EYES = [s.name for s in LABELS.structures if "eye" in s.name]


def test_our_own_table_is_used_only_where_there_is_no_other():
    found = set()
    for path in SRC.rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        if any(isinstance(node, ast.Name) and node.id == "default_labels" for node in ast.walk(tree)):
            found.add(path.relative_to(SRC).as_posix())
    assert found | {"vocabulary/labels.py"} == set(USES_OURS)


def test_the_table_of_a_manifest_is_the_one_that_counts():
    table = replace(LABELS, organs=LABELS.organs[:3])
    assert label_table({"labels": labels_to_dict(table), "volumes": []}) == table


def test_a_manifest_without_a_table_has_ours_only_if_ours_has_its_structures():
    assert label_table({"volumes": [{"name": "GTV"}, {"name": "Brain"}]}) is LABELS
    with pytest.raises(IntegrityError, match=r"does not say what its labels mean.*Pituitary"):
        label_table({"volumes": [{"name": "GTV"}, {"name": "Pituitary"}]})


def test_a_manifest_with_a_broken_table_is_refused(tmp_path):
    table = labels_to_dict(LABELS)
    parse(seal({"format": "tumoar result", "files": {}, "labels": table}), tmp_path)
    for broken in (
        {},
        {**table, "organ": 3},
        {**table, "structure": table["structure"][1:]},
        {**table, "organ": [*table["organ"], {"name": "../x", "kind": "ORGAN", "structures": ["CSF"]}]},
    ):
        with pytest.raises(IntegrityError, match="labels: value error, invalid label table"):
            parse(seal({"format": "tumoar result", "files": {}, "labels": broken}), tmp_path)


def test_a_label_map_has_the_table_of_the_result_it_belongs_to(tmp_path):
    table = replace(LABELS, organs=LABELS.organs[:3])
    about = {
        "format": "tumoar result",
        "files": {"native/T1c.nii.gz": "0" * 64},
        "labels": labels_to_dict(table),
    }
    (tmp_path / "run.json").write_text(seal(about), encoding="utf-8")
    assert table_of_labels(tmp_path / "native" / "T1c.nii.gz") == table
    assert table_of_labels(tmp_path / "other.nii.gz") is LABELS


def test_background_comes_first():
    rows = labels_to_dict(LABELS)
    rows["structure"] = [*rows["structure"][1:], rows["structure"][0]]
    with pytest.raises(ModelFileError, match="first structure is not the background"):
        parse_labels(rows)


# ---- landmarks ---------------------------------------------------------------------------------------------


def test_the_landmarks_in_the_package_are_those_of_these_names():
    """Written as a list once: each must lie where an atlas has the structure of its name."""
    assert tuple(default_surroundings().landmarks) == FIRST_NAMES
    label_map, grid = analytic_head(3.0)
    ours = landmarks((label_map[..., None] == LABELS.indices).astype(np.float32), grid, LABELS)
    assert tuple(ours) == FIRST_NAMES
    to_source = fit_landmarks(ours, default_surroundings().landmarks)
    for name, point in default_surroundings().landmarks.items():
        assert np.linalg.norm(to_source[:3, :3] @ ours[name] + to_source[:3, 3] - point) < 16, name


def test_the_alignment_of_the_shipped_atlas_can_be_read():
    atlas = default_model().atlas
    found = Alignment.of_card(atlas.provenance, atlas.labels)
    assert found.shape == (160, 208, 176)
    assert found.landmarks["left hippocampus"][0] < 80 < found.landmarks["right hippocampus"][0]
    assert found.landmarks["left eye fluid"][1] > found.landmarks["brainstem"][1]
    again = Alignment.of_card(found.to_card(), without("CSF"))
    assert all(np.array_equal(again.landmarks[n], p) for n, p in found.landmarks.items())


def test_heads_of_another_table_are_aligned_by_what_both_have():
    label_map, _ = analytic_head(4.0)
    common = align([label_map, label_map], LABELS)
    few = without("eye socket fat")
    fatless = np.where(label_map == LABELS.indices[LABELS.l("eye socket fat")], 0, label_map).astype(np.uint8)
    assert np.allclose(common.to_head(fatless, few), common.to_head(label_map, LABELS), atol=0.1)


@pytest.mark.parametrize(
    "gone", [EYES, ["CSF"], [*EYES, "optic chiasm", "left optic nerve", "right optic nerve"]]
)
def test_a_template_needs_none_of_the_structures_beside_the_brain(gone):
    labels = without(*gone)
    label_map, grid = analytic_head(4.0)
    label_map[~np.isin(label_map, labels.indices)] = 0
    pi = (label_map[..., None] == labels.indices).astype(np.float32)
    template = make_template(pi, grid, labels, default_surroundings(), skull_stripped=False)
    assert set(ENDS) <= set(landmarks(pi, grid, labels))
    for level in template.levels:
        assert np.isfinite(level).all()
        assert level.min() > 0
        assert level.shape[-1] == len(template.is_brain)
    assert template.is_atlas.sum() < len(template.is_atlas)


# ---- mixtures ----------------------------------------------------------------------------------------------


def test_tissues_that_a_model_lacks_are_not_compared():
    labels = without("CSF")
    atlas = small_head.atlas()
    keep = [LABELS.l(s.name) for s in labels.structures]
    alpha = atlas.alpha[:, keep]
    fluidless = Atlas(atlas.nodes, atlas.tetrahedra, alpha / alpha.sum(1, keepdims=True), labels)
    case = small_head.case()
    found = tissue_ratios(case, place_atlas(case, fluidless, np.eye(4), GemConfig()))
    assert not any("CSF" in pair for ratios in found for pair in ratios)


def test_bounds_on_mixtures_that_a_model_lacks_are_left_out():
    contrasts = list(default_contrasts().values())
    whole, _ = build_mean_constraints(LABELS, contrasts)
    fewer, bounds = build_mean_constraints(without("optic chiasm"), contrasts)
    assert 0 < len(fewer) == len(bounds) < len(whole)


def test_a_bound_on_a_component_that_is_tied_touches_no_other_mixture():
    bound = MeanConstraint("core", ">=", ("GWM",), component=1)
    row = Contrast("new", "log", True, constraints=(bound,))
    assert len(build_mean_constraints(LABELS, [row])[0]) == 1
    assert len(build_mean_constraints(tie_core_components(LABELS), [row])[0]) == 0
