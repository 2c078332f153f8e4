"""File names of a cohort, following BIDS derivatives.

Names consist of checked labels and fixed words; nothing comes from a header.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import PurePosixPath

from tumoar.vocabulary.errors import UsageError

RESULTS = "results"
"""Folder of the results of `tumoar segment`, one subfolder each."""
LOGS = "logs"
SEGMENTATION = "tumoar"
_IDENTIFIER = re.compile("[A-Za-z0-9._+-]{1,64}")
_ENTITIES = ("space", "seg", "label")
"""In the order that BIDS requires."""


def label_of(text: str, what: str = "subject") -> str:
    """BIDS label of an identifier: its letters and digits, without a prefix "sub-" or "ses-"."""
    plain = text.strip().removeprefix("sub-" if what == "subject" else "ses-")
    label = re.sub("[^A-Za-z0-9]", "", plain)
    if not _IDENTIFIER.fullmatch(plain) or not label:
        raise UsageError(
            "subject",
            f"{what} not usable in file names",
            found=repr(text[:40]),
            do="use up to 64 letters, digits, and . _ + - between them",
        )
    return label


def case_name(subject: str, session: str = "") -> str:
    """Prefix of the files of a subject or session: "sub-01_ses-2"."""
    return f"sub-{subject}_ses-{session}" if session else f"sub-{subject}"


def bids_path(case: str, suffix: str, extension: str, **entities: str) -> str:
    """Path of a file in the tree: "sub-01/ses-2/anat/sub-01_ses-2_space-T1c_seg-tumoar_dseg.nii.gz"."""
    unknown = set(entities) - set(_ENTITIES)
    if unknown:
        raise ValueError(f"entities must be among {_ENTITIES}, got {sorted(unknown)}")
    parts = [case, *(f"{key}-{_plain(entities[key])}" for key in _ENTITIES if key in entities), suffix]
    return str(PurePosixPath(*case.split("_"), "anat", "_".join(parts) + extension))


def tree_names(case: str, files: Iterable[str], reference: str) -> dict[str, str]:
    """Path in the tree for each file of a result; files without a BIDS name are omitted."""
    out = {}
    for file in files:
        folder, _, name = file.rpartition("/")
        stem, _, extension = name.partition(".")
        space = {"space": reference}
        if file in ("segmentation.nii.gz", "segmentation.tsv"):
            out[file] = bids_path(case, "dseg", f".{extension}", seg=SEGMENTATION, **space)
        elif folder == "structures":
            out[file] = bids_path(case, "mask", f".{extension}", label=stem, **space)
        elif folder == "probabilities":
            out[file] = bids_path(case, "probseg", f".{extension}", seg=SEGMENTATION, label=stem, **space)
        elif folder == "native" and stem != f"{reference}_segmentation":
            native = stem.removesuffix("_segmentation")
            out[file] = bids_path(case, "dseg", f".{extension}", seg=SEGMENTATION, space=native)
    return out


def _plain(value: str) -> str:
    """A value in BIDS form: Hippocampus_L becomes HippocampusL."""
    plain = re.sub("[^A-Za-z0-9]", "", value)
    if not plain:
        raise ValueError(f"a value needs a letter or digit, got '{value}'")
    return plain
