"""The paper's method as a table: what each sentence is in the settings, and what the default does instead.

python research/paper.py

Writes docs/paper.md from research/paper.toml and the settings of the package. A row whose settings differ
between the preset and the default is a deviation; research/deviations.py measures each of them.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tumoar.vocabulary.config import PAPER, Config, flatten

PROJECT = Path(__file__).resolve().parents[1]
TABLE = PROJECT / "research" / "paper.toml"
PAGE = PROJECT / "docs" / "paper.md"
HEAD = """\
# The paper's method

`tumoar segment --method paper`, or `tumoar.segment(…, method="paper")`, runs the method of Agn et al. 2019 to
the letter: its model, its algorithms and its settings, and nothing else. In a cohort, give it after `--`:
`tumoar cohort RAW OUT participant -- --method paper`. The result is marked with it in the report and in
`run.json`.

The settings are those of `PAPER` in `src/tumoar/vocabulary/config.py`. `--config FILE` and flags such as
`--samples` change them one by one, on top of the method, and the mark then names what was changed. `--fast`,
or a `Config` in Python, has settings of its own and is refused together with a method.

```toml
# take one deviation of the default back, or add one to the paper's method
[gibbs]
start = "paper"
```

## Sentence by sentence

Settings in bold differ from the defaults. Section and table numbers are those of the paper.

| section | the paper | setting of the preset | default | what the default does instead |
|---|---|---|---|---|
"""
CHOICES = """
## Where the paper is silent

Both the preset and the default do the following. The paper leaves it open, or following it to the letter is
not possible. Misprints are listed in [Mathematics](maths.md#misprints-in-the-paper).

| question | section | chosen | why |
|---|---|---|---|
"""


@dataclass(frozen=True, kw_only=True)
class Row:
    """A sentence of the paper; research/paper.toml explains the fields."""

    name: str
    section: str
    says: str
    paper: Mapping[str, Any] = field(default_factory=dict)
    added: Mapping[str, Any] = field(default_factory=dict)
    check: str = ""
    default: str = ""
    decision: str = ""
    compare: bool = True

    @property
    def defaults(self) -> dict[str, Any]:
        """Default values of the row's settings."""
        known = flatten(Config().model_dump(mode="json"))
        return {name: known[name] for name in self.paper}

    @property
    def deviates(self) -> bool:
        """Whether the default differs from the paper."""
        return self.defaults != dict(self.paper)


@dataclass(frozen=True, kw_only=True)
class Choice:
    """What the paper leaves open."""

    question: str
    section: str
    chosen: str
    why: str


def read_table() -> tuple[list[Row], list[Choice]]:
    """Read research/paper.toml."""
    table = tomllib.loads(TABLE.read_text(encoding="utf-8"))
    return [Row(**row) for row in table["row"]], [Choice(**row) for row in table["choice"]]


def render() -> str:
    """docs/paper.md."""
    rows, choices = read_table()
    lines = [f"| {r.section} | {r.says} | {_cells(r)} | {_instead(r)} |" for r in rows]
    open_ = [f"| {c.question} | {c.section} | {c.chosen} | {c.why} |" for c in choices]
    return HEAD + "\n".join(lines) + "\n" + CHOICES + "\n".join(open_) + "\n"


def _cells(row: Row) -> str:
    """Settings of the preset and by default."""
    preset = flatten(PAPER.model_dump(mode="json"))
    paper, default = [], []
    for name, value in row.defaults.items():
        mark = "**" if preset[name] != value else ""
        paper.append(f"{mark}`{name} = {_show(preset[name])}`{mark}")
        default.append(f"`{_show(value)}`")
    return f"{'<br>'.join(paper)} | {'<br>'.join(default)}"


def _show(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(" ".join(f"{k} {v:g}" for k, v in row.items()) for row in value)
    return f"{value:g}" if isinstance(value, float) else json.dumps(value)


def _instead(row: Row) -> str:
    link = f" ([{row.decision[:4]}](decisions/{row.decision}.md))" if row.decision else ""
    return row.default + link


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
