"""Segment a simulated patient and score it against the truth: python examples/score_against_truth.py SEED"""

import sys

import numpy as np

from tumoar import Config, Model, segment
from tumoar.preprocess.case import build_case, resample_to_input
from tumoar.result.scores import dice
from tumoar.simulate import Acquisition, draw_patient
from tumoar.vocabulary.config import FAST


def main(seed: int, config: Config = FAST) -> dict[str, float]:
    model = Model.default()
    scans = [Acquisition(name, (1.0, 1.0, 1.0)) for name in ("T1c", "FLAIR", "T2")]
    images, truth = draw_patient(model, scans, seed)
    result = segment(build_case(images), model, config, seed=0)
    scores = {}
    for name, true in (("tumor", truth.z), ("core", truth.y)):
        found = result.votes.z if name == "tumor" else result.votes.y
        scores[name] = dice(resample_to_input(found.astype(np.float32), result.case, "T1c") > 0.5, true)
        print(f"{name}: Dice {scores[name]:.3f}")
    return scores


if __name__ == "__main__":
    main(int(sys.argv[1]))
