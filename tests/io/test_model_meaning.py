"""Model files whose bytes are in order and whose content is not: refused, or they can be fitted."""

from __future__ import annotations

import math
import re
from functools import cache

import numpy as np
import pytest
import reference_tetra
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from tumoar.cli.model import model as cli
from tumoar.geometry.image import Grid
from tumoar.io import store
from tumoar.io.models import default_model, load_model, model_of, require_working
from tumoar.io.shapes import shape_section
from tumoar.io.store import Section, atlas_section, save_sections
from tumoar.model.atlas import Atlas, pi, place
from tumoar.model.shape.crbm import CRBM
from tumoar.vocabulary.errors import ModelFileError
from tumoar.vocabulary.labels import default_labels

LABELS = default_labels()


@cache
def whole():
    """The sections of a small whole model."""
    rng = np.random.default_rng(0)
    nodes, tetrahedra = reference_tetra.jittered(
        *reference_tetra.body_centered((3, 3, 3), 40.0, [-60.0] * 3), 4.0, rng
    )
    alpha = rng.dirichlet(np.full(LABELS.K, 0.3), len(nodes)).astype(np.float32)
    atlas = Atlas(nodes, tetrahedra, alpha / alpha.sum(1, keepdims=True), LABELS, 0.1, {"made": "for tests"})
    prior = CRBM(rng.normal(size=(3, 2, 2, 2)), rng.normal(size=3), -1.25)
    about = {"mean_mm3": {"core": 36000.0, "edema": 60000.0}}
    return {
        "atlas": atlas_section(atlas),
        "shape_z": shape_section(prior, about),
        "shape_y": shape_section(prior, about),
    }


def arrays(section, **changes):
    return Section({**section.arrays, **changes}, section.card)


def card(section, **changes):
    return Section(section.arrays, {**section.card, **changes})


def with_atlas(**changes):
    return whole() | {"atlas": arrays(whole()["atlas"], **changes)}


def with_labels(change):
    table = store.labels_to_dict(LABELS)
    change(table)
    return whole() | {"atlas": card(whole()["atlas"], labels=table)}


def nodes(change):
    return with_atlas(nodes=change(whole()["atlas"].arrays["nodes"].copy()))


def twice():
    """A second mesh over the first: every place belongs to two tetrahedra."""
    a = whole()["atlas"].arrays
    count = len(a["nodes"])
    return with_atlas(
        nodes=np.concatenate([a["nodes"], a["nodes"]]),
        tetrahedra=np.concatenate([a["tetrahedra"], a["tetrahedra"] + count]),
        alpha_node=np.concatenate([a["alpha_node"], a["alpha_node"] + count]),
        alpha_label=np.tile(a["alpha_label"], 2),
        alpha_value=np.tile(a["alpha_value"], 2),
    )


def structure(**values):
    return lambda table: table["structure"][1].update(values)


def volumes(**values):
    return whole() | {"shape_z": card(whole()["shape_z"], provenance={"mean_mm3": values})}


def prior(**changes):
    return whole() | {"shape_z": arrays(whole()["shape_z"], **changes)}


