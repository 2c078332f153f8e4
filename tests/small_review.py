"""A small result with its report, and a server for it in a thread."""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager

import nibabel as nib
import numpy as np
import uvicorn
from small_result import small_result

from tumoar.geometry.image import Grid
from tumoar.io.manifest import REPORT, read_manifest, write_manifest
from tumoar.report import render, report_data
from tumoar.report.page import read_page
from tumoar.report.volumes import pack
from tumoar.result.folder import Options, write_result
from tumoar.web.server import bind


def write_small(out, notes=()):
    """The small result, with its report."""
    result = small_result()
    manifest = {"reference": "T1c", "version": "0.0.1"}
    page = lambda written: render(report_data(result, list(notes), {**manifest, **written}))  # noqa: E731
    write_result(out, result, list(notes), manifest, Options(), page, [])
    return out


@contextmanager
def served(make):
    """Address of an application that `make(token, port)` builds, while it is served."""
    token, listening = "secret", bind(0)
    port = listening.getsockname()[1]
    config = uvicorn.Config(
        make(token, port), log_level="critical", ws="none", timeout_graceful_shutdown=1, lifespan="on"
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{port}/#token={token}"
    finally:
        server.should_exit = True
        thread.join(10)
        listening.close()


def write_spot(out, template, grid, spot):
    """A result with little in it on any grid; its image is black but for a bright spot around one voxel.

    `template` is a folder of `write_small`.
    """
    data, manifest = read_page(template / REPORT), read_manifest(template)
    around = 24
    affine = np.eye(4)
    affine[:3, 3] = np.round(grid.world(spot)) - around
    canonical = Grid((2 * around + 1,) * 3, affine)
    distance = np.linalg.norm(
        canonical.world(np.indices(canonical.shape).reshape(3, -1).T) - grid.world(spot), axis=1
    )
    image = (255 * np.clip(1 - distance / 3, 0, 1)).astype(np.uint8).reshape(canonical.shape)
    contrast = {"name": "T1c", "window": [0.0, 1.0], "nifti": pack(image, canonical)}
    data |= {"contrasts": [contrast], "shown_first": "T1c"}
    for name in ("structures", "probabilities"):
        (out / name).mkdir(parents=True)
    empty = nib.Nifti1Image(np.zeros(grid.shape, np.uint8), grid.affine)
    volumes = [row for row in manifest["volumes"] if row["name"] in ("GTV", "Edema")]
    nib.save(empty, out / "segmentation.nii.gz")
    for row in volumes:
        nib.save(empty, out / "structures" / f"{row['name']}.nii.gz")
        nib.save(empty, out / "probabilities" / f"{row['name']}.nii.gz")
    page = json.dumps(data).replace("<", "\\u003c")
    (out / REPORT).write_text(f'<script type="application/json" id="data">{page}</script>', encoding="utf-8")
    write_manifest(out, {**{k: v for k, v in manifest.items() if k != "files"}, "volumes": volumes})
    return out
