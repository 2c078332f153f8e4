"""Outline a patient's tumor and organs: python examples/first_case.py T1C.nii.gz FLAIR.nii.gz REPORT.html"""

import sys

from tumoar import Case, Model, segment
from tumoar.vocabulary.config import FAST


def main(t1c: str, flair: str, page: str) -> None:
    case = Case.from_files(t1c=t1c, flair=flair)
    result = segment(case, Model.default(), FAST, seed=0)  # leave FAST away for the full algorithm
    for organ in ("GTV", "Edema", "Brainstem", "OpticChiasm"):
        volume = result.volume(organ)
        low, high = volume.spread(0.90)
        print(
            f"{organ}: {volume.outlined:.1f} cm³ outlined; spread of the samples {low:.1f} to {high:.1f} cm³"
        )
    result.report(page)


if __name__ == "__main__":
    main(*sys.argv[1:])
