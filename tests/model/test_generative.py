"""The shape priors that the settings ask for."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tumoar.io.models import default_model
from tumoar.model.generative import FULL, select_prior, temper_priors
from tumoar.model.shape.base import FlatPrior
from tumoar.model.shape.crbm import find_surface_filters
from tumoar.model.shape.mrf import FirstOrderMRF
from tumoar.vocabulary.config import Config, Soft


def test_the_level_of_core_shifts_its_field_alone():
    model = default_model()
    v = np.zeros((20, 20, 20), bool)
    v[6:14, 6:14, 6:14] = True
    region = np.ones(v.shape, bool)
    found = select_prior(model, Config(level_y=-0.75))
    plain, lower = (m.shape_y.field(v, region, key=5) for m in (model, found))
    np.testing.assert_allclose(lower, plain - np.float32(0.75), atol=1e-4)
    assert found.shape_z is model.shape_z


def test_mrf_by_the_settings():
    settings = Config(prior="mrf", beta_z=0.3, beta_y=0.7, mrf_level_y=-0.5)
    found = select_prior(default_model(), settings)
    assert (found.shape_z, found.shape_y) == (FirstOrderMRF(0.3), FirstOrderMRF(0.7, -0.5))


def test_another_prior_has_no_level():
    model = replace(default_model(), shape_y=FlatPrior(-1.0))
    assert select_prior(model, Config(level_y=-1.0)).shape_y == FlatPrior(-1.0)


@pytest.mark.parametrize("level", [np.nan, np.inf])
def test_a_level_is_a_number(level):
    with pytest.raises(ValueError, match="finite"):
        Config(level_y=level)


def test_priors_are_as_trained_where_neighbors_repeat_each_other_and_softest_where_they_do_not():
    model, config = default_model(), Config(soft_z=Soft(strength=0.8, level=-0.1, surface=-0.4))
    shapes = model.shape_z, model.shape_y
    for tau in (0.4, FULL):
        assert temper_priors(shapes, config, tau)[0] is model.shape_z
        assert temper_priors(shapes, config, tau)[1] is model.shape_y
    half, whole = (temper_priors(shapes, config, e)[0] for e in ((1 + FULL) / 2, 1.0))
    np.testing.assert_allclose(whole.w, 0.8 * model.shape_z.w, rtol=1e-6)
    np.testing.assert_allclose(
        half.b, 0.9 * model.shape_z.b - 0.2 * find_surface_filters(model.shape_z), rtol=1e-6
    )
    assert half.a == pytest.approx(0.9 * model.shape_z.a - 0.05)
    assert temper_priors(shapes, config, 1.0)[1].a == pytest.approx(
        config.soft_y.strength * model.shape_y.a + config.soft_y.level
    )


def test_another_prior_is_not_softened():
    shapes = FirstOrderMRF(0.3), FlatPrior(-1.0)
    assert temper_priors(shapes, Config(), 1.0) == shapes


@pytest.mark.parametrize("strength", [0.0, -1.0, 1.1])
def test_a_strength_is_at_most_what_training_gave(strength):
    with pytest.raises(ValueError, match="strength"):
        Soft(strength=strength, level=0.0)
