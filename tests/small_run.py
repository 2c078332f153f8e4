"""A whole run on the small head: no search for the placement, few sweeps."""

from __future__ import annotations

from functools import cache

import numpy as np
import small_head

from tumoar.app.pipeline import segment
from tumoar.model.generative import Model
from tumoar.model.shape.mrf import FirstOrderMRF
from tumoar.vocabulary.config import Config, GemConfig, GibbsConfig, Level

MODEL = Model(small_head.atlas(), FirstOrderMRF(0.4), FirstOrderMRF(0.4), small_head.TUMOR_MM3, {"a": "b"})
CONFIG = Config(
    gtv="enhancing",  # the core of the small head is smaller than a measurable one
    gem=GemConfig(levels=(Level(spacing=1, smoothing=0),), outer_iterations=2, em_iterations=12),
    gibbs=GibbsConfig(burn_in=14, samples=10),
)


class Memory(dict):
    """Keeps checkpoints in memory; the placement is known from the start."""

    def __init__(self):
        names = np.array(["gain"])
        super().__init__(place={"matrix": np.eye(4), "figures": np.array([0.5]), "names": names})

    def load(self, name):
        return self.get(name)

    def save(self, name, arrays):
        self[name] = {k: np.array(v) for k, v in arrays.items()}


def stand_ins(case=None, model=None):
    """What makes `tumoar segment` a run on the small head: objects, names, and what takes their place."""
    from tumoar.app import pipeline
    from tumoar.app import segment as use_case
    from tumoar.placement.affine import AffineResult

    place = AffineResult(np.eye(4), {"gain": 0.5})
    return (
        (pipeline, "place_affine", lambda case, atlas: place),
        (pipeline, "EVERY", 2),
        (use_case, "load", lambda path: model or MODEL),
        (use_case, "resolve", lambda *a, **k: CONFIG),
        (use_case, "read", lambda *a: ({}, {}, ())),
        (use_case, "assemble", lambda *a: case or small_head.case()),
    )


def run(case=None, config=CONFIG, keeper=None, **rest):
    case = small_head.case() if case is None else case
    return segment(case, MODEL, config, seed=3, keeper=keeper or Memory(), **rest)


@cache
def finished():
    """The result of a run, made once; nothing in it may be changed."""
    return run()
