"""Shape priors in a model file."""

from __future__ import annotations

import numpy as np
import pytest
from typer.testing import CliRunner

from tumoar.cli.model import model as cli
from tumoar.io.shapes import section_shape, shape_section
from tumoar.io.store import Section, load_sections, save_sections
from tumoar.model.shape.crbm import CRBM
from tumoar.vocabulary.errors import ModelFileError


def model():
    rng = np.random.default_rng(0)
    return CRBM(rng.normal(size=(3, 2, 2, 2)), rng.normal(size=3), -1.25)


def test_a_stored_prior_is_the_same_prior(tmp_path):
    path = tmp_path / "model.npz"
    save_sections(path, {"shape_z": shape_section(model(), {"subjects": ["one"]})})
    sections = load_sections(path)
    back = section_shape(sections, "shape_z", path)
    np.testing.assert_array_equal(back.w, model().w)
    np.testing.assert_array_equal(back.b, model().b)
    assert back.a == model().a
    assert sections["shape_z"].card["provenance"] == {"subjects": ["one"]}


@pytest.mark.parametrize("fault", ["missing", "orientation", "nan", "size"])
def test_an_unusable_prior_is_refused(fault):
    section = shape_section(model(), {})
    arrays, card = dict(section.arrays), dict(section.card)
    if fault == "orientation":
        card["orientation"] = "convolution"
    if fault == "nan":
        arrays["b"] = np.full(3, np.nan)
    if fault == "size":
        arrays["b"] = np.zeros(4)
    sections = {} if fault == "missing" else {"shape_y": Section(arrays, card)}
    with pytest.raises(ModelFileError, match="shape_y"):
        section_shape(sections, "shape_y", "model.npz")


def test_verify_looks_into_priors(tmp_path):
    path, section = tmp_path / "model.npz", shape_section(model(), {})
    save_sections(path, {"shape_z": section})
    assert CliRunner().invoke(cli, ["verify", str(path)]).output == (
        "valid: shape_z\nincomplete model: atlas, shape_y missing (see `tumoar train combine`)\n"
    )
    save_sections(path, {"shape_z": Section({**section.arrays, "b": np.zeros(4)}, section.card)})
    assert isinstance(CliRunner().invoke(cli, ["verify", str(path)]).exception, ModelFileError)
