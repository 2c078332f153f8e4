"""How many small faults, planted by a machine, the tests notice.

cosmic-ray changes one operator, number, comparison, keyword or decorator at a time, in a copy of the project;
the fast tests named for the module are run until one turns red. Of all changes a random part is drawn, with a
fixed seed; changes of type annotations, which are never looked at, are none. A change that no test notices
has survived: it is explained below, or a test is missing.

    pip install cosmic-ray
    python research/mutation.py [--quick] [--targets geometry/image.py …] [--keep FILE]

What was found is kept in FILE, line by line, so that a stop loses nothing and a second start goes on.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import json
import os
import shutil
import signal
import sys
import tempfile
import time
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).resolve().parents[1]
RESULT = PROJECT / "research" / "results" / "mutation.md"
SURVIVORS = Path(__file__).with_name("mutation_survivors.toml")
SEED = 1
KEY = ("file", "line", "was", "became", "tests")
VOTES = tuple(
    f"tests/inference/test_gibbs.py::{name}"
    for name in (
        "test_votes_are_strict_and_tumor_is_voted_inside_the_brain",
        "test_chains_are_pooled_as_if_one_had_drawn_all",
        "test_votes_are_counted_in_bytes",
        "test_nothing_counted_is_no_share",
    )
)
NIFTI = ("tests/io/test_nifti.py", "tests/cli/test_inspect.py", "tests/io/test_nifti_fuzz.py")


AFTER = """The score is that of the tests as they are now. Twenty-three more changes had survived at first,
and have a test since: values that could be written to, the volume of a voxel, excluded voxels, turns and
axes at their bounds (`image.py`); voxels without a value, headers of a megabyte, files of three bytes, units
and rotations in their sentences (`io/nifti*.py`); folders of too many files, folders named as slices, slices
turned, scaled or alone (`io/dicom.py`); volumes of edema in every sample (`inference/tally.py`, where votes
of several chains got a test before they were tried); expected voxels that are not whole
(`model/theta_prior.py`).

