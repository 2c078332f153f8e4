"""Segment a patient's tumor and organs: python examples/first_case.py T1C.nii.gz FLAIR.nii.gz OUT"""

import sys

from tumoar import segment


def main(t1c: str, flair: str, folder: str) -> None:
    # `fast` gives a quick preview; omit it for the full algorithm.
    result = segment(t1c=t1c, flair=flair, output=folder, fast=True)
    for organ in ("GTV", "Edema", "Brainstem", "OpticChiasm"):
        print(organ, result.volume(organ))  # says what its interval is
    print(f"{result.status}: see report.html in the folder")


if __name__ == "__main__":
    main(*sys.argv[1:])