ABSURD = {
    "nodes at 1e30": lambda: nodes(lambda n: n * 1e28),
    "nodes at 1e30, moved": lambda: nodes(lambda n: n + 1e30),
    "a head of 10 m": lambda: nodes(lambda n: n * 100),
    "a head of a micrometer": lambda: nodes(lambda n: n * 1e-5),
    "a head of 1e-100 mm": lambda: nodes(lambda n: n * 1e-102),
    "a head elsewhere": lambda: nodes(lambda n: n + 5000),
    "two meshes in one": twice,
    "corners that are no whole numbers": lambda: with_atlas(
        tetrahedra=whole()["atlas"].arrays["tetrahedra"] + 0.25
    ),
    "corners beyond 32 bits": lambda: with_atlas(
        tetrahedra=whole()["atlas"].arrays["tetrahedra"].astype(np.int64) + 2**32
    ),
    "labels that are true or false": lambda: with_atlas(
        alpha_label=whole()["atlas"].arrays["alpha_label"] > 3
    ),
    "stiffness 1e300": lambda: whole() | {"atlas": card(whole()["atlas"], stiffness=1e300)},
    "stiffness 1e-300": lambda: whole() | {"atlas": card(whole()["atlas"], stiffness=1e-300)},
    "stiffness true": lambda: whole() | {"atlas": card(whole()["atlas"], stiffness=True)},
    "stiffness a text": lambda: whole() | {"atlas": card(whole()["atlas"], stiffness="0.1")},
    "no provenance": lambda: whole() | {"atlas": card(whole()["atlas"], provenance=5)},
    "index 0.5": lambda: with_labels(structure(index=0.5)),
    "index true": lambda: with_labels(structure(index=True)),
    "index 300": lambda: with_labels(structure(index=300)),
    "index twice": lambda: with_labels(structure(index=0)),
    "tumor index 1000": lambda: with_labels(lambda t: t["tumor"]["core"].update(index=1000)),
    "name twice": lambda: with_labels(structure(name="background")),
    "a name of escape signs": lambda: with_labels(structure(name="\x1b[31mred")),
    "a name of a list": lambda: with_labels(structure(name=["x"])),
    "a name without end": lambda: with_labels(structure(name="x" * 10_000)),
    "in_brain a text": lambda: with_labels(structure(in_brain="no")),
    "no brain": lambda: with_labels(lambda t: [s.update(in_brain=False) for s in t["structure"]]),
    "half a component": lambda: with_labels(lambda t: t["gmm"][0].update(components=1.5)),
    "scatter 1e300": lambda: with_labels(lambda t: t["gmm"][0].update(scatter=1e300)),
    "a code of numbers": lambda: with_labels(structure(snomed={"value": 5, "meaning": "x"})),
    "a table of lists": lambda: with_labels(lambda t: t.update(tumor=[])),
    "no table": lambda: whole() | {"atlas": card(whole()["atlas"], labels=[])},
    "other structures": lambda: with_labels(structure(name="chalk")),
    "weights of 1e30": lambda: prior(w=whole()["shape_z"].arrays["w"] * 1e30),
    "biases of 1e30": lambda: prior(b=whole()["shape_z"].arrays["b"] * 1e30),
    "bias 1e30": lambda: whole() | {"shape_z": card(whole()["shape_z"], a=1e30)},
    "no filters": lambda: prior(w=np.zeros((0, 2, 2, 2)), b=np.zeros(0)),
    "filters of 60 voxels": lambda: prior(w=np.zeros((3, 30, 30, 30)), b=np.zeros(3)),
    "volumes of 1e300": lambda: volumes(core=1e300, edema=6e4),
    "volumes of 1e-300": lambda: volumes(core=1e-300, edema=6e4),
    "no volumes": lambda: volumes(core=1.0),
    "volumes that are none": lambda: volumes(core=[1], edema={}),
    "another section": lambda: whole() | {"training": whole()["atlas"]},
}


@pytest.mark.parametrize("fault", ABSURD)
def test_a_model_that_means_nothing_is_not_called_in_order(tmp_path, fault):
    path = tmp_path / "model.npz"
    save_sections(path, ABSURD[fault]())
    done = CliRunner().invoke(cli, ["verify", str(path)])
    assert "in order" not in done.output
    assert isinstance(done.exception, ModelFileError), repr(done.exception)
    assert str(done.exception).isprintable()
    if fault != "another section":
        with pytest.raises(ModelFileError):
            load_model([path])


def test_a_small_and_the_shipped_model_are_in_order(tmp_path):
    path = tmp_path / "model.npz"
    save_sections(path, whole())
    assert CliRunner().invoke(cli, ["verify", str(path)]).output == "valid: atlas, shape_y, shape_z\n"
    assert CliRunner().invoke(cli, ["verify"]).output == "valid: atlas, shape_y, shape_z, location\n"
    about = CliRunner().invoke(cli, ["info"]).output
    assert "location/frequency: " in about
    assert re.search("^atlas, heads: .*head_01.*head_18", about, re.M)
    assert len(re.search("^shape_z, subjects: (.*)$", about, re.M)[1].split(", ")) == 140, (
        "as on the model card"
    )
    shipped = default_model()
    about = {"mean_mm3": dict(shipped.tumor_mm3)}
    sections = {
        "atlas": atlas_section(shipped.atlas),
        "shape_z": shape_section(shipped.shape_z, about),
        "shape_y": shape_section(shipped.shape_y, about),
    }
    assert require_working(sections, path) == []


