"""Model files: named sections of arrays, each with a card, in one `.npz` without code.

The file is a zip archive of .npy arrays `section/array.npy` and of `model.json`, which lists the arrays and
holds the card of each section (plain JSON) and a SHA-256 over everything. Equal content gives equal bytes.
Everything is checked before use: names, types and sizes against bounds, then the digest, then the meaning of
the content.
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import re
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tokenize import TokenError
from typing import Any

import numpy as np
import numpy.typing as npt

from tumoar.io.files import read_bytes, replace_file
from tumoar.model.atlas import Atlas
from tumoar.vocabulary.errors import ModelFileError, TumoarError
from tumoar.vocabulary.labels import LabelTable, parse_labels

FORMAT = "tumoar model"
VERSION = 1

_CARD = "model.json"
_NAME = re.compile("[a-z][a-z0-9_]{0,31}")
_TYPES = {"|b1", "|u1", "<i4", "<i8", "<f4", "<f8"}
_MAX_FILE = 1 << 28  # bytes; the model in the package: 2.6 million
_MAX_TOTAL = 1 << 28  # bytes of all parts unpacked
_MAX_RATIO, _SMALL = 100, 1 << 24  # compression ratio, which real arrays stay far below; small files may not
_MAX_CARD = 2 << 20
_MAX_ENTRIES = 64
_MAX_DIMENSIONS = 5
_MAX_NODES, _MAX_TETRAHEDRA = 500_000, 5_000_000  # of a mesh; in the package: 38 and 220 thousand


@dataclass(frozen=True)
class Section:
    """One part of a model: arrays by name, and a card with plain JSON about them."""

    arrays: Mapping[str, npt.NDArray[Any]]
    card: Mapping[str, Any]


# ---- any sections ------------------------------------------------------------------------------------------


def save_sections(path: str | Path, sections: Mapping[str, Section], *, level: int = 6) -> str:
    """Write a model file, read it back and only then move it into place; return its SHA-256.

    `level` is that of compression.
    """
    path = Path(path)
    content = _pack(sections, level)
    _unpack(io.BytesIO(content), path)
    with replace_file(path) as temporary:
        temporary.write_bytes(content)
    return hashlib.sha256(content).hexdigest()


def load_sections(path: str | Path) -> dict[str, Section]:
    """Load and check all sections of a model file."""
    return load_hashed(path)[0]


def load_hashed(path: str | Path) -> tuple[dict[str, Section], str]:
    """Like `load_sections`, with the SHA-256 of the bytes that were read."""
    path = Path(path)
    try:
        content = read_bytes(path, "the model file", _MAX_FILE)
    except TumoarError as refusal:
        reason = "empty, so not a model file" if refusal.id == "B2" else refusal.what
        raise _unusable(path, reason, refusal.do) from refusal
    return _unpack(io.BytesIO(content), path), hashlib.sha256(content).hexdigest()


def _pack(sections: Mapping[str, Section], level: int) -> bytes:
    entries: dict[str, bytes] = {}
    table: dict[str, Any] = {}
    for name, section in sorted(sections.items()):
        for key, array in sorted(section.arrays.items()):
            plain = np.asarray(array, order="C")
            if plain.dtype.str not in _TYPES or not (_NAME.fullmatch(name) and _NAME.fullmatch(key)):
                raise ValueError(f"arrays need plain names and types, got '{name}/{key}', {plain.dtype}")
            stream = io.BytesIO()
            np.lib.format.write_array(stream, plain, version=(1, 0), allow_pickle=False)
            entries[f"{name}/{key}.npy"] = stream.getvalue()
        table[name] = {"arrays": sorted(section.arrays), "card": section.card}
    card = {"format": FORMAT, "version": VERSION, "sections": table}
    card["sha256"] = _digest(card, entries)
    entries[_CARD] = _text(card)
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, content in sorted(entries.items()):
            info = zipfile.ZipInfo(name)  # without a timestamp
            archive.writestr(info, content, zipfile.ZIP_DEFLATED, compresslevel=level)
    return out.getvalue()


def _unpack(file: Any, path: Path) -> dict[str, Section]:
    try:
        with zipfile.ZipFile(file) as archive:
            entries = _entries(archive, path)
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise _unusable(path, "damaged, or not a model file") from error
    try:
        card = json.loads(entries.pop(_CARD))
        form, version, table = card["format"], card["version"], card["sections"]
        listed = {f"{name}/{key}.npy" for name, part in table.items() for key in part["arrays"]}
        claimed = card.pop("sha256")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _unusable(path, f"no valid {_CARD} in it") from error
    if form != FORMAT:
        raise _unusable(path, "made by another program")
    if version != VERSION:
        raise _unusable(path, f"version {version!r}, not {VERSION}", do="use a model made for this version")
    if claimed != _digest(card, entries):
        raise _unusable(path, "wrong SHA-256: the content was changed or damaged")
    if listed != set(entries):
        raise _unusable(path, "arrays are missing or not listed")
    arrays = {name: _array(content, name, path) for name, content in entries.items()}
    return {
        name: Section({key: arrays[f"{name}/{key}.npy"] for key in part["arrays"]}, part["card"])
        for name, part in table.items()
    }


def _entries(archive: zipfile.ZipFile, path: Path) -> dict[str, bytes]:
    """Contents by name, read up to their stated and bounded size."""
    infos = archive.infolist()
    if len(infos) > _MAX_ENTRIES or len({i.filename for i in infos}) != len(infos):
        raise _unusable(path, "too many parts, or a repeated one")
    total, packed = sum(i.file_size for i in infos), sum(i.compress_size for i in infos)
    if total > _MAX_TOTAL or (total > _SMALL and total > _MAX_RATIO * packed):
        raise _unusable(path, "it would unpack to more than a model needs")
    entries = {}
    for info in infos:
        parts = info.filename.removesuffix(".npy").split("/")
        plain = info.filename.endswith(".npy") and len(parts) == 2 and all(map(_NAME.fullmatch, parts))
        if info.filename != _CARD and not plain:
            raise _unusable(path, "a part with an invalid name")
        if info.filename == _CARD and info.file_size > _MAX_CARD:
            raise _unusable(path, "a part is too large")
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise _unusable(path, "a part with an unsupported compression")
        with archive.open(info) as stream:
            entries[info.filename] = stream.read(info.file_size + 1)
        if len(entries[info.filename]) != info.file_size:
            raise _unusable(path, "a part is longer or shorter than stated")
    if _CARD not in entries:
        raise _unusable(path, f"no {_CARD} in it")
    return entries


def _array(content: bytes, name: str, path: Path) -> npt.NDArray[Any]:
    """Array of a .npy entry, whose header must account for every byte."""
    stream = io.BytesIO(content)
    try:
        if np.lib.format.read_magic(stream) != (1, 0):
            raise ValueError("another version")
        shape, fortran, dtype = np.lib.format.read_array_header_1_0(stream)
        size = len(content) - stream.tell()
        if dtype.str not in _TYPES or fortran or len(shape) > _MAX_DIMENSIONS or min(shape, default=1) < 0:
            raise ValueError("not a plain array")
        if int(np.prod([int(n) for n in shape], dtype=object)) * dtype.itemsize != size:
            raise ValueError("size does not fit")
        array = np.frombuffer(content, dtype, offset=stream.tell()).reshape(shape)
    except (ValueError, TypeError, SyntaxError, TokenError, OverflowError, RecursionError) as error:
        raise _unusable(path, f"array {name} is not a plain array") from error
    if dtype.kind == "f" and not np.isfinite(array).all():
        raise _unusable(path, f"array {name} holds values that are not finite")
    return array


def _digest(card: Mapping[str, Any], entries: Mapping[str, bytes]) -> str:
    """SHA-256 over the card and every array, names and lengths included."""
    digest = hashlib.sha256(_text(card))
    for name, content in sorted(entries.items()):
        digest.update(f"\n{name} {len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest()


def _text(card: Mapping[str, Any]) -> bytes:
    return json.dumps(card, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def _unusable(path: Path, reason: str, do: str | None = None) -> ModelFileError:
    return ModelFileError("B54", f"model file not usable: {reason}", file=path, do=do)


# ---- an atlas as a section ---------------------------------------------------------------------------------


def save_atlas(path: str | Path, atlas: Atlas) -> str:
    """Write a model file with only the atlas; return its SHA-256."""
    return save_sections(path, {"atlas": atlas_section(atlas)})


def load_atlas(path: str | Path) -> Atlas:
    """Load the atlas of a model file."""
    return section_atlas(load_sections(path), path)


def atlas_section(atlas: Atlas) -> Section:
    """Section of the atlas; only nonzero node probabilities are stored."""
    node, label = np.nonzero(atlas.alpha)
    return Section(
        {
            "nodes": atlas.nodes,
            "tetrahedra": atlas.tetrahedra,
            "alpha_node": node.astype(np.int32),
            "alpha_label": label.astype(np.uint8),
            "alpha_value": atlas.alpha[node, label],
        },
        {
            "labels": labels_to_dict(atlas.labels),
            "stiffness": atlas.stiffness,
            "provenance": dict(atlas.provenance),
        },
    )


def section_atlas(sections: Mapping[str, Section], path: str | Path) -> Atlas:
    """Atlas from loaded sections; `path` is named in refusals."""
    path = Path(path)
    if "atlas" not in sections:
        raise _unusable(path, "no atlas in it")
    try:
        section = sections["atlas"]
        arrays, card = section.arrays, section.card
        labels = parse_labels(card["labels"])
        alpha = _dense(arrays, labels.K)
        return Atlas(
            arrays["nodes"], arrays["tetrahedra"], alpha, labels, card["stiffness"], card["provenance"]
        )
    except KeyError as error:
        raise _unusable(path, f"the atlas lacks {error}") from error
    except (ValueError, TypeError, IndexError, AttributeError) as error:
        raise _unusable(path, f"atlas: {error}") from error


def _dense(arrays: Mapping[str, npt.NDArray[Any]], K: int) -> npt.NDArray[np.float32]:
    """(V, K) probabilities from the nonzero ones."""
    V, T = len(arrays["nodes"]), len(arrays["tetrahedra"])
    if V > _MAX_NODES or T > _MAX_TETRAHEDRA:
        raise ValueError(f"{V} nodes and {T} tetrahedra, at most {_MAX_NODES} and {_MAX_TETRAHEDRA}")
    node, label, value = (arrays[f"alpha_{part}"] for part in ("node", "label", "value"))
    if not (node.dtype.kind in "iu" and label.dtype.kind in "iu" and value.dtype.kind == "f"):
        raise ValueError("alpha must be given by whole numbers of node and label, and a probability")
    if not node.shape == label.shape == value.shape == (len(value),):
        raise ValueError("alpha must be given by as many nodes as labels and probabilities")
    if np.any((node < 0) | (node >= V) | (label < 0) | (label >= K)):
        raise ValueError("alpha must be given once per node and label, of those that are there")
    place = node.astype(np.int64) * K + label
    if len(np.unique(place)) != len(place):
        raise ValueError("alpha must be given once per node and label")
    alpha = np.zeros(V * K, np.float32)
    alpha[place] = value
    return alpha.reshape(V, K)


def labels_to_dict(labels: LabelTable) -> dict[str, Any]:
    """The table as `parse_labels` reads it."""
    return {
        "structure": [_row(s) for s in labels.structures],
        "gmm": [_row(g) for g in labels.gmms],
        "tumor": {t.name: {k: v for k, v in _row(t).items() if k != "name"} for t in labels.tumor},
        "organ": [_row(o) for o in labels.organs],
    }


def _row(row: Any) -> dict[str, Any]:
    """Fields of a table row that are not empty."""
    fields = dataclasses.asdict(row)
    return {k: list(v) if isinstance(v, tuple) else v for k, v in fields.items() if v is not None and v != ()}
