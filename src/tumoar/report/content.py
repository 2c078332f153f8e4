"""Content of the report as plain values: numbers, texts, volumes and pictures.

It contains no file or folder names, which may include a patient's name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy.spatial.transform import Rotation

from tumoar.geometry.image import Case, Input
from tumoar.report.bands import band_pictures
from tumoar.report.face import without_face
from tumoar.report.intensity import bias_fields, intensity_models
from tumoar.report.lines import Line
from tumoar.report.pictures import map_pictures, pictures
from tumoar.report.volumes import (
    Bytes,
    Windowed,
    apply_windows,
    center,
    contrast_volumes,
    entropy_bytes,
    label_volume,
    map_volumes,
    pack_line,
)
from tumoar.result.folder import WHOLE_ROW, status
from tumoar.result.segmentation import Segmentation, Volume, organ_mask, scale_volume
from tumoar.vocabulary.case_name import CaseName
from tumoar.vocabulary.contrasts import rank
from tumoar.vocabulary.labels import LabelTable, Organ
from tumoar.vocabulary.notes import Note

FORMAT = 2
NAMELESS = CaseName()
FROM_MANIFEST = ("version", "model", "threads", "peak_gb", "python", "libraries")
"""Members of the manifest that the report shows; the rest names files or is part of the result."""


def report_data(
    result: Segmentation,
    notes: Sequence[Note],
    manifest: Mapping[str, Any],
    *,
    keep_face: bool = False,
    case_name: CaseName = NAMELESS,
) -> dict[str, Any]:
    """Everything the page shows, as JSON values; volumes are gzipped NIfTI and pictures PNG, in base64.

    From the manifest it takes the members in `FROM_MANIFEST`, the "stamps" of the run, the outlined volumes
    in the rows under "volumes", optional dose curves under "dose" (a list of {"name", "color", "dose" (Gy),
    "volume" (%)}, with "low" and "high" (%) for a band) and the rows of limits.tsv under "limits". Without
    `keep_face`, images are black where they would show a face.
    """
    grid, legend, images = result.case.grid, _legend(result), apply_windows(result)
    visible = np.ones((len(images), *grid.shape), bool) if keep_face else without_face(result)
    images = [(np.where(seen, image, np.uint8(0)), window) for (image, window), seen in zip(images, visible)]
    lines, maps = lines_under_tumor(result), map_volumes(result, _colors(result.table))
    by_name = _first(result.case, images)
    return {
        "format": FORMAT,
        "case": {"name": case_name.name, "date": case_name.date},
        "status": status(notes),
        "stamps": [str(stamp) for stamp in manifest.get("stamps", ())],
        "notes": [note.to_dict() for note in notes],
        "grid": {"shape": list(grid.shape), "affine": grid.affine.tolist()},
        "center": grid.world(center(result)).tolist(),
        "whole": not (result.case.valid & ~visible).any(),
        "contrasts": contrast_volumes(result, images),
        "labels": label_volume(result),
        "maps": maps,
        "lines": [pack_line(line, grid) for line in lines],
        "targets": [],
        "legend": legend,
        "volumes": _volumes(result, manifest),
        "intensity": intensity_models(result),
        "bias": bias_fields(result, visible),
        "inputs": [_registration(given, result.case) for given in result.case.inputs],
        "placement": _finite(result.placement.quality),
        "convergence": _convergence(result),
        "pictures": pictures(by_name, result.labels, legend, center(result), lines),
        "entropy": map_pictures(next(iter(by_name.values())), entropy_bytes(result)[0], center(result)),
        "bands": band_pictures(result, images, _shown_first(result.case), _written(result, manifest)),
        "shown_first": _shown_first(result.case),
        "dose": [dict(curve) for curve in manifest.get("dose", ())],
        "limits": [dict(row) for row in manifest.get("limits", ())],
        "settings": {**_flat(result.config.model_dump(mode="json")), "seed": result.seed},
        "seconds": {name: float(value) for name, value in result.seconds.items()},
        "run": _flat({name: manifest[name] for name in FROM_MANIFEST if name in manifest}),
    }


def still_pictures(result: Segmentation) -> list[dict[str, Any]]:
    """Each contrast in three planes, without a face, as PNG in base64."""
    seen = zip(apply_windows(result), without_face(result))
    images = [(np.where(visible, image, np.uint8(0)), window) for (image, window), visible in seen]
    by_name, lines = _first(result.case, images), lines_under_tumor(result)
    return pictures(by_name, result.labels, _legend(result), center(result), lines)


def lines_under_tumor(result: Segmentation) -> list[Line]:
    """Parts of organs that tumor covers in the label map."""
    table, tumor = result.table, result.votes.z == 1
    masks = [(o, organ_mask(table, o, result.votes) & tumor) for o in table.organs if _is_small(o)]
    return [Line(o.name, organ_color(table, o), "solid", mask) for o, mask in masks if mask.any()]


def _is_small(organ: Organ) -> bool:
    """Whether an organ has few parts: the brain has many. Tissue is not small."""
    return 0 < len(organ.structures) <= 2 and not (organ.tumor or organ.tissue)


def _colors(table: LabelTable) -> dict[str, str]:
    return {organ.name: organ_color(table, organ) for organ in table.organs}


def _first(case: Case, images: Sequence[Windowed]) -> dict[str, Bytes]:
    """Images by contrast, the one shown first in front."""
    found = {c.name: image for c, (image, _) in zip(case.contrasts, images)}
    first = _shown_first(case)
    return {first: found.pop(first), **found}


def organ_color(table: LabelTable, organ: Organ) -> str:
    """The color of an organ's first part."""
    if organ.tumor:
        return next(t.color for t in table.tumor if t.name == organ.tumor[0])
    return table.structures[table.l(organ.structures[0])].color


