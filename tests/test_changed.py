from __future__ import annotations

from pathlib import Path

import pytest
from changed import mirrors_of


@pytest.mark.parametrize(
    ("source", "tests"),
    [
        ("runtime/journal/refs.py", ["tests/runtime/journal/test_refs.py"]),
        ("runtime/user_code/scope.py", ["tests/runtime/user_code"]),
        ("api/cli/commands/diff.py", ["tests/cli/commands/test_diff.py"]),
        ("compiler/ir/rewrite.py", ["tests/compiler/ir"]),
        ("tests/runtime/journal/test_refs.py", ["tests/runtime/journal/test_refs.py"]),
        ("tests/story.py", []),
        ("README.md", []),
        ("setup/other.py", []),
    ],
)
def test_a_changed_file_has_the_tests_that_mirror_it(source: str, tests: list[str]) -> None:
    assert [str(test) for test in mirrors_of(Path(source))] == tests
