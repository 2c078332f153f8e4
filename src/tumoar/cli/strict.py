"""Strict options: each is given at most once, and every number is finite."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

from typer.core import TyperCommand

from tumoar.vocabulary.errors import UsageError


class StrictCommand(TyperCommand):
    """A command that refuses repeated options, of which otherwise the last would win silently."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for param in self.params:
            # Paths are checked when they are opened; typer would show the folder.
            described = getattr(param, "type_descriptor", None)
            for place in (getattr(param, "type", None), getattr(described, "parameter_info", None)):
                if place is not None and hasattr(place, "readable"):
                    place.readable = False

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments of a command."""
        _, _, order = self.make_parser(ctx).parse_args(args=list(args))
        for param, times in Counter(order).items():
            if times > 1 and param.param_type_name == "option" and not getattr(param, "multiple", False):
                names = " or ".join((*param.opts, *param.secondary_opts))
                raise UsageError("options", f"{names} is given {times} times", do="give it once")
        rest: list[str] = super().parse_args(ctx, args)
        for name, value in ctx.params.items():
            if isinstance(value, float) and not math.isfinite(value):
                raise UsageError("options", f"--{name.replace('_', '-')} is not a finite number", found=value)
        return rest