def _legend(result: Segmentation) -> list[dict[str, Any]]:
    """Labels that occur, tumor first; labels of organs with few parts are shown initially."""
    table = result.table
    counts = np.bincount(result.labels.ravel(), minlength=256)
    small = {s for o in table.organs if _is_small(o) for s in o.structures}
    rows = [(t.index, t.name, t.color, True) for t in table.tumor]
    rows += [(s.index, s.name, s.color, s.name in small) for s in table.structures if s.index]
    return [
        {"index": index, "name": name, "color": color, "shown": shown}
        for index, name, color, shown in rows
        if counts[index]
    ]


def _written(result: Segmentation, manifest: Mapping[str, Any]) -> list[str]:
    """Names of the structures that were written."""
    rows = manifest.get("volumes") or [{"name": organ.name} for organ in result.table.organs]
    return [str(row["name"]) for row in rows]


def _volumes(result: Segmentation, manifest: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Volumes; outlined volumes are those of the written structures if the manifest has them."""
    written = {row["name"]: float(row["outlined_cm3"]) for row in manifest.get("volumes", ())}
    rows = []
    for organ in result.table.organs:
        volume = result.volume(organ.name)
        outlined = written.get(organ.name, volume.outlined)
        color = organ_color(result.table, organ)
        under = _under_tumor(result, organ)
        rows.append(_volume(organ.name, color, scale_volume(volume, outlined)) | {"under_tumor": under})
    if result.config.tumor:
        edema = next(t.color for t in result.table.tumor if t.name == "edema")
        rows.append(_volume(WHOLE_ROW, edema, result.whole_tumor()))
    return rows


def _under_tumor(result: Segmentation, organ: Organ) -> float:
    """Volume of a small organ that tumor covers in the label map, cm³."""
    if not _is_small(organ):
        return 0.0
    covered = organ_mask(result.table, organ, result.votes) & (result.votes.z == 1)
    return float(covered.sum()) * result.case.grid.voxel_volume / 1000


def _volume(name: str, color: str, volume: Volume) -> dict[str, Any]:
    """A row of the table; `predicted` are the bounds of the 50 % and the 90 % interval."""
    low, high = volume.spread(0.90)
    return {
        "name": name,
        "color": color,
        "outlined": volume.outlined,
        "mean": volume.mean,
        "sd": volume.sd,
        "low": low,
        "high": high,
        "predicted": [bound for pair in volume.predicted.values() for bound in pair] or None,
        "calibrated_on": volume.calibrated_on,
    }


def _shown_first(case: Case) -> str:
    """The contrast that represents the patient in a cohort."""
    return min(case.contrasts, key=lambda contrast: rank(contrast.picture_rank)).name


def _registration(given: Input, case: Case) -> dict[str, Any]:
    """Geometry of an input, and its motion: translation at its center in mm, rotation in degrees."""
    middle = given.grid.world((np.array(given.grid.shape) - 1) / 2)
    R, t = given.to_reference[:3, :3], given.to_reference[:3, 3]
    return {
        "name": given.name,
        "is_reference": given.name == case.reference,
        "shape": list(given.grid.shape),
        "spacing": given.grid.spacing.tolist(),
        "orientation": given.orientation,
        "moved": float(np.linalg.norm(R @ middle + t - middle)),
        "turned": float(np.rad2deg(Rotation.from_matrix(R).magnitude())),
        "figures": _finite(given.figures),
    }


def _convergence(result: Segmentation) -> dict[str, Any]:
    """Traces of the fit, and of the chains, which are those of the volume of tumor."""
    cubic = result.case.grid.voxel_volume / 1000
    return {
        "objective": [
            {"level": s.level, "kind": s.kind, "value": float(s.objective)} for s in result.fit.trace
        ],
        "burn_in": result.config.gibbs.burn_in,
        "chains": [
            {
                "sweep": [info.sweep for info in chain],
                "GTV": [info.core * cubic for info in chain],
                "whole tumor": [info.tumor * cubic for info in chain],
            }
            for chain in (result.infos if result.config.tumor else ())
        ],
    }


def _finite(figures: Mapping[str, float]) -> dict[str, float]:
    """Finite figures only, because JSON has no others."""
    return {name: float(value) for name, value in figures.items() if np.isfinite(value)}


def _flat(values: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """Flatten {"a": {"b": 1}} to {"a.b": 1}; texts that could be paths are omitted."""
    out: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            out |= _flat(value, f"{above}{name}.")
        elif isinstance(value, list | tuple):
            out |= _flat({str(i): item for i, item in enumerate(value)}, f"{above}{name}.")
        elif not (isinstance(value, str) and ("/" in value or "\\" in value)):
            out[f"{above}{name}"] = value
    return out
