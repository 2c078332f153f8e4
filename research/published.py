"""Published figures of tumor segmentation beside ours, each with its test set.

python research/published.py

Writes research/results/published.md from research/published.toml and the means in
research/results/patients.md. Prints, as its last line, one JSON object.
"""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1]
RESULTS = PROJECT / "research" / "results"
COLUMNS = {"core": "core_dice", "core_hd95": "core_hd95", "whole": "whole_dice", "whole_hd95": "whole_hd95"}
ABOUT = """Patients, references and conventions differ from row to row: the table shows what others have
reported, not who is better. The core of the paper's patients is a GTV drawn for planning."""
OURS = (
    ("all, ", "tumoar, 21 development patients"),
    ("clearly enhancing, ", "tumoar, those of them that clearly enhance"),
)


def read_ours(text: str) -> list[dict[str, object]]:
    """Rows of means in the page of the development patients."""
    lines = [[c.strip(" *") for c in line.split("|")[1:-1]] for line in text.splitlines() if line[:1] == "|"]
    head, rows = lines[0], []
    for start, name in OURS:
        cells = dict(zip(head, next(c for c in lines if c[0].startswith(start))))
        found = {key: float(re.split(r"\s", cells[column])[0]) for key, column in COLUMNS.items()}
        count = re.search(r"mean of (\d+)", cells["patient"])
        test = f"{count[1] if count else '?'} BraTS patients on which settings were chosen: not a test"
        rows.append({"method": name, "test": test, "source": "[patients](patients.md)", **found})
    return rows


def page(rows: list[dict], unread: list[dict]) -> str:
    """The table, and what it lacks."""
    lines = ["# Published figures", "", ABOUT, ""]
    head = "| method | test set | core: Dice | HD95, mm | whole: Dice | HD95, mm | source |"
    lines += [head, "|---" * 7 + "|"]
    for row in rows:
        cells = [f"{row[k]:.{1 if 'hd' in k else 3}f}" if k in row else "" for k in COLUMNS]
        lines.append(f"| {row['method']} | {row['test']} | " + " | ".join(cells) + f" | {row['source']} |")
    lines += ["", "Without figures here:", ""]
    return "\n".join([*lines, *(f"- {u['method']}, {u['test']}: {u['why']}." for u in unread), ""])


def main() -> None:
    table = tomllib.loads((PROJECT / "research" / "published.toml").read_text(encoding="utf-8"))
    ours = read_ours((RESULTS / "patients.md").read_text(encoding="utf-8"))
    text = page([*table["row"], *ours], table["unread"])
    (RESULTS / "published.md").write_text(text, encoding="utf-8")
    print(json.dumps({str(row["method"]): row["core"] for row in ours}))


if __name__ == "__main__":
    main()
