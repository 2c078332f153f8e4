"""The options of `tumoar.segment`, with their types; defaults are those of `Request`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from difflib import get_close_matches
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Any, TypedDict, get_type_hints

from tumoar.app.pipeline import Given
from tumoar.app.request import Request, Source, collect_images
from tumoar.io.contrasts import read_contrasts
from tumoar.io.nifti_header import Form
from tumoar.radiotherapy.margins import Margins

CONTRASTS = ("t1", "t1c", "t2", "flair", "dir", "ct")


class Options(TypedDict, total=False):
    """Options of `tumoar segment` besides model, settings and output folder."""

    t1: Source | None
    t1c: Source | None
    t2: Source | None
    flair: Source | None
    dir: Source | None
    ct: Source | None
    images: Mapping[str, Source] | None
    contrasts: str | Path | None
    flair2: bool
    reference: str | None
    register: bool
    skull_stripped: bool | None
    trust_contrasts: bool
    use_form: Form | None
    exclude: Source | None
    structures: str | Sequence[str]
    tumor: bool
    gtv: str | None
    postop: bool
    fix_tumor: Source | Given | None
    min_volume: float
    samples: int | None
    burn_in: int | None
    chains: int | None
    prior: str | None
    method: str | None
    fast: bool
    seed: int
    margins: Margins | str | None
    rtstruct: bool
    seg: bool
    ablate: bool
    save_samples: bool
    keep_face: bool
    case_name: str | None
    case_date: str | None
    calibration: str | Path | None
    threads: int | None
    max_memory: float | None
    resume: bool
    overwrite: bool


def to_request(options: Options, **more: Any) -> Request:
    """Convert options to a request; `more` are further fields of the request."""
    _require_known(options)
    values: dict[str, Any] = dict(options)
    files = [(name, source) for name in CONTRASTS if (source := values.pop(name, None)) is not None]
    own = read_contrasts(values.get("contrasts")) if values.get("contrasts") is not None else None
    images = collect_images([*files, *(values.pop("images", None) or {}).items()], own)
    if isinstance(names := values.get("structures"), str):
        values["structures"] = tuple(name.strip() for name in names.split(","))
    return Request(images=images, **more, **values)


def _require_known(names: Iterable[str]) -> None:
    """Raise a TypeError for an unknown option."""
    known = list(Options.__annotations__)
    for name in names:
        if name not in known:
            near = get_close_matches(name, known, 1)
            hint = f", did you mean '{near[0]}'?" if near else ""
            raise TypeError(f"segment() got an unexpected keyword argument '{name}'{hint}")


def with_options(function: Callable[..., Any]) -> Signature:
    """Signature of a function with every option by name, for `help` and notebooks."""
    defaults = {f.name: f.default for f in fields(Request)} | {"images": None} | dict.fromkeys(CONTRASTS)
    own = [p for p in signature(function).parameters.values() if p.kind is not Parameter.VAR_KEYWORD]
    hints = get_type_hints(Options)
    more = [
        Parameter(name, Parameter.KEYWORD_ONLY, default=defaults[name], annotation=hint)
        for name, hint in hints.items()
    ]
    return signature(function).replace(parameters=[*own, *more])
