"""The shape priors that the settings ask for."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tumoar.config import Config
from tumoar.io.models import default_model
from tumoar.model.generative import with_prior
from tumoar.model.shape.base import FlatPrior
from tumoar.model.shape.mrf import FirstOrderMRF


def test_the_level_of_core_shifts_its_field_alone():
    model = default_model()
    v = np.zeros((20, 20, 20), bool)
    v[6:14, 6:14, 6:14] = True
    region = np.ones(v.shape, bool)
    found = with_prior(model, Config(level_y=-0.75))
    plain, lower = (m.shape_y.field(v, region, key=5) for m in (model, found))
    np.testing.assert_allclose(lower, plain - np.float32(0.75), atol=1e-4)
    assert found.shape_z is model.shape_z


def test_mrf_by_the_settings():
    found = with_prior(default_model(), Config(prior="mrf", beta_z=0.3, beta_y=0.7))
    assert (found.shape_z, found.shape_y) == (FirstOrderMRF(0.3), FirstOrderMRF(0.7))


def test_another_prior_has_no_level():
    model = replace(default_model(), shape_y=FlatPrior(-1.0))
    assert with_prior(model, Config(level_y=-1.0)).shape_y == FlatPrior(-1.0)


@pytest.mark.parametrize("level", [np.nan, np.inf])
def test_a_level_is_a_number(level):
    with pytest.raises(ValueError, match="finite"):
        Config(level_y=level)
