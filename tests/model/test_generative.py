"""The shape priors that the settings ask for."""

from __future__ import annotations

import numpy as np
import pytest

from tumoar.config import Config
from tumoar.io.models import default_model
from tumoar.model.generative import leveled, with_prior
from tumoar.model.shape.base import FlatPrior
from tumoar.model.shape.mrf import FirstOrderMRF


def test_a_level_shifts_the_field():
    model = default_model()
    v = np.zeros((20, 20, 20), bool)
    v[6:14, 6:14, 6:14] = True
    region = np.ones(v.shape, bool)
    plain, lower = (m.field(v, region, key=5) for m in (model.shape_y, leveled(model.shape_y, -0.75)))
    np.testing.assert_allclose(lower, plain - np.float32(0.75), atol=1e-4)


def test_crbms_by_default():
    model = default_model()
    assert with_prior(model, Config()) is model


def test_mrf_by_the_settings():
    found = with_prior(default_model(), Config(prior="mrf", beta_z=0.3, beta_y=0.7))
    assert (found.shape_z, found.shape_y) == (FirstOrderMRF(0.3), FirstOrderMRF(0.7))


def test_another_prior_has_no_level():
    assert leveled(FlatPrior(-1.0), -1.0) == FlatPrior(-1.0)


@pytest.mark.parametrize("level", [np.nan, np.inf])
def test_a_level_is_a_number(level):
    with pytest.raises(ValueError, match="finite"):
        Config(level_y=level)
