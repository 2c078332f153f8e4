"""A head turned in the scanner, or in its image, gives the same organs: how far that is true.

python research/turned.py [--quick] [--heads N]

Heads without tumor are drawn from the model at 0.5 mm and scanned as T1c and FLAIR at 1 mm, so that a voxel
may hold more than one tissue, as a patient's do. Each is placed and fitted (Algorithm 2) four times:
`straight`; `again`, scanned with other noise and bias field; `scanned`, lying in the scanner turned by up
to 15 degrees about each axis, again with others; `image`, the straight images turned as much by linear
interpolation, which blurs them once more. The most probable organs are compared with those of the straight
head, in its space, and with what was drawn, in their own. `comparison` is what the first comparison alone
costs a turned head: the organs of the straight one, turned and turned back by the same interpolation.

Prints, as its last line, one JSON object; the full run writes research/results/turned.md.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tumoar.geometry.image import Grid, Image
from tumoar.geometry.resample import resample
from tumoar.inference import gem
from tumoar.inference.initialise import select_voxels
from tumoar.inference.tally import Votes
from tumoar.io.models import default_model
from tumoar.model import joint
from tumoar.model.atlas import pi as label_pi
from tumoar.model.generative import Model
from tumoar.placement.affine import place_affine
from tumoar.preprocess.case import build_case
from tumoar.result.scores import dice
from tumoar.result.segmentation import organ_mask
from tumoar.simulate import Acquisition, Truth, simulate
from tumoar.simulate.head import draw_head
from tumoar.simulate.patient import Maps
from tumoar.simulate.scanner import rigid_motion
from tumoar.vocabulary.config import GemConfig

Masks = Mapping[str, npt.NDArray[np.bool_]]
PROJECT = Path(__file__).resolve().parents[1]
SCANS = ("T1c", "FLAIR")
MOST = 15.0  # degrees
GOAL = 0.97
FINE = 0.5  # mm, of what is scanned
AROUND = 16.0  # mm, so that a turned head stays in its image
QUICK = GemConfig(outer_iterations=1, em_iterations=3, deformation_steps=1)


def fitted(images: Mapping[str, Image], model: Model, config: GemConfig) -> tuple[Grid, Masks]:
    """Most probable organs after Algorithm 2, and their grid."""
    case = build_case(images, register=False)
    placement = place_affine(case, model.atlas)
    fit = gem.fit(case, model.atlas, placement.matrix, model.tumor_mm3, config)
    p = label_pi(fit.placed, fit.nodes)
    background, brain = p[..., fit.placed.atlas.background], p[..., fit.labels.in_brain].sum(-1)
    use = select_voxels(case.D, background, brain, case.grid.spacing.tolist(), case.excluded)
    groups = joint.compile_groups(fit.labels, flat=joint.Flat(config.w, config.u))
    found = joint.find_most_probable(joint.build_volume(case.D, use), p, groups, fit.theta)
    return case.grid, organs(model, Votes(found.l, found.z, found.y))


def organs(model: Model, votes: Votes) -> Masks:
    return {o.name: organ_mask(model.labels, o, votes) for o in model.labels.organs if o.structures}


def padded(label_map: Maps, grid: Grid) -> tuple[Maps, Grid]:
    """The label map with background around it."""
    width = round(AROUND / FINE)
    affine = grid.affine.copy()
    affine[:3, 3] = grid.world(np.full(3, -width))
    x, y, z = (int(n) + 2 * width for n in grid.shape)
    return np.pad(label_map, width), Grid((x, y, z), affine, grid.frame)


def turned(image: Image, motion: npt.NDArray[np.float64]) -> Image:
    """The image on its own grid, each voxel interpolated where the motion leads; air around it."""
    air = float(np.median(np.asarray(image.data[:5], np.float32)))
    data = resample(image.data, image.grid, image.grid, motion, air)
    return Image(data.astype(np.float32), image.grid, image.source)


def true_organs(model: Model, drawn: Truth) -> Masks:
    position = np.zeros(256, np.uint8)
    position[model.labels.indices] = np.arange(model.labels.K)
    return organs(model, Votes(position[drawn.l], drawn.z.view(np.uint8), drawn.y.view(np.uint8)))


def rows(heads: int, config: GemConfig) -> Iterator[dict]:
    """One row per head."""
    model = default_model()
    for seed in range(heads):
        yield {"head": seed, **one_head(model, np.random.default_rng(seed), config)}


def one_head(model: Model, rng: np.random.Generator, config: GemConfig) -> dict:
    """Dice of the organs of each scan with those of the straight one, and with the truth."""
    rng_head, rng_scan, rng_turn, rng_again, rng_turned = rng.spawn(5)
    head, grid = padded(*draw_head(model.atlas, rng_head, spacing=FINE))
    x, y, z = (float(d) for d in rng_turn.uniform(-MOST, MOST, 3))
    motion = rigid_motion((x, y, z), (0, 0, 0), grid.world((np.array(grid.shape) - 1) / 2))

    def scan(
        rng: np.random.Generator, *, by: tuple[float, float, float] = (0.0, 0.0, 0.0)
    ) -> tuple[dict[str, Image], Truth]:
        scans = [Acquisition(name, rotation=by) for name in SCANS]
        return simulate(head, grid, None, scans, model.labels, rng)

    images, drawn = scan(rng_scan)
    truth = true_organs(model, drawn)
    # The images of each, and the way from their space to that of the straight head.
    given = {
        "straight": (images, np.eye(4)),
        "again": (scan(rng_again)[0], np.eye(4)),
        "scanned": (scan(rng_turned, by=(x, y, z))[0], motion),
        "image": ({name: turned(image, motion) for name, image in images.items()}, motion),
    }
    found = {name: fitted(scans, model, config) for name, (scans, _) in given.items()}
    here, straight = found["straight"]
    wide, back = next(iter(images.values())).grid, np.asarray(np.linalg.inv(motion), np.float64)
    same: dict[str, dict[str, float]] = {o: {} for o in straight}
    true: dict[str, dict[str, float]] = {o: {} for o in straight}
    for name, (there, masks) in found.items():
        to_head = given[name][1]
        from_head = np.asarray(np.linalg.inv(to_head), np.float64)
        for o, mask in masks.items():
            true[o][name] = dice(mask, resample(truth[o], grid, there, to_head) > 0.5)
            if name != "straight":
                same[o][name] = dice(straight[o], resample(mask, there, here, from_head) > 0.5)
    for o, mask in straight.items():
        once = resample(mask, here, wide, motion) > 0.5
        same[o]["comparison"] = dice(mask, resample(once, wide, here, back) > 0.5)
    return {"degrees": [round(x, 1), round(y, 1), round(z, 1)], "same": same, "true": true}


def averaged(found: list[dict], what: str) -> dict[str, dict[str, float]]:
    first = found[0][what]
    return {o: {c: float(np.mean([r[what][o][c] for r in found])) for c in first[o]} for o in first}


def table_of(means: Mapping[str, Mapping[str, float]]) -> list[str]:
    columns = list(next(iter(means.values())))
    lines = ["| organ | " + " | ".join(columns) + " |", "|" + "---|" * (len(columns) + 1)]
    return lines + [f"| {o} | " + " | ".join(f"{m[c]:.3f}" for c in columns) + " |" for o, m in means.items()]


def page(found: list[dict]) -> str:
    same, true = averaged(found, "same"), averaged(found, "true")
    lines = ["# Heads turned", "", *__doc__.strip().splitlines()[4:11], ""]
    lines += ["Turned by " + "; ".join(str(r["degrees"]) for r in found) + " degrees.", ""]
    lines += ["Mean Dice over heads with the organs of the straight head:", "", *table_of(same), ""]
    lines += ["Mean Dice over heads with what was drawn:", "", *table_of(true), ""]
    lines += [f"The goal is {GOAL} for every organ, in the first table."]
    for name in ("again", "scanned", "image"):
        low = [o for o, m in same.items() if m[name] < GOAL]
        lines += [f"Below it in `{name}`: {', '.join(low) or 'none'}."]
    return "\n".join(
        [*lines, "", "What was looked for and found: [notes on placement](../notes/0020-placement.md).", ""]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one head, hardly fitted, no page")
    parser.add_argument("--heads", type=int, default=1)
    options = parser.parse_args()
    found = []
    for row in rows(1 if options.quick else options.heads, QUICK if options.quick else GemConfig()):
        found.append(row)
        print(json.dumps(row), flush=True)
    if not options.quick:
        (PROJECT / "research" / "results" / "turned.md").write_text(page(found), encoding="utf-8")
    print(json.dumps({o: {c: round(v, 4) for c, v in m.items()} for o, m in averaged(found, "same").items()}))


if __name__ == "__main__":
    main()
