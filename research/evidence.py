"""State of every result page, and one command that brings all of them up to date.

python research/evidence.py [status]                      each page: current, or what has changed since
python research/evidence.py run [NAME …] [--minutes N]    make what is not current, shortest first
python research/evidence.py stamp NAME                    mark a page that was just written by hand

`research/evidence.toml` lists the pages of `research/results/`, their commands, and what they depend on:
parts of the packaged model, code and data. A page ends with a stamp of what it was made with. `run` makes the
pages whose stamp differs from what is here now, and nothing else; scripts continue what was interrupted, so
that `run` can be stopped and repeated, and with `--minutes` it begins nothing that takes longer than is left.

tests/test_evidence.py requires that the pages of docs/ cite no page of another model.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shlex
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1]
DATA = Path(os.environ.get("TUMOAR_DATA", PROJECT.parent / "shared" / "data"))
ALWAYS = ("vocabulary", "numerics", "geometry")
STAMP = re.compile(r"<!-- evidence (\{.*\}) -->\n?\Z")
CURRENT = "current"


@dataclass(frozen=True)
class Page:
    """A result page and what it depends on."""

    name: str
    commands: tuple[str, ...]
    model: tuple[Path, ...]
    code: tuple[Path, ...]
    data: tuple[str, ...]
    minutes: int

    def path(self, project: Path) -> Path:
        """The file of the page."""
        return project / "research" / "results" / f"{self.name}.md"


def read_pages(project: Path = PROJECT) -> dict[str, Page]:
    """Pages of evidence.toml by name."""
    table = tomllib.loads((project / "research" / "evidence.toml").read_text("utf-8"))
    package, pages = project / "src" / "tumoar", {}
    for name, row in table["pages"].items():
        commands = tuple(row.get("commands", ()))
        groups = [table["groups"].get(c, [c]) for c in row.get("code", ())]
        folders = dict.fromkeys((*ALWAYS, *(part for group in groups for part in group)))
        code = [package / folder for folder in folders]
        code += [project / word for c in commands for word in c.split() if word.endswith(".py")]
        files = [package / "data" / f for part in row.get("model", ()) for f in table["parts"][part]]
        data = tuple(row.get("data", ()))
        pages[name] = Page(
            name, commands, tuple(files), tuple(dict.fromkeys(code)), data, int(row["minutes"])
        )
    return pages


def digest(parts: Iterable[bytes]) -> str:
    """First twelve digits of a SHA-256; empty if there is nothing to digest."""
    out, some = hashlib.sha256(), False
    for part in parts:
        out.update(hashlib.sha256(part).digest())
        some = True
    return out.hexdigest()[:12] if some else ""


def digest_model(page: Page) -> str:
    """Digest of the parts of the packaged model that a page depends on."""
    return digest(path.read_bytes() for path in page.model)


def digest_code(page: Page) -> str:
    """Digest of the code that a page depends on."""
    files = [f for path in page.code for f in (sorted(path.rglob("*.py")) if path.is_dir() else [path])]
    return digest(f.name.encode() + f.read_bytes() for f in files)


def digest_data(page: Page, data: Path = DATA) -> str:
    """Digest of names and sizes of the data that a page depends on; empty where they are absent."""
    files = [f for folder in page.data for f in sorted((data / folder).rglob("*")) if f.is_file()]
    return digest(f"{f.relative_to(data)} {f.stat().st_size}".encode() for f in files)


def make_stamp(page: Page, data: Path = DATA) -> dict[str, str]:
    """What a page made now is made with."""
    return {
        "model": digest_model(page),
        "code": digest_code(page),
        "data": digest_data(page, data),
        "date": date.today().isoformat(),
    }


def read_stamp(text: str) -> dict[str, str] | None:
    """Stamp at the end of a page."""
    found = STAMP.search(text)
    return None if found is None else dict(json.loads(found[1]))


def write_stamp(path: Path, stamp: Mapping[str, str]) -> None:
    """Replace the stamp of a page, or add one."""
    text = STAMP.sub("", path.read_text("utf-8")).rstrip("\n")
    path.write_text(f"{text}\n\n<!-- evidence {json.dumps(dict(stamp))} -->\n", "utf-8")


def find_changes(page: Page, project: Path = PROJECT, data: Path = DATA) -> str:
    """What has changed since a page was made: "current", "never run", or parts such as "model, code"."""
    path = page.path(project)
    stamp = read_stamp(path.read_text("utf-8")) if path.exists() else None
    if stamp is None:
        return "never run"
    now = make_stamp(page, data)
    changed = [part for part in ("model", "code", "data") if now[part] and now[part] != stamp[part]]
    return ", ".join(changed) or CURRENT


def run(names: Iterable[str], minutes: float, project: Path = PROJECT, data: Path = DATA) -> list[str]:
    """Make the pages that are not current, shortest first; return those that were made."""
    pages, end, made = read_pages(project), time.monotonic() + 60 * minutes, []
    wanted = list(names) or [name for name, page in pages.items() if page.commands]
    for page in sorted((pages[name] for name in wanted), key=lambda p: p.minutes):
        if find_changes(page, project, data) == CURRENT:
            continue
        if time.monotonic() + 60 * page.minutes > end:
            print(f"{page.name}: more than is left ({page.minutes} minutes of one core)", flush=True)
            continue
        stamp = make_stamp(page, data)  # before: code that changes meanwhile is noticed
        for command in page.commands:
            words = shlex.split(command)
            words[0] = sys.executable if words[0] == "python" else words[0]
            print(f"{page.name}: {command}", flush=True)
            if subprocess.run(words, cwd=project).returncode:
                print(f"{page.name}: failed; its page is left as it was", flush=True)
                break
        else:
            write_stamp(page.path(project), stamp)
            made.append(page.name)
    return made


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("verb", choices=("status", "run", "stamp"), nargs="?", default="status")
    parser.add_argument("names", nargs="*", help="pages; all of them if none is named")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin nothing that takes longer")
    parser.add_argument("--quick", action="store_true", help="status alone, whatever the verb")
    options = parser.parse_args()
    pages = read_pages()
    if unknown := sorted(set(options.names) - set(pages)):
        parser.error(f"no page {unknown[0]}; there are: {', '.join(pages)}")
    if options.verb == "run" and not options.quick:
        run(options.names, options.minutes)
    elif options.verb == "stamp" and not options.quick:
        for name in options.names:
            write_stamp(pages[name].path(PROJECT), make_stamp(pages[name]))
    state = {name: find_changes(page) for name, page in pages.items()}
    for name, changes in state.items():
        print(f"{name:16} {changes}")
    print(json.dumps({"current": sum(c == CURRENT for c in state.values()), "pages": len(state)}))


if __name__ == "__main__":
    main()
