"""Compiled kernels are kept only where nobody else can write, and run where they can be kept nowhere."""

import os
import pickle
import shutil
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import numba
import pytest
from every_kernel import dispatchers

from tumoar.numerics import cache, exact, jit
from tumoar.numerics.cache import Place, choose_place, is_private, user_caches

SRC = Path(exact.__file__).resolve().parents[2]
USE = "from tumoar.numerics.exact import _two_sum; print(_two_sum(1.0, 2.0))"
WHERE = USE + "; from tumoar.numerics.jit import PLACE; print(PLACE and PLACE.name)"
BELOW = numba.core.caching._CacheLocator.get_suitable_cache_subpath(exact.__file__)
FILES = jit._Cache(exact._two_sum.py_func, Path())
FILE = FILES.path((numba.float64, numba.float64), exact._two_sum.targetctx.codegen()).name
HITS = "from tumoar.numerics.exact import _two_sum as f; f(1.0, 2.0); print(len(f.stats.cache_hits))"
NOBODY = 65534
# Another user may not be able to read this interpreter: what it needs is imported before.
AS_NOBODY = f"""
import grp, os, pickle, pwd, numba
numba.njit(lambda a, b: (a + b, a - b))(1.0, 2.0)
os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})
"""
needs_root = pytest.mark.skipif(os.getuid() != 0, reason="needs root, to be another user")


class Evil:
    """A pickle that leaves a file behind when it is read."""

    def __init__(self, trace):
        self.trace = trace

    def __reduce__(self):
        return os.mkdir, (str(self.trace),)


def plant(folder, trace):
    """Put what somebody else wants to be run where numba would look for a kernel."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / FILE).write_bytes(pickle.dumps(Evil(trace)))


def run(code, **environment):
    plain = {k: v for k, v in os.environ.items() if k not in ("HOME", "XDG_CACHE_HOME", "NUMBA_CACHE_DIR")}
    done = subprocess.run(
        [sys.executable, "-c", code], env=plain | {"PYTHONPATH": str(SRC)} | environment,
        capture_output=True, text=True, timeout=300, cwd="/",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.split("\n")


@pytest.fixture
def open_folder():
    """A folder that any user reaches, unlike pytest's own."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def test_a_folder_that_others_can_write_to_is_not_read(open_folder):
    shared, trace = open_folder / "shared", open_folder / "trace"
    plant(shared / BELOW, trace)
    for path in (shared, shared / BELOW):
        path.chmod(0o777)
    lines = run(WHERE, NUMBA_CACHE_DIR=str(shared))
    assert lines[0] == "(3.0, 0.0)"
    assert lines[1] != "NUMBA_CACHE_DIR"
    assert not trace.exists(), "somebody else's pickle was run"


@needs_root
@pytest.mark.parametrize(
    "kind",
    [
        "their file",
        *(
            pytest.param(k, marks=pytest.mark.slow)
            for k in ("their folder", "their folder above", "their link")
        ),
    ],
)
def test_what_belongs_to_somebody_else_is_not_read(open_folder, kind):
    asked, trace = open_folder / "cache", open_folder / "trace"
    plant(asked / BELOW, trace)
    theirs = {
        "their folder": asked / BELOW,
        "their file": asked / BELOW / FILE,
        "their folder above": asked,
        "their link": open_folder / "link",
    }[kind]
    if kind == "their link":
        theirs.symlink_to(asked)
        asked = theirs
    os.chown(theirs, NOBODY, NOBODY, follow_symlinks=False)
    assert run(WHERE, NUMBA_CACHE_DIR=str(asked))[1] != "NUMBA_CACHE_DIR"
    assert not trace.exists()


def test_a_folder_of_our_own_is_used(tmp_path):
    own = tmp_path / "own"
    assert run(WHERE, NUMBA_CACHE_DIR=str(own))[1] == "NUMBA_CACHE_DIR"
    assert stat.S_IMODE((own / BELOW).stat().st_mode) == 0o700
    kept = {p.name for p in (own / BELOW).iterdir()}
    assert FILE in kept
    assert run(HITS, NUMBA_CACHE_DIR=str(own))[0] == "1"
    for path in (own / BELOW).iterdir():
        path.write_bytes(path.read_bytes()[:-20])
    assert run(USE, NUMBA_CACHE_DIR=str(own))[0] == "(3.0, 0.0)", "a damaged cache is compiled anew"


