"""What one run writes: no name of a file, a folder, a patient, a user or a machine in any of it."""

import gzip
import json
import sys
from dataclasses import replace

import numpy as np
import pytest
import small_head
from rt_files import PLANTED, planted_in, write_series
from small_run import stand_ins

from tumoar.app import segment as use_case
from tumoar.cli import main
from tumoar.geometry.image import Grid
from tumoar.io.nifti import write_nifti

NAMES = [
    "MUELLER",
    "HANS19501224",
    "Zimmer7",
    "AMBULANZ",
    "Station12",
    "DrEisenbarth",
    "Oncology9",
    "PlantedTag",
]


@pytest.fixture
def outputs(tmp_path, monkeypatch, capfd):
    """A finished run on images and folders that are named as nobody should name them."""
    assemble = use_case.assemble

    def small(*arguments):
        """What was read, in the grid of the small head, where its atlas fits."""
        real, case = assemble(*arguments), small_head.case()
        inputs = tuple(replace(i, source=r.source) for i, r in zip(case.inputs, real.inputs, strict=True))
        return replace(case, inputs=inputs, notes=real.notes)

    monkeypatch.setattr(use_case, "assemble", small)
    for place, name, value in stand_ins():
        if name in ("place_affine", "EVERY", "load", "resolve"):
            monkeypatch.setattr(place, name, value)
    for name in ("HOSTNAME", "USER", "LOGNAME", "HOST"):
        monkeypatch.setenv(name, "Oncology9")
    for place in ("socket.gethostname", "platform.node"):
        monkeypatch.setattr(place, lambda: "Station12")
    folder = tmp_path / "AMBULANZ" / "Zimmer7 DrEisenbarth"
    folder.mkdir(parents=True)
    case = small_head.case()
    images = np.exp(case.D)
    grid = Grid(
        (small_head.SIZE,) * 3, np.array([[1.0, 0, 0, -24], [0, 1, 0, -24], [0, 0, 1, -24], [0, 0, 0, 1]])
    )
    one = folder / "MUELLER_HANS19501224_T1c.nii.gz"
    write_nifti(one, images[0].astype(np.float32), grid)
    raw = bytearray(gzip.decompress(one.read_bytes()))
    raw[148 : 148 + 10] = b"PlantedTag"  # the description of the header
    one.write_bytes(gzip.compress(bytes(raw)))
    write_series(folder / "MUELLER_FLAIR", images[1][::-1, ::-1], Grid(grid.shape, grid.affine @ TURNED))
    out = tmp_path / "out"
    flags = ("--whole-head", "--no-register", "--margins", "ctv=3,ptv=1")
    with pytest.raises(SystemExit) as end:
        main(["segment", "--t1c", str(one), "--flair", str(folder / "MUELLER_FLAIR"), "-o", str(out), *flags])
    assert end.value.code == 0, capfd.readouterr().err
    return [p for p in out.rglob("*") if p.is_file()]


TURNED = np.array(
    [[-1.0, 0, 0, small_head.SIZE - 1], [0, -1, 0, small_head.SIZE - 1], [0, 0, 1, 0], [0, 0, 0, 1]]
)


def test_nothing_that_a_run_writes_names_a_person_a_file_or_a_machine(outputs, tmp_path):
    assert {"run.json", "report.html", "log.txt", "volumes.tsv"} <= {p.name for p in outputs}
    for path in outputs:
        assert planted_in(path) == [], path.name
        content = path.read_bytes()
        if content[:2] == b"\x1f\x8b":
            content = gzip.decompress(content)
        for name in (*NAMES, str(tmp_path), sys.prefix, *PLANTED):
            for form in {name, json.dumps(name)[1:-1]}:
                assert form.lower().encode() not in content.lower(), f"{name} in {path.name}"
