"""What is compiled ahead is what a patient needs, and the processes that compile end with the run."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace

import pytest
import small_head
import small_run
from every_kernel import dispatchers

from tumoar.app.pipeline import segment
from tumoar.app.warm import STAGE, Warming
from tumoar.io.models import default_model
from tumoar.numerics import jit, warm
from tumoar.placement.affine import place_affine
from tumoar.vocabulary.errors import FitError


@pytest.fixture(autouse=True)
def compiles_ahead():
    """Here kernels are compiled ahead, unlike in other tests."""


def compiled():
    """Signatures of all kernels that Python calls."""
    found = (d for d in dispatchers() if not d.targetoptions.get("no_cpython_wrapper"))
    return {(d.__qualname__, signature) for d in found for signature in d.overloads}


@pytest.mark.slow
def test_a_run_compiles_nothing_that_was_not_compiled_ahead(tmp_path, monkeypatch):
    monkeypatch.setattr(jit, "PLACE", jit.PLACE and jit.PLACE._replace(folder=tmp_path))
    case = small_head.case()
    for share in range(len(warm.SHARES)):
        warm.run(len(case.contrasts), share)
    assert warm.is_warm(len(case.contrasts))
    assert not warm.is_warm(len(case.contrasts) + 1)
    ahead = compiled()
    with suppress(FitError):  # too small a head
        place_affine(case, small_run.MODEL.atlas)
    shipped = default_model()
    model = replace(small_run.MODEL, shape_z=shipped.shape_z, shape_y=shipped.shape_y)
    segment(case, model, small_run.CONFIG, seed=3, keeper=small_run.Memory())
    # The field of a tumor that fills the grid of the small head is contiguous, that of a patient is not.
    assert {(name, args) for name, args in compiled() - ahead if name != "_gather"} == set()


def test_processes_compile_and_say_how_far_they_are(tmp_path, monkeypatch):
    monkeypatch.setattr(warm, "is_warm", lambda contrasts: False)
    monkeypatch.setattr(warm, "SHARES", ((None,),))
    monkeypatch.setattr(warm, "STEPS", 3)
    fake = tmp_path / "tumoar" / "numerics"
    fake.mkdir(parents=True)
    (tmp_path / "tumoar" / "__init__.py").write_text("")
    (fake / "__init__.py").write_text("")
    (fake / "warm.py").write_text("import os\nfor _ in range(3): os.write(1, b'.')\n")
    monkeypatch.setattr("tumoar.__file__", str(tmp_path / "tumoar" / "__init__.py"))
    told = []
    with Warming() as kernels:
        kernels.start(4)
        assert kernels.wait(told.append)
    assert {p.stage for p in told} == {STAGE}
    assert (told[0].done, told[-1].done, told[-1].total) == (0, 3, 3)
    (fake / "warm.py").write_text("raise SystemExit(1)")
    with Warming() as kernels:
        kernels.start(4)
        assert not kernels.wait(told.append), "the run then compiles by itself"


def test_a_process_ends_with_the_one_that_started_it(tmp_path):
    code = (
        "import time\n"
        "from tumoar.numerics import warm\n"
        "warm.SHARES = ((lambda contrasts: time.sleep(300),),)\n"
        "warm.main(['1', '0'])"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        env=os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)},
    )  # fmt: skip
    child.stdin.close()
    assert child.wait(timeout=60) != 0
