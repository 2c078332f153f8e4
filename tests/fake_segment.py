"""Stands in for the process of one subject: does at once what the text in its first image says.

good, bad, hang, greedy, crash (the first time only), busy (the first time only), slow (one second).
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

from tumoar.io.manifest import write_manifest

GTV = {
    "name": "GTV", "outlined_cm3": 2.0, "mean_cm3": 2.0, "sd_cm3": 0.5, "p05_cm3": 1.0, "p95_cm3": 3.0,
}  # fmt: skip


def main() -> None:
    arguments = sys.argv[2:]
    out = Path(arguments[arguments.index("--output") + 1])
    image, _, contrast = arguments[arguments.index("--image") + 1].rpartition(":")
    kind = Path(image).read_text().split()[0]
    turns = out.parent.parent / "turns"
    turns.mkdir(exist_ok=True)
    with open(turns / out.name, "a") as file:
        file.write(f"{os.getpid()} {' '.join(arguments[-2:])}\n")
    first = len((turns / out.name).read_text().splitlines()) == 1
    print(json.dumps({"event": "progress", "stage": "fit", "done": 1, "total": 4}), flush=True)
    if kind == "bad":
        print(f"E5-B23 no signal in T1c | file: {Path(image).name}", file=sys.stderr)
        sys.exit(5)
    if kind == "hang":
        time.sleep(600)
    if kind == "greedy":
        block = b"x" * 300_000_000
        time.sleep(600 + len(block) * 0)
    if kind == "crash" and first:
        os.kill(os.getpid(), signal.SIGSEGV)
    if kind == "busy" and first:
        print("E11-B59 another run works on this output", file=sys.stderr)
        sys.exit(11)
    if kind == "slow":
        time.sleep(1)
    publish(out, contrast, kind)


def publish(out: Path, contrast: str, kind: str) -> None:
    """A result as small as can be; one that is there already stays."""
    if out.exists():
        return
    work = out.with_name(f".{out.name}.{os.getpid()}")
    work.mkdir(parents=True)
    (work / "structures").mkdir()
    for name in ("segmentation", "structures/GTV"):
        (work / f"{name}.nii.gz").write_text(kind)
    manifest = {
        "reference": contrast,
        "status": "OK",
        "notes": [],
        "inputs": [{"contrast": contrast}],
        "seconds": {"fit": 0.1},
        "volumes": [GTV],
    }
    write_manifest(work, manifest)
    os.rename(work, out)


def follow() -> None:
    os.read(0, 1)
    os._exit(1)


if __name__ == "__main__":
    threading.Thread(target=follow, daemon=True).start()
    main()