def test_info_prints_no_escape_signs(tmp_path):
    path = tmp_path / "model.npz"
    save_sections(path, whole() | {"atlas": card(whole()["atlas"], provenance={"\x1b[2J": "\x1b]0;x\x07"})})
    done = CliRunner().invoke(cli, ["info", str(path)])
    assert done.exit_code == 0
    assert "\x1b" not in done.output


# ---- fuzz --------------------------------------------------------------------------------------------------

NUMBERS = st.sampled_from(
    [
        0,
        -1,
        1,
        2,
        255,
        256,
        0.5,
        1e-300,
        1e-9,
        0.05,
        1e3,
        1e30,
        1e300,
        -1e30,
        True,
        False,
        None,
        "x",
        "",
        [],
        {},
    ]
)
FACTORS = st.sampled_from([0.0, -1.0, 1e-30, 1e-3, 0.5, 0.99, 1.0, 1.001, 1.5, 10.0, 1e3, 1e30])
ARRAYS = [("atlas", k) for k in ("nodes", "tetrahedra", "alpha_node", "alpha_label", "alpha_value")]
ARRAYS += [("shape_z", "w"), ("shape_z", "b"), ("shape_y", "w")]
ROWS = ("structure", "gmm", "organ")


@st.composite
def models(draw):
    """A whole model with one to three of its values replaced."""
    sections = dict(whole())
    for _ in range(draw(st.integers(1, 3))):
        what = draw(st.sampled_from(["scale", "element", "shape", "card", "row", "volume"]))
        if what in ("scale", "element", "shape"):
            name, key = draw(st.sampled_from(ARRAYS))
            array = sections[name].arrays[key].copy()
            if what == "scale":
                with np.errstate(all="ignore"):
                    array = (array * draw(FACTORS)).astype(array.dtype)
            elif what == "element" and array.size:
                at = draw(st.integers(0, array.size - 1))
                with np.errstate(all="ignore"):
                    new = np.float64(array.flat[at]) * draw(FACTORS) + draw(st.sampled_from([0, 1, -1, 100]))
                    array.flat[at] = new.astype(array.dtype)
            else:
                array = draw(
                    st.sampled_from([array[:-1], array[:0], array.T, array.reshape(-1), array[None]])
                )
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                array = np.zeros_like(array)
            sections[name] = arrays(sections[name], **{key: np.ascontiguousarray(array)})
        elif what == "card":
            name, key = draw(
                st.sampled_from([
                    ("atlas", "stiffness"), ("atlas", "labels"), ("atlas", "provenance"),
                    ("shape_z", "a"), ("shape_z", "provenance"), ("shape_y", "tied"),
                ])
            )  # fmt: skip
            sections[name] = card(sections[name], **{key: draw(NUMBERS)})
        elif what == "row":
            table = store.labels_to_dict(LABELS)
            row = draw(st.sampled_from(table[draw(st.sampled_from(ROWS))]))
            row[draw(st.sampled_from(sorted(row)))] = draw(NUMBERS)
            sections["atlas"] = card(sections["atlas"], labels=table)
        else:
            part = {"core": 36000.0, "edema": 60000.0}
            part[draw(st.sampled_from(sorted(part)))] = draw(NUMBERS)
            sections["shape_z"] = card(sections["shape_z"], provenance={"mean_mm3": part})
    return sections


@settings(max_examples=150, deadline=None, derandomize=True)
@given(sections=models())
def test_an_accepted_model_can_be_used(sections):
    try:
        lacking = require_working(sections, "model.npz")
        found = model_of(sections, {}, ["model.npz"])
    except ModelFileError:
        return
    assert lacking == []
    atlas = found.atlas
    assert np.abs(atlas.box).max() <= 1000
    assert all(0 < v < math.inf for v in found.tumor_mm3.values())
    placed = place(atlas, np.eye(4), Grid((12, 12, 12), np.diag([12.0, 12, 12, 1])))
    assert np.isfinite(pi(placed, placed.reference)).all()