@needs_root
def test_a_read_only_installation_without_a_home_still_runs(open_folder):
    lines = run(AS_NOBODY + WHERE, HOME="/nonexistent")
    assert lines[:2] == ["(3.0, 0.0)", "None"]
    home = open_folder / "home"
    home.mkdir(mode=0o700)
    os.chown(home, NOBODY, NOBODY)
    assert run(AS_NOBODY + WHERE, HOME=str(home))[1] == "the user's cache"
    assert (home / ".cache" / "numba" / BELOW / FILE).is_file()
    (home / ".cache" / "numba").chmod(0o777)
    assert run(AS_NOBODY + WHERE, HOME=str(home))[1] == "the user's cache"
    assert (home / ".cache" / "tumoar" / BELOW / FILE).is_file()


def test_a_disk_that_takes_nothing_is_no_fault(tmp_path):
    code = (
        "import pathlib\n"
        "def full(*a, **k): raise OSError(28, 'no space')\n"
        "pathlib.Path.write_bytes = full\n" + USE
    )
    assert run(code, NUMBA_CACHE_DIR=str(tmp_path))[0] == "(3.0, 0.0)"


def test_folders_are_judged_with_all_that_is_above(tmp_path, monkeypatch):
    folder = tmp_path / "a" / "b"
    folder.mkdir(parents=True)
    assert is_private(folder)
    (tmp_path / "a").chmod(0o777)
    assert not is_private(folder)
    (tmp_path / "a").chmod(0o1777)
    assert is_private(folder), "a sticky folder such as /tmp"
    folder.chmod(0o1777)
    assert not is_private(folder), "sticky or not, others can add files"
    folder.chmod(0o770)
    monkeypatch.setattr(cache, "_is_own_group", lambda number: True)
    assert is_private(folder)
    monkeypatch.setattr(cache, "_is_own_group", lambda number: False)
    assert not is_private(folder)
    monkeypatch.setattr(cache, "_is_own_group", lambda number: True)
    monkeypatch.setattr(cache, "_has_acl", lambda path: True)
    assert not is_private(folder), "an access control list lets others in"


def test_names_that_are_none(monkeypatch, tmp_path):
    assert choose_place(
        [Place(Path("a\0b"), ""), Place(Path("/proc/no/such"), ""), Place(tmp_path / "x", "x")]
    )
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", "/")
    assert user_caches() is None


def test_every_kernel_is_compiled_through_the_one_door():
    for path in (SRC / "tumoar").rglob("*.py"):
        assert "cache=True" not in path.read_text(encoding="utf-8"), path.name


def test_the_cache_survives_what_leaves_the_sources_alone(tmp_path):
    package = tmp_path / "new" / "tumoar"
    shutil.copytree(SRC / "tumoar", package, ignore=shutil.ignore_patterns("__pycache__", "*.npz"))
    own = {"NUMBA_CACHE_DIR": str(tmp_path / "own"), "PYTHONPATH": str(package.parent)}

    def kept():
        return {p.name for p in (tmp_path / "own").rglob("*.nbc")}

    assert run(HITS, **own)[0] == "0"
    first = kept()
    for name in ("version.py", "numerics/distributions.py", "numerics/exact.py"):
        path = package / name
        os.utime(path, (1, 1))
        if name != "numerics/exact.py":
            path.write_text(path.read_text() + "\n# another version\n")
    assert run(HITS, **own)[0] == "1"
    assert kept() == first
    with (package / "numerics" / "exact.py").open("a") as file:
        file.write("\n# another kernel\n")
    assert run(HITS, **own)[0] == "0"
    assert not kept() & first, "outdated kernels are removed"


def test_a_kernel_depends_on_all_modules_that_it_calls(tmp_path, monkeypatch):
    folder = Path(jit.__file__).parent
    for path in folder.glob("*.py"):
        shutil.copy(path, tmp_path)
    monkeypatch.setattr(jit, "__file__", str(tmp_path / "jit.py"))
    digest = jit.digest_sources.__wrapped__
    before = {name: digest(name) for name in ("exact", "tetra", "tetra_raster", "voxels", "warm")}
    (tmp_path / "exact.py").write_text("# changed")
    changed = {name for name in before if digest(name) != before[name]}
    assert changed == {"exact", "tetra", "tetra_raster", "warm"}


def test_no_kernel_inherits_options_from_the_one_that_was_compiled_before():
    for found in dispatchers():
        if found.targetoptions.get("inline") != "always":
            assert jit.PINNED.keys() <= found.targetoptions.keys(), found
    assert not exact._two_product.targetoptions["fastmath"], "its errors would not be exact"


def test_what_only_kernels_call_refuses_to_be_called():
    with pytest.raises(TypeError, match="only kernels"):
        exact._two_product(1.0, 2.0)
