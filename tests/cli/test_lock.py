"""One run at a time on an output, for as long as it lives and no longer."""

from __future__ import annotations

import pytest

from tumoar.errors import BusyError
from tumoar.io.lock import locked


def test_a_lock_that_a_dead_run_left_stops_nobody(tmp_path):
    (tmp_path / ".out.lock").write_text("")
    with locked(tmp_path / "out"), pytest.raises(BusyError, match="B59"), locked(tmp_path / "out"):
        pass
    assert not (tmp_path / ".out.lock").exists()
