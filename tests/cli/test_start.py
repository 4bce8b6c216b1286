"""The command as it is installed."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from ramify.cli.start import INTERRUPTED, main


def test_ctrl_c_before_everything_is_imported_is_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted(ModuleType):
        def __getattr__(self, name: str) -> object:
            raise KeyboardInterrupt

    monkeypatch.setitem(sys.modules, "ramify.cli.main", Interrupted("ramify.cli.main"))
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == INTERRUPTED
