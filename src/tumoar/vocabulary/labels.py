"""The label table: structures l, brain set B, mixtures x(l, z, y), components G_x (Tables 1 and 2).

Everything that depends on the structures is derived from `data/labels.toml`: to add an organ, add a row. A
`LabelTable` is validated when it is built.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property
from importlib.resources import files
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from tumoar.vocabulary.errors import ModelFileError

Side = Literal["left", "right"]

TUMOR_STATES = {"edema": (1, 0), "core": (1, 1)}
"""(z, y) of each tumor class; the sampler must be extended for further classes."""


@dataclass(frozen=True)
class Code:
    """A SNOMED CT concept."""

    value: str
    meaning: str


@dataclass(frozen=True)
class Gmm:
    """A Gaussian mixture model x with G_x components; `scatter` is the X of its prior scatter matrix."""

    name: str
    components: int
    role: Literal["normal", "core", "edema", "cavity"] = "normal"
    scatter: float | None = None


@dataclass(frozen=True)
class Structure:
    """A normal head structure l; `part_of` names the structure of a coarser table that it belongs to."""

    name: str
    index: int
    in_brain: bool
    gmm: str
    color: str
    side: Side | None = None
    mirror: str | None = None
    trained: bool = True
    snomed: Code | None = None
    part_of: str | None = None


@dataclass(frozen=True)
class TumorClass:
    """Core or edema in an exclusive label map."""

    name: str
    index: int
    color: str
    snomed: Code | None = None


@dataclass(frozen=True)
class Organ:
    """An output structure, by TG-263 name: structures or tumor classes. Reports hide `tissue` at first."""

    name: str
    kind: str
    structures: tuple[str, ...] = ()
    tumor: tuple[str, ...] = ()
    tissue: bool | None = None


@dataclass(frozen=True)
class LabelTable:
    """K structures, X mixtures, Q components in total; l and x are positions in these tuples."""

    structures: tuple[Structure, ...]
    gmms: tuple[Gmm, ...]
    tumor: tuple[TumorClass, ...]
    organs: tuple[Organ, ...]

    def __post_init__(self) -> None:
        every: tuple[Structure | Gmm | TumorClass | Organ, ...]
        every = (*self.structures, *self.gmms, *self.tumor, *self.organs)
        for row in every:
            _require_kinds(row)
        for kind, rows in (("structure", self.structures), ("gmm", self.gmms), ("organ", self.organs)):
            _require_unique(kind, "name", [row.name for row in rows])
        _require_unique("label", "index", [s.index for s in self.structures] + [t.index for t in self.tumor])
        is_air_first = bool(self.structures) and self.structures[0].index == 0
        _require(is_air_first, "the first structure is not the background with index 0")
        _require(any(s.in_brain for s in self.structures), "no structure is part of the brain")
        by_name = {s.name: s for s in self.structures}
        gmm_names = {g.name for g in self.gmms}
        for role in TUMOR_STATES:
            _require(sum(g.role == role for g in self.gmms) == 1, f"exactly one gmm must have role '{role}'")
        for g in self.gmms:
            _require(1 <= g.components <= 16, f"gmm '{g.name}' has {g.components} components, not 1 to 16")
        for s in self.structures:
            _require(s.gmm in gmm_names, f"structure '{s.name}' has the unknown gmm '{s.gmm}'")
            _require((s.side is None) == (s.mirror is None), f"'{s.name}' has only one of side and mirror")
            if s.mirror is not None:
                other = by_name.get(s.mirror)
                _require(
                    other is not None
                    and other.mirror == s.name
                    and other.side != s.side
                    and (other.gmm, other.in_brain) == (s.gmm, s.in_brain),
                    f"'{s.name}' and its mirror '{s.mirror}' do not match",
                )
        used = {s.gmm for s in self.structures}
        for g in self.gmms:
            _require(
                (g.name in used) == (g.role not in TUMOR_STATES),
                f"gmm '{g.name}' must belong to a structure if and only if it is not one of core or edema",
            )
        mixed = [n for n in self.wholes if len({self.structures[l].in_brain for l in self.parts(n)}) > 1]
        _require(not mixed, f"only some parts of {', '.join(mixed)} are part of the brain")
        cavities = [s for s in self.structures if self._role(s) == "cavity"]
        _require(len(cavities) <= 1, "more than one structure is a cavity")
        _require(all(s.in_brain for s in cavities), "the cavity is not part of the brain")
        tumor_names = {t.name for t in self.tumor}
        is_known = tumor_names == set(TUMOR_STATES)
        _require(is_known, f"tumor classes are {sorted(tumor_names)}, not core and edema")
        for o in self.organs:
            unknown = (set(o.structures) - set(by_name)) | (set(o.tumor) - tumor_names)
            _require(not unknown, f"organ '{o.name}' has unknown parts {sorted(unknown)}")
            _require(bool(o.structures or o.tumor), f"organ '{o.name}' has no parts")
            _require(
                re.fullmatch("[A-Za-z][A-Za-z0-9_]{0,15}", o.name) is not None,
                f"organ name '{o.name}' does not follow TG-263 (16 letters, digits, _)",
            )

    # ---- sizes ---------------------------------------------------------------------------------------

    @property
    def K(self) -> int:
        """Number of normal structures."""
        return len(self.structures)

    @property
    def X(self) -> int:
        """Number of Gaussian mixture models."""
        return len(self.gmms)

    @cached_property
    def Q(self) -> int:
        """Number of Gaussian components over all mixtures."""
        return sum(g.components for g in self.gmms)

    @cached_property
    def G(self) -> npt.NDArray[np.int64]:
        """(X,) components per mixture."""
        return np.array([g.components for g in self.gmms])

    # ---- maps between labels, mixtures, components ---------------------------------------------------

    def l(self, name: str) -> int:
        """Position of a structure by name."""
        return _position(self.structures, name)

    def parts(self, name: str) -> tuple[int, ...]:
        """Positions of a structure and of its parts; empty if the table has none of them."""
        return tuple(l for l, s in enumerate(self.structures) if name in (s.name, s.part_of))

    @cached_property
    def wholes(self) -> tuple[str, ...]:
        """Names of the structures of which these are parts, or of those that are part of none."""
        return tuple(dict.fromkeys(s.part_of or s.name for s in self.structures))

    @cached_property
    def whole_of_l(self) -> npt.NDArray[np.int64]:
        """(K,) position among `wholes` of each structure."""
        return np.array([self.wholes.index(s.part_of or s.name) for s in self.structures])

    def x_named(self, name: str) -> int:
        """Position of a mixture by name."""
        return _position(self.gmms, name)

    def has_gmm(self, name: str) -> bool:
        """Whether a mixture has this name."""
        return any(g.name == name for g in self.gmms)

    @cached_property
    def core(self) -> int:
        """Mixture of tumor core."""
        return next(i for i, g in enumerate(self.gmms) if g.role == "core")

    @cached_property
    def edema(self) -> int:
        """Mixture of edema."""
        return next(i for i, g in enumerate(self.gmms) if g.role == "edema")

    @cached_property
    def cavity(self) -> int | None:
        """Position of the structure that is the resection cavity, if the table has one."""
        found = [k for k, s in enumerate(self.structures) if self._role(s) == "cavity"]
        return found[0] if found else None

    def _role(self, structure: Structure) -> str:
        return next((g.role for g in self.gmms if g.name == structure.gmm), "")

    @cached_property
    def in_brain(self) -> npt.NDArray[np.bool_]:
        """(K,) True for l in B."""
        return np.array([s.in_brain for s in self.structures])

    @cached_property
    def x_of_l(self) -> npt.NDArray[np.int64]:
        """(K,) mixture of each normal structure: x(l, 0, 0)."""
        return np.array([self.x_named(s.gmm) for s in self.structures])

    def x(self, l: int, z: int, y: int) -> int:
        """Mapping x(l, z, y) of Table 2; raises ValueError for states that f forbids."""
        if not self.is_allowed(l, z, y):
            raise ValueError(f"state (l={self.structures[l].name}, z={z}, y={y}) is forbidden by f(l, z, y)")
        if z and l != self.cavity:
            return self.core if y else self.edema
        return int(self.x_of_l[l])

    def is_allowed(self, l: int, z: int, y: int) -> bool:
        """f(l, z, y) = 0, Eq. (3): core lies inside tumor, tumor inside the brain, a cavity inside core."""
        if l == self.cavity:
            return bool(z and y)
        return not (y and not z) and not (z and not self.structures[l].in_brain)

    @cached_property
    def states(self) -> tuple[tuple[int, int, int], ...]:
        """All allowed (l, z, y), normal ones first."""
        combinations = ((l, z, y) for z, y in ((0, 0), (1, 0), (1, 1)) for l in range(self.K))
        return tuple(s for s in combinations if self.is_allowed(*s))

    def component_slice(self, x: int) -> slice:
        """Positions of the components of mixture x among all Q."""
        start = int(self.G[:x].sum())
        return slice(start, start + int(self.G[x]))

    @cached_property
    def x_of_component(self) -> npt.NDArray[np.int64]:
        """(Q,) mixture of each component."""
        return np.repeat(np.arange(self.X), self.G)

    @cached_property
    def mirrored(self) -> npt.NDArray[np.int64]:
        """(K,) position of each structure's mirror image; its own position if it has no side."""
        return np.array([self.l(s.mirror) if s.mirror else i for i, s in enumerate(self.structures)])

    @cached_property
    def indices(self) -> npt.NDArray[np.uint8]:
        """(K,) value of each structure in label maps."""
        return np.array([s.index for s in self.structures], np.uint8)

    @cached_property
    def trained(self) -> npt.NDArray[np.bool_]:
        """(K,) True for structures that training label maps contain."""
        return np.array([s.trained for s in self.structures])

    def organ(self, name: str) -> Organ:
        """An output structure by its TG-263 name."""
        return self.organs[_position(self.organs, name)]

    @cached_property
    def has_tumor(self) -> bool:
        """Whether an organ is made of tumor; none is in a result for organs alone."""
        return any(organ.tumor for organ in self.organs)

    def is_anatomy(self, organ: Organ) -> bool:
        """Whether an organ has normal structures, which tumor may hide."""
        return any(self.l(name) != self.cavity for name in organ.structures)

    def join(self, name: str, into: str) -> LabelTable:
        """The table without a structure, which becomes part of another one, and without its own mixture."""
        structures = tuple(s for s in self.structures if s.name != name)
        used = {s.gmm for s in structures}
        organs = (
            replace(o, structures=tuple(dict.fromkeys(into if s == name else s for s in o.structures)))
            for o in self.organs
        )
        gmms = tuple(g for g in self.gmms if g.role != "normal" or g.name in used)
        return replace(self, structures=structures, gmms=gmms, organs=tuple(organs))

    def merge_structures(self, into: str, names: Iterable[str]) -> npt.NDArray[np.int64]:
        """(K,) position of each structure after the named ones are merged into `into`."""
        target, sources = self.l(into), {self.l(n) for n in names}
        return np.array([target if k in sources else k for k in range(self.K)])


