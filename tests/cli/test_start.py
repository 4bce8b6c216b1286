"""The command as it is installed."""

from __future__ import annotations

import subprocess
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


def test_ctrl_c_that_an_import_turns_into_another_error_is_quiet() -> None:
    program = """
import os, signal, sys, types
class Importing(types.ModuleType):
    def __getattr__(self, name):
        try:
            os.kill(os.getpid(), signal.SIGINT)
            for _ in range(1000): pass  # Python calls the handler between two instructions
        except KeyboardInterrupt:
            raise SyntaxError("can't load unicodedata module") from None
signal.signal(signal.SIGINT, signal.default_int_handler)  # also if the tests run in the background of a shell
sys.modules["ramify.cli.main"] = Importing("ramify.cli.main")
from ramify.cli.start import main
main()
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (INTERRUPTED, "")
