"""tumoar: tumors and organs at risk from any scan. For research; not a medical device.

from tumoar import Case, Model, segment, load_result
"""

from typing import TYPE_CHECKING, Any

from tumoar.version import __version__

if TYPE_CHECKING:
    from tumoar.api import (
        Case,
        Config,
        Grid,
        Image,
        Margins,
        Model,
        Note,
        Progress,
        Result,
        Segmentation,
        StoredResult,
        TumoarError,
        Volume,
        check,
        load_result,
        segment,
    )

__all__ = [
    "Case",
    "Config",
    "Grid",
    "Image",
    "Margins",
    "Model",
    "Note",
    "Progress",
    "Result",
    "Segmentation",
    "StoredResult",
    "TumoarError",
    "Volume",
    "__version__",
    "check",
    "load_result",
    "segment",
]


def __getattr__(name: str) -> Any:
    """Loaded when asked for: `tumoar --help` needs none of it."""
    if name not in __all__:
        raise AttributeError(f"module 'tumoar' has no attribute '{name}'")
    from tumoar import api

    return getattr(api, name)


def __dir__() -> list[str]:
    """The names that can be imported."""
    return sorted(__all__)
