from __future__ import annotations

from pathlib import Path

import pytest
from changed import mirrors_of


@pytest.mark.parametrize(
    ("source", "tests"),
    [
        ("runtime/refs.py", ["tests/runtime/test_refs.py"]),
        ("runtime/scope.py", ["tests/runtime"]),
        ("api/cli/diff.py", ["tests/cli/test_diff.py"]),
        ("compiler/passes/marks.py", ["tests/compiler/passes"]),
        ("tests/runtime/test_refs.py", ["tests/runtime/test_refs.py"]),
        ("tests/story.py", []),
        ("README.md", []),
        ("setup/other.py", []),
    ],
)
def test_a_changed_file_has_the_tests_that_mirror_it(source: str, tests: list[str]) -> None:
    assert [str(test) for test in mirrors_of(Path(source))] == tests
