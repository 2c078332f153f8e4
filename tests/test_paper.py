"""The tables are the paper's tables; deep gray matter, split off from gray and white, is our addition."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest

from tumoar.vocabulary.contrasts import (
    core_is_identifiable,
    default_contrasts,
    select_constraints,
    tumor_is_constrained,
)
from tumoar.vocabulary.labels import default_labels

labels = default_labels()
ADDED = "deep gray matter"
contrasts = default_contrasts()


def test_sizes():
    added = labels.l(ADDED)
    assert labels.K == 17 + 1
    assert labels.in_brain.sum() == 7 + 1
    assert labels.X == 12 + 1
    assert labels.Q - labels.G[labels.x(added, 0, 0)] == 21
    assert len(labels.states) == 31 + 3


def test_brain_is_table_1():
    brain = {s.name for s in labels.structures if s.in_brain}
    assert brain - {ADDED} == {
        "white matter", "gray matter", "CSF", "brainstem", "unspecified brain tissue",
        "left hippocampus", "right hippocampus",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("names", "gmm"),
    [
        (["gray matter", "left hippocampus", "right hippocampus"], "GGM"),
        ([ADDED], "deep gray"),
        (["white matter", "brainstem"], "GWM"),
        (["left optic nerve", "right optic nerve", "left eye tissue", "right eye tissue"], "GNE"),
        (["left eye fluid", "right eye fluid"], "eye fluid"),
        (["CSF"], "CSF"),
        (["background"], "background"),
        (["unspecified brain tissue"], "unspecified"),
        (["optic chiasm"], "chiasm"),
        (["eye socket fat"], "fat"),
        (["eye socket muscles"], "muscle"),
    ],
)
def test_mapping_is_table_2(names, gmm):
    members = [s.name for s in labels.structures if labels.x(labels.l(s.name), 0, 0) == labels.x_named(gmm)]
    assert members == names
    for name in names:
        l = labels.l(name)
        if labels.in_brain[l]:
            assert labels.x(l, 1, 0) == labels.x_named("edema")
            assert labels.x(l, 1, 1) == labels.x_named("core")
        else:
            with pytest.raises(ValueError, match="forbidden"):
                labels.x(l, 1, 0)


def test_core_outside_tumor_is_forbidden():
    assert not any(labels.is_allowed(l, 0, 1) for l in range(labels.K))


def test_components_are_section_3_3():
    G = {g.name: g.components for g in labels.gmms if g.name != "deep gray"}
    assert {name for name, n in G.items() if n == 3} == {"core", "muscle", "background"}
    assert {name for name, n in G.items() if n == 2} == {"fat", "CSF", "GNE"}
    assert all(
        n == 1 for name, n in G.items() if name not in ("core", "muscle", "background", "fat", "CSF", "GNE")
    )
    assert [g.name for g in labels.gmms if g.scatter == 1] == ["unspecified"]


def test_components_are_laid_out_in_a_row():
    slices = [labels.component_slice(x) for x in range(labels.X)]
    assert slices[0].start == 0
    assert slices[-1].stop == labels.Q
    assert all(a.stop == b.start for a, b in pairwise(slices))
    for x, s in enumerate(slices):
        assert (labels.x_of_component[s] == x).all()


def test_constraints_are_table_3():
    written = {
        (name, c.gmm, c.component, c.op, round(math.exp(c.log_offset), 6), c.refs)
        for name in ("T1", "T1c", "T2", "FLAIR", "CT", "other")
        for c in select_constraints(contrasts[name], labels)  # those on a cavity apply after surgery only
    }
    both = ("GWM", "GGM")
    ours = {
        (name, c.gmm, c.component, c.op, round(math.exp(c.log_offset), 6), c.refs)
        for name, contrast in contrasts.items()
        for c in select_constraints(contrast, labels)
        if c.added
    }
    # not in the paper: the chiasm is no fluid, deep gray matter darker than cortex, and what 21 patients show
    assert {row for row in ours if row[0] in ("T1", "T1c", "T2", "FLAIR")} == {
        ("T1", "chiasm", None, ">=", round(1 / 1.4, 6), ("GWM",)),
        ("T1c", "chiasm", None, ">=", round(1 / 1.4, 6), ("GWM",)),
        ("T2", "chiasm", None, "<=", 1.4, ("GWM",)),
        ("T2", "deep gray", None, "<=", 1.0, ("GGM",)),
        ("FLAIR", "deep gray", None, "<=", 1.0, ("GGM",)),
        ("T1", "edema", None, "<=", 1.05, ("GWM",)),
        ("T1c", "edema", None, "<=", 1.05, ("GWM",)),
        ("T2", "edema", None, ">=", 1.05, ("GGM",)),
        ("T2", "core", 0, ">=", 1.1, ("GGM",)),
    }
    assert written - ours == {
        ("FLAIR", "edema", None, ">=", 1.15, both),
        ("FLAIR", "core", 0, ">=", 1.0, both),
        ("T1c", "core", 0, ">=", 1.1, both),
        ("FLAIR", "unspecified", None, "<=", round(1 / 1.05, 6), both),
        ("T1c", "unspecified", None, "<=", round(1 / 1.05, 6), both),
        ("FLAIR", "chiasm", None, "<=", 1.0, both),
    }
    assert sum(len(refs) for *_, refs in written - ours) == 12


def test_tumor_starts_are_table_4():
    starts = {name: contrasts[name].tumor_start for name in ("FLAIR", "T2", "T1", "T1c")}
    assert starts == {
        "FLAIR": {"core": 1.0, "edema": 1.0},
        "T2": {"core": 0.7, "edema": 0.7},
        "T1": {"core": 0.2, "edema": 0.2},
        "T1c": {"core": 1.5, "edema": 0.2},
    }
    assert contrasts["CT"].tumor_start is None
    assert contrasts["other"].tumor_start is None


@pytest.mark.parametrize("name", ["FLAIR2", "DIR"])
def test_like_flair(name):
    found, flair = ([c for c in contrasts[n].constraints if c.gmm != "cavity"] for n in (name, "FLAIR"))
    assert found == flair
    assert contrasts[name].tumor_start == contrasts["FLAIR"].tumor_start


def test_only_ct_has_no_bias_field_and_no_log():
    assert [n for n, c in contrasts.items() if not c.bias_field] == ["CT"]
    assert [n for n, c in contrasts.items() if not c.is_mr] == ["CT"]


@pytest.mark.parametrize(
    ("names", "constrained", "identifiable"),
    [
        (("T1c", "FLAIR"), True, True),
        (("FLAIR", "T2", "T1"), True, False),
        (("T1c",), True, True),
        (("T2", "DIR"), True, False),
        (("T1",), False, False),
        (("CT", "T2"), False, False),
    ],
)
def test_what_can_be_known_of_tumor(names, constrained, identifiable):
    chosen = [contrasts[n] for n in names]
    assert tumor_is_constrained(chosen) is constrained
    assert core_is_identifiable(chosen) is identifiable


def test_mirror_is_an_involution_that_keeps_mixture_and_brain():
    m = labels.mirrored
    assert (m[m] == np.arange(labels.K)).all()
    assert (labels.x_of_l[m] == labels.x_of_l).all()
    assert (labels.in_brain[m] == labels.in_brain).all()
    assert (m != np.arange(labels.K)).sum() == 8


def test_snomed_codes_are_in_the_dicom_dictionary():
    sct = pytest.importorskip("pydicom.sr._concepts_dict").concepts["SCT"]
    known = {(code, meaning) for entry in sct.values() for code, (meaning, _) in entry.items()}
    rows = (*labels.structures, *labels.tumor)
    assert {(r.snomed.value, r.snomed.meaning) for r in rows if r.snomed} <= known
