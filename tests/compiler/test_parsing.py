"""Code is parsed again if CPython confused the depths of two trees that threads built at once."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path

import pytest

from ramify.compiler.parsing import parsed, shared_tree_of, tree_of


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


def test_whatever_runs_in_a_users_threads_parses_so() -> None:
    """Threads compile graphs, load values and look for results at once."""
    root = Path(__file__).parents[4]
    files = [file for package in ("compiler", "runtime") for file in (root / package).rglob("*.py")]
    for file in files:
        if "ast.parse" not in (text := file.read_text()):
            continue
        calls = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
        guarded = {inner for call in calls if ast.unparse(call.func) == "parsed" for inner in ast.walk(call)}
        bare = [call.lineno for call in calls if ast.unparse(call.func) == "ast.parse" and call not in guarded]
        assert not bare, f"{file.relative_to(root)}:{bare}"


def test_other_errors_are_the_callers() -> None:
    with pytest.raises(SystemError, match="other"):
        parsed(raising(SystemError("other")))
    with pytest.raises(SyntaxError) as caught:
        tree_of("def", "file.py")
    assert caught.value.filename == "file.py"


def test_one_text_of_a_file_has_one_tree() -> None:
    first = shared_tree_of("x = 1", "file.py")
    assert shared_tree_of("x = 1", "file.py") is first
    assert shared_tree_of("x = 2", "file.py") is not first  # the file was changed
    assert shared_tree_of("x = 1", "other.py") is not first


def test_the_kept_trees_are_bounded() -> None:
    first = shared_tree_of("x = 1", "bounded.py")
    shared_tree_of(f"x = '{'-' * (1 << 18)}'", "long.py")
    assert shared_tree_of("x = 1", "bounded.py") is not first