def parse_labels(table: Mapping[str, Any]) -> LabelTable:
    """Build a `LabelTable` from parsed TOML; unknown keys are rejected."""
    try:
        return LabelTable(
            structures=tuple(_structure(row) for row in table["structure"]),
            gmms=tuple(Gmm(**row) for row in table["gmm"]),
            tumor=tuple(TumorClass(name=n, **_coded(row)) for n, row in table["tumor"].items()),
            organs=tuple(_organ(**row) for row in table["organ"]),
        )
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ModelFileError("labels", "invalid label table", found=error) from error


@cache
def default_labels() -> LabelTable:
    """The paper's 17 structures and 12 mixtures, and deep gray matter with its own mixture."""
    text = files("tumoar").joinpath("data/labels.toml").read_text(encoding="utf-8")
    return parse_labels(tomllib.loads(text))


def add_cavity(labels: LabelTable, *, blood: bool = True) -> LabelTable:
    """The table with a resection cavity (data/cavity.toml); its mixture ends with a component for `blood`."""
    text = files("tumoar").joinpath("data/cavity.toml").read_text(encoding="utf-8")
    table = tomllib.loads(text)
    gmm, parts, row = Gmm(**table["gmm"]), table["parts"], _structure(table["structure"])
    used = {s.index for s in labels.structures} | {t.index for t in labels.tumor}
    if row.index in used:
        row = replace(row, index=max(set(range(256)) - used))
    organs = []
    for o in labels.organs:
        organs.append(replace(o, structures=(*o.structures, parts[o.name])) if o.name in parts else o)
        if o.name == "GTV":
            organs += [_organ(**row) for row in table["organ"]]
    return replace(
        labels,
        structures=(*labels.structures, row),
        gmms=(*labels.gmms, gmm if blood else replace(gmm, components=gmm.components - 1)),
        organs=tuple(organs),
    )


