"""A head that is turned in its image gives the same organs: how far that is true.

python experiments/turned.py [--quick] [--heads N]

Heads without tumor are drawn from the model and scanned as T1c and FLAIR at 1 mm; their images are then
turned by up to 15 degrees about each axis, which blurs them. Both are placed and fitted (Algorithm 2), and
their most probable organs compared in the space of the first. `turned alone` is what the comparison itself
costs: the organs of the first, turned and turned back by the same interpolation. `truth` is the Dice of both
results with what was drawn.

Prints, as its last line, one JSON object; the full run writes docs/results/turned.md.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tumoar.assemble import build_case
from tumoar.config import GemConfig
from tumoar.evaluate import dice
from tumoar.image import Grid, Image
from tumoar.inference import gem
from tumoar.inference.affine import place_affine
from tumoar.inference.gibbs import Votes
from tumoar.inference.initialise import voxels_in_use
from tumoar.inference.resample import resample
from tumoar.io.models import default_model
from tumoar.model import joint
from tumoar.model.atlas import pi as label_pi
from tumoar.model.generative import Model
from tumoar.result import organ_mask
from tumoar.simulate import Acquisition, simulate
from tumoar.simulate.head import draw_head
from tumoar.simulate.scanner import rigid_motion

Masks = Mapping[str, npt.NDArray[np.bool_]]
PROJECT = Path(__file__).resolve().parents[1]
SCANS = ("T1c", "FLAIR")
MOST = 15.0  # degrees
GOAL = 0.97
AROUND = 24  # voxels, so that a turned head stays in its image
QUICK = GemConfig(outer_iterations=1, em_iterations=3, deformation_steps=1)


def fitted(images: Mapping[str, Image], model: Model, config: GemConfig) -> tuple[Grid, Masks]:
    """Most probable organs after Algorithm 2, and their grid."""
    case = build_case(images, register=False)
    placement = place_affine(case, model.atlas)
    fit = gem.fit(case, model.atlas, placement.matrix, model.tumor_mm3, config)
    p = label_pi(fit.placed, fit.nodes)
    background, brain = p[..., fit.placed.atlas.background], p[..., fit.labels.in_brain].sum(-1)
    use = voxels_in_use(case.D, background, brain, case.grid.spacing.tolist(), case.excluded)
    groups = joint.compile_groups(fit.labels, flat=joint.Flat(config.w, config.u))
    found = joint.most_probable(joint.volume(case.D, use), p, groups, fit.theta)
    return case.grid, organs(model, Votes(found.l, found.z, found.y))


def organs(model: Model, votes: Votes) -> Masks:
    return {o.name: organ_mask(model.labels, o, votes) for o in model.labels.organs if o.structures}


def turned(image: Image, motion: npt.NDArray) -> Image:
    """The image on a wider grid, each voxel taken from where the motion leads; air around it."""
    affine = image.grid.affine.copy()
    affine[:3, 3] = image.grid.world(np.full(3, -AROUND))
    x, y, z = (int(n) + 2 * AROUND for n in image.grid.shape)
    wide = Grid((x, y, z), affine, image.grid.frame)
    air = float(np.median(image.data[:5]))
    data = resample(image.data, image.grid, wide, motion, air)
    return Image(data.astype(np.float32), wide, image.source)


def rows(heads: int, config: GemConfig) -> Iterator[dict]:
    """One row per head."""
    model = default_model()
    for seed in range(heads):
        rng_head, rng_scan, rng_turn = np.random.default_rng(seed).spawn(3)
        head, grid = draw_head(model.atlas, rng_head)
        scans = [Acquisition(name) for name in SCANS]
        images, drawn = simulate(head, grid, None, scans, model.labels, rng_scan)
        degrees = rng_turn.uniform(-MOST, MOST, 3)
        motion = rigid_motion(degrees, (0, 0, 0), grid.world((np.array(grid.shape) - 1) / 2))
        back = np.linalg.inv(motion)
        here, straight = fitted(images, model, config)
        there, other = fitted({name: turned(i, motion) for name, i in images.items()}, model, config)
        position = np.zeros(256, np.uint8)
        position[model.labels.indices] = np.arange(model.labels.K)
        truth = organs(model, Votes(position[drawn.l], drawn.z, drawn.y))
        scores = {}
        for name, mask in straight.items():
            true = resample(truth[name], drawn.grid, here) > 0.5
            once = resample(mask, here, there, motion) > 0.5
            again = resample(other[name], there, here, back) > 0.5
            scores[name] = {
                "turned": dice(mask, again),
                "turned alone": dice(mask, resample(once, there, here, back) > 0.5),
                "truth, straight": dice(mask, true),
                "truth, turned": dice(again, true),
            }
        yield {"head": seed, "degrees": degrees.round(1).tolist(), "scores": scores}


def page(found: list[dict], means: dict[str, dict[str, float]]) -> str:
    columns = list(next(iter(means.values())))
    lines = ["# Heads turned", "", *__doc__.strip().splitlines()[4:9], ""]
    lines += ["Turned by " + "; ".join(str(r["degrees"]) for r in found) + " degrees. Mean Dice:", ""]
    lines += ["| organ | " + " | ".join(columns) + " |", "|" + "---|" * (len(columns) + 1)]
    lines += [f"| {o} | " + " | ".join(f"{m[c]:.3f}" for c in columns) + " |" for o, m in means.items()]
    low = [o for o, m in means.items() if m["turned"] < GOAL]
    told = f"Below it: {', '.join(low)}." if low else "All reach it."
    return "\n".join([*lines, "", f"The goal is {GOAL} for every organ. {told}", ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one head, hardly fitted, no page")
    parser.add_argument("--heads", type=int, default=1)
    options = parser.parse_args()
    found = []
    for row in rows(1 if options.quick else options.heads, QUICK if options.quick else GemConfig()):
        found.append(row)
        print(row["head"], row["degrees"], {o: round(s["turned"], 3) for o, s in row["scores"].items()})
    names, columns = found[0]["scores"], next(iter(found[0]["scores"].values()))
    means = {o: {c: float(np.mean([r["scores"][o][c] for r in found])) for c in columns} for o in names}
    if not options.quick:
        (PROJECT / "docs" / "results" / "turned.md").write_text(page(found, means), encoding="utf-8")
    print(json.dumps({o: round(m["turned"], 4) for o, m in means.items()}))


if __name__ == "__main__":
    main()
