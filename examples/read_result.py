"""Print what a finished result contains: python examples/read_result.py OUT"""

import sys

from tumoar import load_result


def main(folder: str) -> None:
    result = load_result(folder)  # every file is checked against the manifest
    print(result.status)
    for note in result.notes:
        print(f"{note.level}: {note}")
    for name in result.structures:
        print(f"{name:14} {result.volume(name).outlined:8.2f} cm³")
    doubtful = (result.probability("GTV") > 0.1) & (result.probability("GTV") < 0.9)
    print(f"{int(doubtful.sum())} voxels may or may not be GTV, of {int(result.mask('GTV').sum())} outlined")


if __name__ == "__main__":
    main(*sys.argv[1:])
