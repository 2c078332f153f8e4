"""Publish results in a BIDS-derivatives tree: the files of `tumoar segment` under BIDS names.

Files are hard links, which need no extra space; on disks without links they are copied.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

from tumoar.cohort.names import LOGS, RESULTS, case_name, tree_names
from tumoar.cohort.plan import Order
from tumoar.cohort.subjects import Subject
from tumoar.io.files import read_text, require_own
from tumoar.io.manifest import (
    MANIFEST,
    digest_files,
    digest_of_file,
    publish_folder,
    read_manifest,
    replace_text,
)
from tumoar.version import __version__
from tumoar.vocabulary.errors import IntegrityError, TumoarError, UsageError, write_error

WRITTEN = ".files.json"
"""Suffix of the list, in the logs, of files that we put into the tree."""
BIDS_VERSION = "1.10.0"
DESCRIPTION = "dataset_description.json"
IGNORED = f"{RESULTS}\n{LOGS}\ngroup.*\n"
README = """Tumors and organs at risk, outlined by tumoar. For research; not a medical device.

sub-*/        labels (dseg), one mask and one vote fraction (probseg) per structure, with BIDS names
results/      all files of each run: report.html, volumes.tsv, run.json …
logs/         log and outcome of each run
group.tsv     one row per subject or session: status, notes, volumes with the spread of the samples
group.html    the same as a page, with pictures
"""
_KINDS = {
    "dseg": "Structures and tumor, tumor over anatomy: vote over posterior samples",
    "mask": "One structure, not cut by tumor: vote over posterior samples",
    "probseg": "Fraction of posterior samples in which a voxel belongs to the structure",
}
_COLUMNS = {
    "tg263": "TG-263 name of the structure that the label belongs to",
    "snomed": "SNOMED CT concept",
}
"""Columns of the label table that BIDS does not define."""


def begin_tree(order: Order) -> None:
    """Write the top-level files of the tree; refuse a folder with other content."""
    out = Path(order.out)
    if order.raw is not None and os.path.realpath(out) == os.path.realpath(order.raw):
        raise UsageError("output", "the output is the dataset itself", do="give another folder")
    there: dict[str, Any] = {}
    try:
        if os.path.lexists(out / DESCRIPTION):
            there = json.loads(read_text(out / DESCRIPTION, "the description of the output"))
            ours = there["GeneratedBy"][0]["Name"] == "tumoar"
        else:
            # Another job of the same cohort may be creating it: hidden names are its unfinished files.
            ours = not out.exists() or all(path.name.startswith(".") for path in out.iterdir())
    except (OSError, ValueError, KeyError, IndexError, TypeError, RecursionError, TumoarError):
        ours = False
    if not ours:
        raise UsageError("output", "the output folder holds something else", file=out, do="give another one")
    description: dict[str, Any] = {
        "Name": "tumoar: tumors and organs at risk",
        "BIDSVersion": BIDS_VERSION,
        "DatasetType": "derivative",
        "License": "n/a",
        "GeneratedBy": [{"Name": "tumoar", "Version": __version__}],
    }
    description = there | description | {name: there[name] for name in ("Name", "License") if name in there}
    if links_to_raw(order):
        raw = os.path.relpath(str(order.raw), out)
        description |= {"SourceDatasets": [{"URL": raw}], "DatasetLinks": {"raw": raw}}
    try:
        out.mkdir(parents=True, exist_ok=True)
        if there != description:
            replace_text(out / DESCRIPTION, json.dumps(description, indent=1) + "\n")
        for name, text in (("README", README), (".bidsignore", IGNORED)):
            if not (out / name).is_file():  # keep existing files
                replace_text(out / name, text)
        for folder in (RESULTS, LOGS):
            require_own(out, out / folder)
            (out / folder).mkdir(exist_ok=True)
    except OSError as error:
        raise write_error("cannot write the cohort", error, out) from error


def require_own_places(subject: Subject, order: Order) -> None:
    """Refuse links through which files of a subject would be written outside the output."""
    for path in (order.result(subject.name), order.log(subject.name, ".txt"), _top(subject, order)):
        require_own(Path(order.out), path)


def publish_tree(subject: Subject, order: Order) -> None:
    """Add a finished result to the tree atomically, unless it is already there."""
    result, out = order.result(subject.name), Path(order.out)
    manifest = read_manifest(result)
    files, reference = manifest["files"], manifest.get("reference")
    if not isinstance(reference, str):
        raise IntegrityError("result", "the result does not name its reference", file=MANIFEST)
    names = tree_names(subject.name, files, reference)
    if all(_is_same(result / source, out / target, files[source]) for source, target in names.items()):
        return
    require_own_places(subject, order)
    top = _top(subject, order)
    written = _written(subject, order) | set(files.values())
    _require_untouched(top, written)
    with publish_folder(top, "the tree") as work:
        for source, target in names.items():
            path = work / Path(target).name
            _link(result / source, path)
            if path.name.endswith(".nii.gz"):
                suffix = path.name.removesuffix(".nii.gz").rpartition("_")[2]
                card = json.dumps(_card(subject, order, suffix, reference), indent=1) + "\n"
                path.with_name(path.name.replace(".nii.gz", ".json")).write_text(card, encoding="utf-8")
        # Written before the files are moved, so that they can always be recognized as ours.
        listed = sorted(written | set(digest_files(work).values()))
        replace_text(order.log(subject.name, WRITTEN), json.dumps(listed, indent=1) + "\n")


def _written(subject: Subject, order: Order) -> set[str]:
    """SHA-256 of every file that we put into a subject's part of the tree, as far as known."""
    try:
        listed = json.loads(read_text(order.log(subject.name, WRITTEN), "the list of files"))
        return {digest for digest in listed if isinstance(digest, str)}
    except (TumoarError, ValueError, TypeError, RecursionError):
        return set()


