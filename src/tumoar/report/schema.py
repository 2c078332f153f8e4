"""Schema of the data of a report, checked before a page is rendered again.

A page may have been edited, truncated or damaged. Data that pass can be drawn: numbers are finite and
plausible, series have equal lengths, volumes and pictures can be decompressed and are not too large. Unknown
keys are ignored.
"""

from __future__ import annotations

import zlib
from base64 import b64decode
from io import BytesIO
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from tumoar.vocabulary.case_name import CaseName
from tumoar.vocabulary.errors import UsageError
from tumoar.vocabulary.notes import Level

MOST_BYTES = 400 * 1024**2  # of an unpacked volume
MOST_PIXELS = 20_000_000

Number = Annotated[float, Field(ge=-1e15, le=1e15, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, le=1e15, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0, le=10**9)]
Text = Annotated[str, Field(max_length=10_000)]
Color = Annotated[str, Field(pattern=r"^#[0-9a-fA-F]{6}$")]
Series = Annotated[list[Number], Field(min_length=1, max_length=1_000_000)]
Point = Annotated[list[Number], Field(min_length=3, max_length=3)]
Size = Annotated[list[Annotated[int, Field(ge=1, le=4096)]], Field(min_length=3, max_length=3)]
Row = Annotated[list[Number], Field(min_length=4, max_length=4)]
Scalar = bool | int | Number | Text | None
Named = dict[Text, Number]


def _volume(text: str) -> str:
    """Base64 of a complete gzip stream of limited size."""
    unpack = zlib.decompressobj(wbits=31)
    size, rest = 0, b64decode(text, validate=True)
    try:
        while rest and not unpack.eof:
            size += len(unpack.decompress(rest, 1 << 22))
            rest = unpack.unconsumed_tail
            if size > MOST_BYTES:
                raise ValueError("larger than any volume")
    except zlib.error as error:
        raise ValueError("not a gzip stream") from error
    if not unpack.eof:
        raise ValueError("a truncated gzip stream")
    return text


def _picture(text: str) -> str:
    """Base64 of a PNG."""
    import PIL.Image

    content = b64decode(text, validate=True)
    try:
        with PIL.Image.open(BytesIO(content), formats=["PNG"]) as picture:
            if picture.width * picture.height > MOST_PIXELS:
                raise ValueError("larger than any picture of a slice")
            picture.load()
    except (OSError, SyntaxError, PIL.Image.DecompressionBombError) as error:
        raise ValueError("not a PNG") from error
    return text


Volume = Annotated[str, AfterValidator(_volume)]
Picture = Annotated[str, AfterValidator(_picture)]


class _Part(BaseModel):
    model_config = ConfigDict(strict=True)


class _Note(_Part):
    id: Text
    text: Text
    level: Level = "review"  # pages of older versions have only id and text
    action: Text = ""
    where: Text = ""


class _Grid(_Part):
    shape: Size
    affine: Annotated[list[Row], Field(min_length=4, max_length=4)]


class _Contrast(_Part):
    name: Text
    window: Annotated[list[Number], Field(min_length=2, max_length=2)]
    nifti: Volume


class _Map(_Part):
    name: Text
    color: Color | None
    top: Positive
    nifti: Volume


class _Legend(_Part):
    index: Annotated[int, Field(ge=0, le=255)]
    name: Text
    color: Color
    shown: bool


class _Case(_Part):
    name: Text = ""
    date: Text = ""

    @model_validator(mode="after")
    def _safe(self) -> Self:
        try:
            CaseName(self.name, self.date)
        except UsageError as refusal:
            raise ValueError(refusal.what) from refusal
        return self


class _Line(_Part):
    name: Text
    color: Color
    style: Literal["solid", "dashed", "dotted"]
    nifti: Volume


class _Target(_Part):
    name: Text
    color: Color
    style: Literal["solid", "dashed", "dotted"]
    outlined: Number
    how: Text


class _Volume(_Part):
    name: Text
    color: Color
    outlined: Number
    mean: Number
    sd: Number
    low: Number
    high: Number
    predicted: Annotated[list[Number], Field(min_length=4, max_length=4)] | None = None
    calibrated_on: Text = ""
    under_tumor: Number = 0.0


class _Plane(_Part):
    plane: Text
    png: Picture


class _Band(_Plane):
    name: Text
    contrast: Text


