"""Tables are checked when they are loaded, and adding an organ or a contrast is adding rows."""

from __future__ import annotations

import copy
import tomllib
from importlib.resources import files

import pytest

from tumoar.vocabulary.contrasts import find_contrast, parse_contrasts
from tumoar.vocabulary.errors import ModelFileError, UsageError
from tumoar.vocabulary.labels import default_labels, parse_labels


def _table(name):
    return tomllib.loads(files("tumoar").joinpath(f"data/{name}.toml").read_text(encoding="utf-8"))


@pytest.fixture
def rows():
    return _table("labels")


def test_adding_an_organ_is_adding_rows(rows):
    rows["gmm"].append({"name": "cochlea", "components": 1})
    rows["structure"].append(
        {"name": "cochlea", "index": 40, "in_brain": False, "gmm": "cochlea", "color": "#123456"}
    )
    rows["organ"].append({"name": "Cochlea", "kind": "ORGAN", "structures": ["cochlea"]})
    before = default_labels()
    labels = parse_labels(rows)
    for count in ("K", "X", "Q"):
        assert getattr(labels, count) == getattr(before, count) + 1
    assert len(labels.states) == len(before.states) + 1
    assert labels.x(labels.l("cochlea"), 0, 0) == labels.x_named("cochlea")


def _structure(rows, name):
    return next(s for s in rows["structure"] if s["name"] == name)


BROKEN = {
    "a name twice": lambda r: r["structure"].append(copy.deepcopy(r["structure"][1])),
    "an index twice": lambda r: _structure(r, "CSF").update(index=1),
    "an index that tumor has": lambda r: _structure(r, "CSF").update(index=18),
    "no air": lambda r: _structure(r, "background").update(index=99),
    "an unknown gmm": lambda r: _structure(r, "CSF").update(gmm="water"),
    "an unused gmm": lambda r: r["gmm"].append({"name": "water", "components": 1}),
    "a structure on the tumor gmm": lambda r: _structure(r, "CSF").update(gmm="core"),
    "no component": lambda r: r["gmm"][0].update(components=0),
    "two cores": lambda r: r["gmm"][2].update(role="core"),
    "a mirror on the same side": lambda r: _structure(r, "left hippocampus").update(side="right"),
    "a side without mirror": lambda r: _structure(r, "left hippocampus").pop("mirror"),
    "a color that is none": lambda r: _structure(r, "CSF").update(color="blue"),
    "an unknown key": lambda r: _structure(r, "CSF").update(colour="#000000"),
    "an organ of unknown parts": lambda r: r["organ"][0].update(structures=["liver"]),
    "an organ of nothing": lambda r: r["organ"][0].update(tumor=[]),
    "an organ name with a path": lambda r: r["organ"][0].update(name="../GTV"),
    "no tumor table": lambda r: r.pop("tumor"),
}


@pytest.mark.parametrize("how", BROKEN)
def test_broken_label_table_is_refused(rows, how):
    BROKEN[how](rows)
    with pytest.raises(ModelFileError, match="invalid label table"):
        parse_labels(rows)


BROKEN_CONTRASTS = {
    "an unknown key": {"bias": True},
    "an unknown transform": {"transform": "sqrt"},
    "half a tumor start": {"tumor_start": {"core": 1.0}},
    "an unknown gmm": {"constraints": [{"gmm": "bone", "op": ">=", "refs": ["GWM"]}]},
    "an unknown reference": {"constraints": [{"gmm": "core", "op": ">=", "refs": ["bone"]}]},
    "a component too many": {"constraints": [{"gmm": "core", "component": 3, "op": ">=", "refs": ["GWM"]}]},
    "an unknown relation": {"constraints": [{"gmm": "core", "op": ">", "refs": ["GWM"]}]},
    "a negative factor": {"constraints": [{"gmm": "core", "op": ">=", "refs": ["GWM"], "factor": -1.0}]},
    "like an unknown one": {"like": "T7"},
    "ratios of Hounsfield units": {
        "transform": "hounsfield",
        "constraints": [{"gmm": "core", "op": ">=", "refs": ["GWM"]}],
    },
}


@pytest.mark.parametrize("how", BROKEN_CONTRASTS)
def test_broken_contrast_is_refused(how):
    table = _table("contrasts")
    row = BROKEN_CONTRASTS[how]
    base = {} if "like" in row else {"bias_field": True, "transform": "log", "tumor_start": "like-normal"}
    table["new"] = base | row
    with pytest.raises(ModelFileError, match="invalid contrast 'new'"):
        parse_contrasts(table, default_labels())


def test_adding_a_contrast_is_adding_a_row():
    table = _table("contrasts") | {
        "SWI": {"bias_field": True, "transform": "log", "tumor_start": "like-normal"}
    }
    assert find_contrast("swi", parse_contrasts(table, default_labels())).name == "SWI"


def test_unknown_contrast_names_the_known_ones():
    with pytest.raises(UsageError, match="T1c, T2, FLAIR"):
        find_contrast("T7")