def _require_untouched(top: Path, written: set[str]) -> None:
    """Refuse to replace a folder of the tree in which a file was changed or added."""
    for path in sorted(top.rglob("*")):
        is_file = path.is_file() and not path.is_symlink()
        if not (digest_of_file(path) in written if is_file else path.is_dir() and not path.is_symlink()):
            raise IntegrityError(
                "B57",
                "the tree holds a file that tumoar did not write, or that was changed",
                file=path,
                do="move it elsewhere, then run the cohort again",
            )


def _top(subject: Subject, order: Order) -> Path:
    return Path(order.out).joinpath(*subject.name.split("_"), "anat")


def _card(subject: Subject, order: Order, suffix: str, reference: str) -> dict[str, Any]:
    """BIDS sidecar of an image; files outside a dataset are not named."""
    card: dict[str, Any] = {"Description": _KINDS[suffix], "Manual": False}
    if suffix == "mask":
        card["Type"] = "ROI"
    if suffix == "dseg":
        card |= {name: {"Description": text} for name, text in _COLUMNS.items()}
    name = case_name(subject.label, subject.session)
    card["SpatialReference"] = f"the {reference} of {name}"
    if links_to_raw(order) and all(is_plain(Path(image).name) for image in subject.images.values()):
        uris = {
            contrast: f"bids:raw:{Path(os.path.relpath(image, order.raw)).as_posix()}"
            for contrast, image in subject.images.items()
        }
        card["Sources"] = list(uris.values())
        card["SpatialReference"] = uris.get(reference, card["SpatialReference"])
    return card


def links_to_raw(order: Order) -> bool:
    """Whether the dataset can be linked without a folder name: the output is inside it."""
    if order.raw is None:
        return False
    return set(Path(os.path.relpath(order.raw, order.out)).parts) <= {".."}


def is_plain(name: str) -> bool:
    """Whether a BIDS file name contains only subject, session and kind of image."""
    entities = [part.partition("-")[0] for part in name.split("_")[:-1]]
    return set(entities) <= {"sub", "ses", "ce", "run"}


def _is_same(source: Path, target: Path, digest: str) -> bool:
    """Whether the tree has this file, or a copy of it."""
    try:
        return os.path.samestat(source.stat(), target.stat()) or digest_of_file(target) == digest
    except OSError:
        return False


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