class _Component(_Part):
    mixture: Text
    color: Color
    weight: Number
    mean: Number
    sd: Positive


class _Constraint(_Part):
    mixture: Text
    color: Color
    op: Literal["≥", "≤"]
    factor: Number
    refs: list[Text]
    bound: Number
    mean: Number


class _Intensity(_Part):
    name: Text
    unit: Text
    edges: Annotated[list[Number], Field(min_length=2, max_length=2)]
    density: Annotated[list[Number], Field(min_length=1, max_length=10_000)]
    components: Annotated[list[_Component], Field(max_length=1000)]
    constraints: Annotated[list[_Constraint], Field(max_length=1000)]


class _Bias(_Part):
    name: Text
    low: Number
    high: Number
    reach: Positive
    png: Picture


class _Input(_Part):
    name: Text
    is_reference: bool
    shape: Size
    spacing: Point
    orientation: Text
    moved: Number
    turned: Number
    figures: Named


class _Step(_Part):
    level: Annotated[int, Field(ge=0, le=1000)]
    kind: Text
    value: Number


class _Chain(_Part):
    sweep: Series
    gtv: Annotated[Series, Field(alias="GTV")]
    whole: Annotated[Series, Field(alias="whole tumor")]

    @model_validator(mode="after")
    def _even(self) -> Self:
        _require_even(self.sweep, self.gtv, self.whole)
        return self


class _Convergence(_Part):
    objective: Annotated[list[_Step], Field(min_length=1, max_length=100_000)]
    burn_in: Count
    chains: Annotated[list[_Chain], Field(max_length=1000)]


class _Picture(_Plane):
    contrast: Text


class _Dose(_Part):
    name: Text
    color: Color
    dose: Series
    volume: Series
    low: Series | None = None
    high: Series | None = None

    @model_validator(mode="after")
    def _even(self) -> Self:
        bands = [band for band in (self.low, self.high) if band is not None]
        _require_even(self.dose, self.volume, *bands)
        return self


class _Limit(_Part):
    light: Text
    structure: Text
    metric: Text
    value: Scalar
    limit: Scalar
    hard: Scalar
    share_of_samples_above: Number | Literal[""]


class _Data(_Part):
    case: _Case = Field(default_factory=_Case)
    status: Literal["OK", "NEEDS REVIEW"]
    stamps: list[Text]
    notes: Annotated[list[_Note], Field(max_length=10_000)]
    grid: _Grid
    center: Point
    contrasts: Annotated[list[_Contrast], Field(min_length=1, max_length=100)]
    labels: Volume
    maps: Annotated[list[_Map], Field(max_length=1000)]
    lines: Annotated[list[_Line], Field(max_length=100)] = Field(default_factory=list)
    targets: Annotated[list[_Target], Field(max_length=100)] = Field(default_factory=list)
    whole: bool
    legend: Annotated[list[_Legend], Field(max_length=256)]
    volumes: Annotated[list[_Volume], Field(max_length=1000)]
    intensity: Annotated[list[_Intensity], Field(max_length=100)]
    bias: Annotated[list[_Bias], Field(max_length=100)]
    inputs: Annotated[list[_Input], Field(max_length=100)]
    placement: Named
    convergence: _Convergence
    pictures: Annotated[list[_Picture], Field(max_length=1000)]
    bands: Annotated[list[_Band], Field(max_length=100)] = Field(default_factory=list)
    entropy: Annotated[list[_Plane], Field(max_length=100)] = Field(default_factory=list)
    shown_first: Text = ""
    dose: Annotated[list[_Dose], Field(max_length=1000)]
    limits: Annotated[list[_Limit], Field(max_length=10_000)]
    settings: dict[Text, Scalar]
    seconds: Named
    run: dict[Text, Scalar]


_DATA = TypeAdapter(_Data)


def find_fault(data: Any) -> str | None:
    """Location and reason of the first invalid value, without quoting it; None if the data are valid."""
    try:
        _DATA.validate_python(data)
    except ValidationError as error:
        first = error.errors(include_input=False, include_context=False, include_url=False)[0]
        known = set(_Data.model_fields)
        where = ".".join(str(part) for part in first["loc"] if isinstance(part, int) or part in known)
        return f"{where or 'all'}: {first['msg'].lower()}"
    return None


def _require_even(*series: list[float]) -> None:
    if len({len(values) for values in series}) > 1:
        raise ValueError("series of different lengths")
