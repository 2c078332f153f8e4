"""The table of the second model refines that of the first: merged again, its parts are the first table."""

from __future__ import annotations

import tomllib
from copy import deepcopy
from dataclasses import replace
from importlib.resources import files

import pytest

from tumoar.io.store import labels_to_dict
from tumoar.model import joint
from tumoar.train.head_table import default_heads, refine_heads
from tumoar.vocabulary.errors import ModelFileError
from tumoar.vocabulary.labels import LabelTable, add_cavity, default_labels, parse_labels
from tumoar.vocabulary.parts import brain_labels, brain_parts, refine_labels

FINE, COARSE = brain_labels(), default_labels()


def test_merged_parts_are_the_first_table():
    assert FINE.wholes == tuple(s.name for s in COARSE.structures)
    for k, whole in enumerate(COARSE.structures):
        for l in FINE.parts(whole.name):
            s = FINE.structures[l]
            assert FINE.whole_of_l[l] == k
            assert (s.gmm, s.in_brain, s.trained) == (whole.gmm, whole.in_brain, whole.trained)
            assert s == whole or s.part_of == whole.name
    assert FINE.gmms == COARSE.gmms
    assert FINE.tumor == COARSE.tumor


def test_it_has_at_least_35_structures_and_left_and_right_of_each_that_is_not_in_the_middle():
    parts = [s for s in FINE.structures if s.part_of]
    assert FINE.K >= 35
    assert {s.name for s in parts if s.side is None} == {"third ventricle", "fourth ventricle"}
    for s in parts:
        assert s.side is None or FINE.structures[FINE.l(s.mirror)].mirror == s.name


def test_parts_of_one_structure_share_its_column_of_the_likelihood():
    """So the intensities are fitted as with the first table."""
    columns, coarse = joint.assign_columns(FINE), joint.assign_columns(COARSE)
    assert (columns == coarse[FINE.whole_of_l]).all()


def test_source_codes_of_parts_are_those_of_their_wholes():
    fine, coarse = refine_heads(default_heads(), brain_parts()), default_heads()
    assert fine.codes == coarse.codes
    for name, codes in coarse.structures.items():
        found = [c for l in FINE.parts(name) for c in fine.structures[FINE.structures[l].name]]
        assert sorted(found) == sorted(codes)
    assert set(fine.structures) < {s.name for s in FINE.structures}


def test_organs_of_the_first_table_stay_what_they_were():
    for organ in COARSE.organs:
        wholes = dict.fromkeys(FINE.whole_of_l[FINE.l(name)] for name in FINE.organ(organ.name).structures)
        assert [FINE.wholes[k] for k in wholes] == list(organ.structures)
        assert FINE.organ(organ.name).tumor == organ.tumor


def test_every_part_is_delivered():
    alone = {o.structures[0] for o in FINE.organs if len(o.structures) == 1}
    assert {s.name for s in FINE.structures if s.part_of} <= alone


def test_the_table_survives_the_model_file_and_takes_a_cavity():
    assert parse_labels(labels_to_dict(FINE)) == FINE
    opened = add_cavity(FINE)
    assert opened.structures[-1].index == add_cavity(COARSE).structures[-1].index
    assert isinstance(opened, LabelTable)


def test_a_table_without_parts_has_itself_as_wholes():
    assert COARSE.wholes == tuple(s.name for s in COARSE.structures)
    assert all(COARSE.parts(s.name) == (k,) for k, s in enumerate(COARSE.structures))
    assert COARSE.parts("corpus callosum") == ()


BROKEN = {
    "a part of nothing": lambda t: t["part"][0].update(of="bone"),
    "an index twice": lambda t: t["part"][0]["left"].update(index=22),
    "no color": lambda t: t["part"][0]["left"].pop("color"),
    "only one side": lambda t: t["part"][0].pop("left"),
    "an organ of unknown structures": lambda t: t["organ"][0].update(structures=["left vermis"]),
    "no parts": lambda t: t.pop("part"),
    "tissue that is a word": lambda t: t["part"][0].update(tissue="yes"),
}


@pytest.mark.parametrize("change", BROKEN.values(), ids=BROKEN)
def test_a_broken_table_of_parts_is_refused(change):
    table = deepcopy(tomllib.loads((files("tumoar") / "data/brain.toml").read_text("utf-8")))
    change(table)
    with pytest.raises(ModelFileError, match="invalid"):
        refine_labels(COARSE, table)


def test_source_codes_that_the_whole_does_not_have_are_refused():
    table = deepcopy(dict(brain_parts()))
    table["part"][0]["left"]["codes"] = [506]
    with pytest.raises(ModelFileError, match="source codes of parts"):
        refine_heads(default_heads(), table)


def test_parts_in_the_brain_and_outside_it_are_refused():
    rows = list(FINE.structures)
    for name in ("third ventricle",):
        rows[FINE.l(name)] = replace(rows[FINE.l(name)], in_brain=False)
    with pytest.raises(ModelFileError, match="only some parts of CSF"):
        replace(FINE, structures=tuple(rows))
