from __future__ import annotations

from pathlib import Path

import pytest
from changed import ALIASES, ALSO, CHOICE, PACKAGES, PAGES, ROOT, mirrors_of


@pytest.mark.parametrize(
    ("source", "tests"),
    [
        ("runtime/journal/refs.py", ["tests/runtime/journal/test_refs.py"]),
        ("runtime/user_code/scope.py", ["tests/runtime/user_code"]),
        (
            "runtime/execution/steps.py",
            [f"tests/runtime/execution/{test}" for test in CHOICE["tests/runtime/execution"]],
        ),
        (
            "api/cli/commands/diff.py",
            ["tests/cli/test_json.py", "tests/cli/test_read_only.py", "tests/cli/commands/test_diff.py"],
        ),
        ("api/cli/registry.py", [f"tests/cli/{test}" for test in CHOICE["tests/cli"]]),
        ("tree_search/search.py", ["tests/tree_search/test_search.py"]),
        ("integrations/openai_agents.py", ["tests/integrations/test_openai_agents.py"]),
        ("compiler/ir/rewrite.py", ["tests/compiler/ir"]),
        ("tests/runtime/journal/test_refs.py", ["tests/runtime/journal/test_refs.py"]),
        ("tests/story.py", []),
        ("README.md", ["tests/docs/test_commands.py", "tests/docs/test_names.py"]),
        ("setup/other.py", []),
    ],
)
def test_a_changed_file_has_the_tests_that_mirror_it(source: str, tests: list[str]) -> None:
    assert [str(test) for test in mirrors_of(Path(source))] == tests


def test_every_package_and_every_test_that_is_named_exists() -> None:
    folders = {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"tests", *ALIASES}
    assert set(PACKAGES) == folders
    named = [*ALIASES, *ALSO, *PAGES, *(test for tests in ALSO.values() for test in tests)]
    named += [f"{folder}/{test}" for folder, tests in CHOICE.items() for test in tests]
    assert [name for name in named if not (ROOT / name).exists()] == []
