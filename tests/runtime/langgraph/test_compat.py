"""Private names of LangGraph are imported in the compat modules only, and those agree with each other."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import ramify.runtime.langgraph
from ramify.runtime.langgraph import compat
from ramify.runtime.langgraph.checkpointer import compat as checkpoint_compat
from ramify.runtime.langgraph.errors import LangGraphChanged

PRIVATE = re.compile(r"^\s*from langgraph(\.\w+)*\._|^\s*from langgraph\S* import \(?\s*_\w", re.MULTILINE)


def test_only_compat_modules_import_private_names() -> None:
    folder = Path(ramify.runtime.langgraph.__file__).parent
    found = {str(path.relative_to(folder)) for path in folder.rglob("*.py") if PRIVATE.search(path.read_text())}
    assert found == {"compat.py", "checkpointer/compat.py"}


def test_the_name_of_a_channel_is_the_same_in_both() -> None:
    assert checkpoint_compat.ERROR_SOURCE_NODE == compat.ERROR_SOURCE_NODE


def test_an_unsupported_version_is_refused() -> None:
    compat.refuse_unsupported("langgraph", compat.SUPPORTED)
    with pytest.raises(LangGraphChanged, match=r"langgraph .* is installed, .* works with 0\.1\.\*"):
        compat.refuse_unsupported("langgraph", ("0.1",))
