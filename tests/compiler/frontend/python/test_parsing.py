"""Code is parsed again if CPython confused the depths of two trees that threads built at once."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ramify.compiler.frontend.python.parsing import parsed, tree_of


def raising(*errors: Exception) -> Callable[[], str]:
    left = list(errors)

    def parse() -> str:
        if left:
            raise left.pop(0)
        return "tree"

    return parse


def test_a_confused_depth_is_parsed_again() -> None:
    confused = SystemError("AST constructor recursion depth mismatch (before=153, after=173)")
    assert parsed(raising(confused, confused)) == "tree"
    with pytest.raises(SystemError, match="mismatch"):
        parsed(raising(*[confused] * 100))


def test_other_errors_are_the_callers() -> None:
    with pytest.raises(SystemError, match="other"):
        parsed(raising(SystemError("other")))
    with pytest.raises(SyntaxError) as caught:
        tree_of("def", "file.py")
    assert caught.value.filename == "file.py"
