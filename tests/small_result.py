"""A finished segmentation of the small head, made up from its truth: no algorithm runs."""

from __future__ import annotations

import numpy as np
import small_head

from tumoar.inference.gem import Fit, Step, place_atlas
from tumoar.inference.gibbs import SweepInfo
from tumoar.inference.initialise import tie_core_components
from tumoar.inference.tally import Tally
from tumoar.model.gmm import Theta
from tumoar.model.joint import Labels
from tumoar.placement.affine import AffineResult
from tumoar.result.segmentation import Segmentation
from tumoar.vocabulary.config import Config, GibbsConfig
from tumoar.vocabulary.labels import LabelTable

CONFIG = Config(gibbs=GibbsConfig(burn_in=3, samples=6))


def theta(table: LabelTable, contrasts: int = 2) -> Theta:
    """The means that drew the head; mixtures that it lacks lie at zero."""
    mu = np.zeros((table.Q, contrasts))
    for name, mean in small_head.MEANS.items():
        mu[table.component_slice(table.x_named(name))] = mean
    C = np.zeros((contrasts, 4, 4, 4))
    C[0, 1, 0, 0] = 0.2
    gamma = (1 / table.G)[table.x_of_component]
    return Theta(gamma, mu, np.tile(small_head.SD**2 * np.eye(contrasts), (table.Q, 1, 1)), C)


def small_result(tumor: bool = True) -> Segmentation:
    """Six samples of z and y, each without a random tenth of its voxels."""
    rng = np.random.default_rng(0)
    table, case = small_head.LABELS, small_head.case(bias=0.2, tumor=tumor)
    l, z, y = small_head.truth()
    tally, infos = Tally(table, np.ones(case.grid.shape, np.uint8)), []
    for sweep in range(1, CONFIG.gibbs.burn_in + CONFIG.gibbs.samples + 1):
        keep = tumor * (rng.random(l.shape) > 0.1)
        sample = Labels(l, (z * keep).astype(np.uint8), (y * keep).astype(np.uint8))
        infos.append(SweepInfo(sweep, int(sample.z.sum()), int(sample.y.sum()), 0))
        if sweep > CONFIG.gibbs.burn_in:
            tally.add(sample)
    few = tie_core_components(table)
    placed = place_atlas(case, small_head.atlas(), np.eye(4), CONFIG.gem)
    trace = tuple(
        Step(level, outer, kind, -3 + level + 0.1 * outer)
        for level in (0, 1)
        for outer in range(4)
        for kind in ("theta", "nodes")
    )
    maps = (np.full(case.grid.shape, 0.1, np.float16), np.ones(case.grid.shape, np.float16))
    return Segmentation(
        case=case,
        table=table,
        placement=AffineResult(np.eye(4), {"gain": 0.5}),
        fit=Fit(theta(few), placed.reference, placed, few, trace, *maps),
        theta=theta(table),
        tallies=(tally,),
        infos=(tuple(infos),),
        config=CONFIG,
        seed=7,
        seconds={"place": 1.0, "fit": 2.0, "sample": 3.5},
    )
