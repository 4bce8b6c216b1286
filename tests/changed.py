"""Print the tests of what has changed since a commit, for `make check`: `python tests/changed.py [COMMIT]`.

A changed test is printed itself. A module `runtime/journal/refs.py` has the tests
`tests/runtime/journal/test_refs*.py`. A module without tests of its own name has those of its folder, or a choice of
them (`CHOICE`) where all take minutes. `ALSO` names tests that check a whole folder from elsewhere. Pages have the
tests of names and commands in them, but are not run: that takes minutes. Other files have none.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = (
    "api",
    "compiler",
    "fleet",
    "fork_engine",
    "images",
    "integrations",
    "runtime",
    "sandboxes",
    "serving",
    "tree_search",
    "worlds",
)
ALIASES = {
    "api/cli": "cli",
    "api/inspect": "inspect",
    "api/browse": "browse",
    "examples": "examples",
    "benchmarks": "benchmarks",
}
"""Folders of sources whose tests lie elsewhere than under the same path."""
ALSO = {
    "api/cli/commands": ("tests/cli/test_json.py", "tests/cli/test_read_only.py"),
    "compiler/passes": ("tests/compiler/test_pipeline.py", "tests/runtime/execution/test_passes_turned_off.py"),
    "serving/policy": ("tests/serving/policy/test_every_policy.py", "tests/serving/test_docs.py"),
}
"""Tests of everything in a folder that lie elsewhere, or have another name: of each command, pass and policy."""
CHOICE = {
    "tests/cli": (
        *("test_main.py", "test_start.py", "test_completion.py", "test_errors.py", "test_surroundings.py"),
        *("test_json.py", "test_read_only.py", "commands/test_listings.py", "commands/test_run.py"),
        "commands/test_resume_hostile_home.py",
    ),
    "tests/runtime": (
        *("execution/test_run.py", "execution/test_failures.py", "effects/test_ledger.py", "codec/test_codec.py"),
        "langgraph/app/test_world_app.py",
    ),
    "tests/runtime/execution": (
        *("test_run.py", "test_failures.py", "test_forks.py", "test_model_calls.py", "test_questions.py"),
        *("test_streaming.py", "test_edge_cases.py"),
    ),
    "tests/runtime/langgraph": ("app/test_world_app.py", "node/test_task_calls.py", "thread/test_channels.py"),
}
"""Folders whose tests take more than a minute, and those of them that use most of the code."""
PAGES = ("tests/docs/test_commands.py", "tests/docs/test_names.py")


def changed(commit: str) -> set[Path]:
    """Files that differ from the commit, and new ones, relative to the root."""
    commands = (["git", "diff", "--name-only", commit], ["git", "ls-files", "--others", "--exclude-standard"])
    found = (subprocess.run(each, cwd=ROOT, capture_output=True, text=True, check=True).stdout for each in commands)
    return {Path(line) for text in found for line in text.splitlines()}


def mirrors_of(path: Path) -> Iterator[Path]:
    if path.suffix == ".md":
        yield from map(Path, PAGES)
    if path.suffix != ".py":
        return
    if path.parts[0] == "tests":
        if path.name.startswith("test_") and (ROOT / path).exists():
            yield path
        return
    yield from (Path(test) for source, tests in ALSO.items() if path.is_relative_to(source) for test in tests)
    folder = mirrored(path)
    if folder is None:
        return
    named = sorted((ROOT / folder).glob(f"test_{path.stem}*.py"))
    yield from (each.relative_to(ROOT) for each in named)
    if not named:
        chosen = CHOICE.get(folder.as_posix())
        yield from (folder / test for test in chosen) if chosen else [folder]


def mirrored(path: Path) -> Path | None:
    """The nearest folder of tests that mirrors the folder of a source file."""
    folder = path.parent.as_posix()
    for source, tests in ALIASES.items():
        if f"{folder}/".startswith(f"{source}/"):
            folder = tests + folder.removeprefix(source)
            break
    else:
        if path.parts[0] not in PACKAGES:
            return None
    for mirror in (Path(folder), *Path(folder).parents):
        if mirror.parts and (ROOT / "tests" / mirror).is_dir():
            return Path("tests") / mirror
    return None


def main() -> None:
    commit = sys.argv[1] if len(sys.argv) > 1 else "HEAD"
    found = {test for path in changed(commit) for test in mirrors_of(path)}
    print(" ".join(str(test) for test in sorted(found) if not (set(test.parents) & found)))


if __name__ == "__main__":
    main()
