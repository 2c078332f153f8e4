"""Signals of the independent simulator against values computed by hand, and against a simulation in steps."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tumoar.simulate.independent.sequences import Sequence, mprage, relaxation_table, spoiled


def test_spoiled_gradient_echo():
    # E = exp(-0.01) = 0.990050; 0.173648 · 0.0099502 / (1 - 0.984808 · 0.990050)
    assert spoiled(10, 1000, 10) == pytest.approx(0.06914, abs=5e-5)
    assert spoiled(500, 1000, 90) == pytest.approx(0.39347, abs=5e-5)  # 1 - exp(-0.5)


def test_inversion_recovery_is_an_mprage_without_a_train():
    # E = exp(-2.3) = 0.100259; M = (1 - E) / (1 + E) = 0.817754; 1 - 1.817754 · exp(-0.9)
    assert mprage(2300, 900, 1000, 90, 0, 0) == pytest.approx(0.26096, abs=5e-5)


@pytest.mark.parametrize("T1", [400.0, 1084.0, 4300.0])
def test_mprage_is_the_steady_state_of_its_steps(T1):
    TR, TI, flip, echoes, spacing = 2300, 900, 9, 176, 7.1
    a, M, signal = np.deg2rad(flip), 1.0, 0.0

    def relax(M, time):
        return 1 - (1 - M) * np.exp(-time / T1)

    for _ in range(40):
        M = relax(-M, TI - echoes // 2 * spacing)
        for echo in range(echoes):
            if echo == echoes // 2:
                signal = M * np.sin(a)
            M = relax(M * np.cos(a), spacing)
        M = relax(M, TR - TI - (echoes - echoes // 2) * spacing)
    assert mprage(TR, TI, T1, flip, echoes, spacing) == pytest.approx(signal, abs=1e-9)


def test_a_train_that_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="does not fit"):
        mprage(2300, 300, 1000, 9, 176, 7.1)


def test_turbo_spin_echo_and_flair():
    turbo = Sequence("turbo", TR=2000, TE=100)
    assert turbo.signal(0.8, 1000, 100) == pytest.approx(0.8 * 0.864665 * 0.367879, abs=1e-5)
    flair = Sequence("flair", TR=9000, TI=2500, TE=100)
    # 1 - 2 exp(-2.5) + exp(-9) = 0.835954
    assert flair.signal(1, 1000, 100) == pytest.approx(0.835954 * 0.367879, abs=1e-5)
    null = 2500 / np.log(2)  # of T1, if TR is long
    assert replace(flair, TR=1e6).signal(1, null, 1e9) == pytest.approx(0, abs=1e-6)


def test_the_agent_shortens_t1_as_its_relaxivity_says():
    table = relaxation_table()
    core, sequence = table.tissues[table.index("enhancing core")], table.sequences["T1c"]
    T1 = 1 / (1 / core.T1[1] + table.relaxivity[1] * core.agent / 1000)
    bare = replace(sequence, agent=False).signal(core.PD, T1, core.T2[1])
    white = table.tissues[table.index("white matter")]
    short = 1 / (1 / white.T1[1] + table.relaxivity[1] * white.agent / 1000)
    unit = replace(sequence, agent=False).signal(white.PD, short, white.T2[1])
    assert table.signals("T1c", 3.0)[1, table.index("enhancing core")] == pytest.approx(bare / unit, rel=1e-5)


@pytest.mark.parametrize("field", [1.5, 3.0])
def test_contrasts_look_as_readers_know_them(field):
    table = relaxation_table()

    def seen(contrast, name):
        return table.signals(contrast, field)[1, table.index(name)]

    assert seen("T1", "white matter") > seen("T1", "cortex") > seen("T1", "CSF")
    assert seen("T2", "CSF") > seen("T2", "cortex") > seen("T2", "white matter")
    assert seen("FLAIR", "edema") > seen("FLAIR", "cortex") > seen("FLAIR", "CSF")
    assert seen("T1c", "enhancing core") > 1.5 * seen("T1c", "white matter")
    for enhancing in ("vein", "mucosa", "choroid", "eye muscle", "choroid plexus"):
        assert seen("T1c", enhancing) > seen("T1c", "cortex")


def test_ct_numbers_are_those_of_the_table():
    table = relaxation_table()
    low, mean, high = table.signals("CT", 3.0)[:, table.index("lens")]
    assert (low, mean, high) == (87, 92, 97)
