"""The stored state of a chain: read back as it was, within the stated rounding."""

from dataclasses import replace

import numpy as np
import pytest
from small_run import finished

from tumoar.model.atlas import pi
from tumoar.numerics.voxels import WITH_DATA
from tumoar.result.state import NATS, STEP, read_state, write_state


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    result = finished()
    factor = np.random.default_rng(0).uniform(0.02, 1, result.fit.factor.shape).astype(np.float16)
    result = replace(result, fit=replace(result.fit, factor=factor))
    path = tmp_path_factory.mktemp("state") / "state.npz"
    write_state(path, result)
    return result, read_state(path)


def test_a_state_is_read_back_as_the_chain_left_it(both):
    result, state = both
    box = tuple(slice(f, f + n) for f, n in zip(state.first, state.use.shape))
    assert state.shape == result.case.grid.shape
    assert np.allclose(state.grid.affine[:3, 3], result.case.grid.world(state.first))
    for name in ("l", "z", "y"):
        assert np.array_equal(getattr(state.labels, name), getattr(result.last.labels, name)[box])
    seen = state.use == WITH_DATA
    assert seen.any()
    assert np.abs(state.D - result.case.D[(slice(None), *box)])[:, seen].max() <= STEP / 2
    z = np.zeros(result.case.grid.shape, np.uint8)
    z.ravel()[result.tally.at] = result.tally.z
    assert np.array_equal(state.votes_z, z[box])
    assert not z.sum() - z[box].sum(), "no tumor is outside the box"
    assert state.samples == result.tally.samples
    assert np.array_equal(state.islands, result.islands[box])
    factor = np.log(result.fit.factor.astype(np.float32))[box]
    assert np.abs(state.log_factor - factor).max() <= NATS / 2 + 1e-6
    for name, value in vars(result.theta).items():
        assert np.array_equal(getattr(state.theta, name), value)
    assert state.tau == result.config.gibbs.tau


def test_the_prior_of_the_stored_mesh_is_that_of_the_fit(both):
    result, state = both
    box = tuple(slice(f, f + n) for f, n in zip(state.first, state.use.shape))
    assert np.abs(pi(state.placed, state.nodes) - pi(result.fit.placed, result.last.nodes)[box]).max() < 1e-4
