"""What a finished result holds: python examples/read_result.py OUT"""

import sys

from tumoar import load_result


def main(folder: str) -> None:
    result = load_result(folder)  # every file is checked against the manifest
    print(result.manifest["status"])
    for note in result.manifest["notes"]:
        print(f"review: {note['text']}")
    for row in result.manifest["volumes"]:
        print(f"{row['name']:14} {row['outlined_cm3']:8.2f} cm³ in {row['components']} parts")
    doubtful = (result.probability("GTV") > 0.1) & (result.probability("GTV") < 0.9)
    print(f"{int(doubtful.sum())} voxels may or may not be GTV, of {int(result.mask('GTV').sum())} outlined")


if __name__ == "__main__":
    main(*sys.argv[1:])