Made by `python research/mutation.py`.
"""


@dataclass(frozen=True)
class Target:
    """A module, the part of it that is meant (all, if nothing is named), its tests, and how many to try."""

    file: str
    most: int
    tests: tuple[str, ...]
    within: tuple[str, ...] = ()


TARGETS = (
    Target("geometry/image.py", 60, ("tests/geometry/test_image.py",)),
    Target("geometry/orientation.py", 50, ("tests/geometry/test_orientation.py",)),
    Target("io/nifti.py", 60, NIFTI),
    Target("io/nifti_header.py", 40, NIFTI),
    Target("io/dicom.py", 20, ("tests/io/test_dicom.py", "tests/io/test_security.py")),
    Target("inference/tally.py", 40, VOTES, ("Tally.add", "Tally.vote", "Tally.fraction", "pool_tallies")),
    Target(
        "model/conditionals.py", 40,
        ("tests/model/test_conditionals.py", "tests/inference/test_conditional_ratios.py"),
    ),
    Target(
        "model/theta_prior.py", 40,
        ("tests/model/test_theta_prior.py", "tests/model/test_conditionals.py"),
    ),
)  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    """A module with one change: where and what it is, and the whole module."""

    line: int
    was: str
    became: str
    code: str


def meaning(code: str) -> str:
    """What a module says, without its annotations."""
    tree = ast.parse(code)
    for node in ast.walk(tree):
        for name in ("annotation", "returns"):
            if getattr(node, name, None) is not None:
                setattr(node, name, ast.Constant(0))
    return ast.dump(tree)


def lines_of(code: str, names: tuple[str, ...]) -> set[int]:
    """The lines of these definitions, counted from one; of everything if none is named."""
    if not names:
        return set(range(1, code.count("\n") + 2))
    found: list[Any] = []
    for top in ast.parse(code).body:
        name = getattr(top, "name", "")
        found += [top] if name in names else []
        found += [n for n in getattr(top, "body", []) if f"{name}.{getattr(n, 'name', '')}" in names]
    return {line for node in found for line in range(node.lineno, (node.end_lineno or 0) + 1)}


def mutants(code: str, names: tuple[str, ...], most: int) -> list[Mutant]:
    """So many changes, each once, drawn at random among all that cosmic-ray knows."""
    import numpy as np
    from cosmic_ray.ast import ast_nodes, get_ast
    from cosmic_ray.mutating import mutate_code
    from cosmic_ray.plugins import get_operator, operator_names

    kinds = [get_operator(name) for name in sorted(operator_names())]
    nodes, lines = list(ast_nodes(get_ast(code))), lines_of(code, names)
    places = []
    for kind in (kind() for kind in kinds if not kind.arguments()):
        starts = [start[0] for node in nodes for start, _ in kind.mutation_positions(node)]
        places += [(kind, n, line) for n, line in enumerate(starts) if line in lines]
    found, seen = [], {meaning(code)}
    for i in np.random.default_rng(SEED).permutation(len(places)):
        kind, occurrence, line = places[i]
        changed = mutate_code(code, kind, occurrence)
        try:
            said = meaning(changed)
        except SyntaxError:
            continue
        if said not in seen:
            seen.add(said)
            found.append(Mutant(line, *difference(code, changed), changed))
        if len(found) == most:
            break
    return sorted(found, key=lambda mutant: mutant.line)


def difference(before: str, after: str) -> tuple[str, str]:
    delta = list(difflib.ndiff(before.splitlines(), after.splitlines()))
    was, became = (" ".join(line[2:].strip() for line in delta if line[0] == sign) for sign in "-+")
    return was, became


# ---- running tests -----------------------------------------------------------------------------------------


def test_run(copy: Path, tests: tuple[str, ...], limit: float) -> str:
    """Run tests on the copy in a process that starts with the libraries loaded: green, red or late."""
    pid = os.fork()
    if pid == 0:
        os.setpgid(0, 0)
        os.chdir(copy)
        sys.path[:0] = [str(copy / "src"), str(copy / "tests")]
        silence = os.open(os.devnull, os.O_RDWR)
        for stream in range(3):
            os.dup2(silence, stream)
        import pytest

        options = ["-x", "-q", "-p", "no:cacheprovider", "--hypothesis-seed=0"]
        os._exit(min(int(pytest.main([*options, *tests])), 100))
    start = time.monotonic()
    while time.monotonic() - start < limit:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return "green" if status == 0 else "red"
        time.sleep(0.05)
    os.killpg(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return "late"


def copied(folder: Path) -> Path:
    for name in ("src", "tests", "docs", "recipes", "examples"):
        shutil.copytree(PROJECT / name, folder / name)
    shutil.copy2(PROJECT / "pyproject.toml", folder)
    return folder


def load_libraries() -> None:
    """What takes long to import and is no part of the project."""
    import highdicom  # noqa: F401
    import hypothesis  # noqa: F401
    import matplotlib.pyplot  # noqa: F401
    import nibabel  # noqa: F401
    import numba  # noqa: F401
    import pydantic  # noqa: F401
    import pydicom  # noqa: F401
    import pytest  # noqa: F401
    import rich.console  # noqa: F401
    import scipy.ndimage
    import scipy.optimize  # noqa: F401
    import SimpleITK  # noqa: F401
    import typer  # noqa: F401


def examined(target: Target, copy: Path, kept: Path, most: int) -> list[dict[str, Any]]:
    """Plant the changes drawn for a module one after the other; what became of each."""
    path = copy / "src" / "tumoar" / target.file
    original = path.read_text(encoding="utf-8")
    known = {tuple(r[name] for name in KEY): r for r in read(kept)}
    tests, results, limit = " ".join(target.tests), [], 0.0
    for mutant in mutants(original, target.within, most):
        key = (target.file, mutant.line, mutant.was, mutant.became, tests)
        if key not in known:
            if not limit:
                start = time.monotonic()
                if test_run(copy, target.tests, 600) != "green":
                    raise RuntimeError(f"the tests of {target.file} fail without any change")
                limit = 30 + 4 * (time.monotonic() - start)
                for stale in path.parent.glob(f"__pycache__/{path.stem}.*"):
                    stale.unlink()  # a module changed within a second is not read again
                sys.dont_write_bytecode = True
            path.write_text(mutant.code, encoding="utf-8")
            outcome = test_run(copy, target.tests, limit)
            path.write_text(original, encoding="utf-8")
            known[key] = dict(zip(KEY, key)) | {"outcome": outcome}
            with open(kept, "a", encoding="utf-8") as file:
                file.write(json.dumps(known[key], ensure_ascii=False) + "\n")
        results.append(known[key])
    sys.dont_write_bytecode = False
    return results


def read(kept: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in kept.read_text().splitlines()] if kept.is_file() else []


# ---- the page ----------------------------------------------------------------------------------------------


def page(found: dict[str, list[dict[str, Any]]]) -> str:
    reasons = {
        (entry["file"], entry["was"], entry["became"]): entry["why"]
        for entry in tomllib.loads(SURVIVORS.read_text(encoding="utf-8"))["survivor"]
    }
    text = (__doc__ or "").split("\n\n", 1)[1].split("\n\n    pip")[0].replace("\n", " ")
    lines = ["# Mutation testing", "", text, ""]
    lines += ["| module | tried | killed | survived | killed, % |", "|---|---|---|---|---|"]
    everything = [r for results in found.values() for r in results]
    for name, results in [*found.items(), ("all", everything)]:
        tried, survived = len(results), sum(r["outcome"] == "green" for r in results)
        share = 100 * (1 - survived / tried)
        lines.append(f"| `{name}` | {tried} | {tried - survived} | {survived} | {share:.1f} |")
    lines += ["", "## Survivors", "", "| module | was | became | why |", "|---|---|---|---|"]
    for r in everything:
        if r["outcome"] == "green":
            why = reasons.get((r["file"], r["was"], r["became"]), "not looked at yet")
            cells = [text.replace("|", "\\|") for text in (r["was"], r["became"])]
            lines.append(f"| `{r['file']}` | `{cells[0]}` | `{cells[1]}` | {why} |")
    return "\n".join([*lines, "", AFTER])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="two changes of two modules, no page")
    parser.add_argument("--targets", nargs="*", default=[], help="only these modules, no page")
    parser.add_argument("--keep", type=Path, help="what was found, line by line")
    given = parser.parse_args()
    os.environ.setdefault("NUMBA_NUM_THREADS", "1")
    load_libraries()
    with tempfile.TemporaryDirectory() as folder:
        copy, kept = copied(Path(folder) / "tumoar"), given.keep or Path(folder) / "kept"
        os.environ["PYTHONPATH"] = str(copy / "src")
        targets = [t for t in TARGETS if not given.targets or t.file in given.targets]
        targets = targets[:2] if given.quick else targets
        found = {t.file: examined(t, copy, kept, 2 if given.quick else t.most) for t in targets}
    if not given.quick and not given.targets:
        RESULT.write_text(page(found), encoding="utf-8")
    survived = {name: sum(r["outcome"] == "green" for r in results) for name, results in found.items()}
    print(json.dumps({"tried": sum(map(len, found.values())), "survived": survived}))


if __name__ == "__main__":
    main()