def _coded(row: Mapping[str, Any]) -> dict[str, Any]:
    return {k: Code(**v) if k == "snomed" else v for k, v in row.items()}


def _structure(row: Mapping[str, Any]) -> Structure:
    return Structure(**_coded(row))


def _organ(structures: Iterable[str] = (), tumor: Iterable[str] = (), **row: Any) -> Organ:
    return Organ(structures=tuple(structures), tumor=tuple(tumor), **row)


def _position(rows: tuple[Any, ...], name: str) -> int:
    for i, row in enumerate(rows):
        if row.name == name:
            return i
    known = ", ".join(row.name for row in rows)
    raise KeyError(f"no '{name}' in the label table; there are: {known}")


def _require(condition: bool, otherwise: str) -> None:
    if not condition:
        raise ModelFileError("labels", f"invalid label table: {otherwise}")


_LONGEST = 64  # letters of a name
_ROLES, _SIDES = ("normal", *TUMOR_STATES, "cavity"), (None, "left", "right")


def _require_kinds(row: Structure | Gmm | TumorClass | Organ) -> None:
    """Check the type and range of every value."""
    name = row.name
    is_name = isinstance(name, str) and 0 < len(name) <= _LONGEST and name.isprintable()
    _require(is_name, f"a row has no printable name of 1 to {_LONGEST} letters")
    if isinstance(row, Gmm):
        _require(type(row.components) is int, f"number of components of gmm '{name}' is not an integer")
        _require(row.role in _ROLES, f"gmm '{name}' has an unknown role")
        scatter = 1.0 if row.scatter is None else row.scatter
        is_number = isinstance(scatter, int | float) and not isinstance(scatter, bool)
        _require(is_number and 1e-3 <= scatter <= 1e3, f"gmm '{name}' has scatter {row.scatter!r}")
    elif isinstance(row, Organ):
        parts = (row.kind, *row.structures, *row.tumor)
        _require(all(isinstance(part, str) for part in parts), f"parts of organ '{name}' are not names")
        _require(isinstance(row.tissue, bool | None), f"tissue of organ '{name}' must be true or false")
    else:
        is_index = type(row.index) is int and 0 <= row.index <= 255
        _require(is_index, f"'{name}' has index {row.index!r}, not 0 to 255")
        is_color = isinstance(row.color, str) and re.fullmatch("#[0-9a-f]{6}", row.color)
        _require(bool(is_color), f"'{name}' has color {row.color!r}")
        code = row.snomed or Code("0", "none")
        is_text = all(isinstance(text, str) and len(text) <= _LONGEST for text in (code.value, code.meaning))
        _require(is_text, f"the code of '{name}' is not text")
    if isinstance(row, Structure):
        are_flags = isinstance(row.in_brain, bool) and isinstance(row.trained, bool)
        _require(are_flags, f"in_brain and trained of '{name}' must be true or false")
        _require(row.side in _SIDES, f"'{name}' has side {row.side!r}, not left or right")
        _require(isinstance(row.part_of, str | None), f"part_of of '{name}' is not a name")


def _require_unique(kind: str, field: str, values: list[Any]) -> None:
    repeated = sorted({str(v) for v in values if values.count(v) > 1})
    _require(not repeated, f"duplicate {kind} {field}: {', '.join(repeated)}")
