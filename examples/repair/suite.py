"""A program and its test suite as data, and what the runner in the world reports about them."""

from __future__ import annotations

import ast
import json
import site
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

RUNNER = Path(__file__).with_name("runner.py")
SKIPPED = {"__pycache__", "venv", "node_modules", "build", "dist"}
TEST_LIMIT_S = 2.0  # CPU seconds that one test may take while nothing is known about the suite


@dataclass(frozen=True, slots=True)
class Program:
    """One folder with its own .py files and its test files. `problem` is the reason if it cannot be repaired, or
    empty.
    """

    name: str
    files: tuple[str, ...] = ()
    tests: tuple[str, ...] = ()
    problem: str = ""
    sources: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Suite:
    """A test suite as it was found: what failed, what did not end, and the CPU seconds that a test may take."""

    program: str
    tests: tuple[str, ...]
    passed: tuple[str, ...] = ()
    failing: tuple[str, ...] = ()
    hangs: tuple[str, ...] = ()
    limit: float = TEST_LIMIT_S


@dataclass(frozen=True, slots=True)
class Failure:
    """How one test failed. `compared` is (operator, left, right) of a failed comparison."""

    test: str
    status: str
    error: str = ""
    message: str = ""
    where: str = ""
    frames: tuple[tuple[str, int], ...] = ()
    compared: tuple[str, str, str] | None = None


@dataclass(frozen=True, slots=True)
class Survey:
    """A whole suite, run and traced. Counts are of (failing, passing) tests."""

    suite: Suite
    sources: dict[str, str] = field(default_factory=dict)
    failures: tuple[Failure, ...] = ()
    lines: tuple[tuple[str, int, int, int], ...] = ()  # path, line, counts
    holds: tuple[tuple[str, int, str, int, int], ...] = ()  # path, line of the function, predicate, counts
    imported: tuple[tuple[str, int], ...] = ()
    types: tuple[tuple[str, int, str, tuple[str, ...]], ...] = ()  # path, line of the function, name, types
    problem: str = ""

    def __str__(self) -> str:
        return self.problem or f"{len(self.suite.passed)} of {len(self.suite.passed) + len(self.failures)} tests pass"


@dataclass(frozen=True, slots=True)
class Trial:
    """What one edit did to a suite: the tests that it fixed, and whether the whole suite passes now.

    A run ends early if a test broke, or if nothing was fixed.
    """

    fixed: tuple[str, ...] = ()
    broke: bool = False
    passes: bool = False

    def __str__(self) -> str:
        return "passes" if self.passes else "breaks" if self.broke else f"fixes {len(self.fixed)}"


def find_programs(folder: Path) -> list[str]:
    """Return the sub-folders that contain Python files, in the order of their names."""
    folders = sorted(path for path in folder.iterdir() if path.is_dir() and not _skipped(path.name))
    return [path.name for path in folders if next(path.rglob("*.py"), None)]


def read_program(folder: Path) -> Program:
    """Read a program's folder."""
    found = (path for path in folder.rglob("*.py") if not path.is_symlink())
    files = sorted(path.relative_to(folder).as_posix() for path in found)
    files = [name for name in files if not any(_skipped(part) for part in name.split("/"))]
    tests = tuple(name for name in files if is_test(name))
    own = tuple(
        name for name in files if not is_test(name) and name.rsplit("/", 1)[-1] not in ("conftest.py", "setup.py")
    )
    if not tests:
        return Program(folder.name, problem="no tests: put them into test_*.py")
    if not own:
        return Program(folder.name, problem="no program beside the tests")
    sources = {}
    for name in own:
        try:
            sources[name] = (folder / name).read_bytes().decode("utf-8")
            ast.parse(sources[name])
        except UnicodeDecodeError:
            return Program(folder.name, problem=f"{name} is not UTF-8")
        except SyntaxError as error:
            return Program(folder.name, problem=f"{name}:{error.lineno} does not parse: {error.msg}")
        except (ValueError, RecursionError) as error:
            return Program(folder.name, problem=f"{name} does not parse: {error}")
    return Program(folder.name, own, tests, "", sources)


def _skipped(name: str) -> bool:
    return name.startswith(".") or name in SKIPPED


def is_test(name: str) -> bool:
    last = name.rsplit("/", 1)[-1]
    return last.startswith("test_") or last.endswith("_test.py") or last == "tests.py"


def command(mode: str, suite: Suite, files: Iterable[str] = ()) -> list[str]:
    """Return the command that runs the runner in a world, from the root of the workspace."""
    asked = {
        "mode": mode, "cwd": suite.program, "files": list(files), "tests": suite.tests,
        "limit": suite.limit, "failing": suite.failing, "hangs": suite.hangs,
    }  # fmt: skip
    return [sys.executable, "-S", "-c", RUNNER.read_text(), json.dumps(asked)]


def environment() -> dict[str, str]:
    """Return the runner's environment: this interpreter's packages, no plug-ins, the same hashes every time."""
    import pytest

    packages = [str(Path(pytest.__file__).parent.parent), *site.getsitepackages(), site.getusersitepackages()]
    return {
        "PYTHONPATH": ":".join(dict.fromkeys(path for path in packages if Path(path).is_dir())),
        "PYTHONHASHSEED": "0",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    }


def read_survey(program: Program, answer: dict[str, Any] | None) -> Survey:
    blank = Suite(program.name, program.tests)
    if answer is None:
        return Survey(
            blank, problem="the test run ended without a result (out of memory, or the interpreter crashed)"
        )
    outcomes, traced = answer["outcomes"], answer["traced"] or {}
    if not outcomes:
        return Survey(blank, problem="pytest found no test to run")
    failures = tuple(_failure(name, outcome) for name, outcome in outcomes.items() if outcome[0] != "passed")
    suite = Suite(
        program.name,
        program.tests,
        passed=tuple(name for name, outcome in outcomes.items() if outcome[0] == "passed"),
        failing=tuple(failure.test for failure in failures),
        hangs=tuple(failure.test for failure in failures if failure.status == "timeout"),
        limit=answer["limit"],
    )
    return Survey(
        suite,
        program.sources,
        failures,
        tuple((path, line, ef, ep) for path, line, ef, ep in traced.get("lines", ())),
        tuple((path, line, text, ef, ep) for path, line, text, ef, ep in traced.get("holds", ())),
        tuple((path, line) for path, line in traced.get("imported", ())),
        tuple((path, line, name, tuple(kinds)) for path, line, name, kinds in traced.get("types", ())),
    )


def _failure(name: str, outcome: list[Any]) -> Failure:
    status, error, message, where, frames, compared = outcome
    places = tuple((path, line) for path, line in frames)
    return Failure(name, status, error, message, where, places, tuple(compared) if compared else None)


def read_trial(suite: Suite, answer: dict[str, Any] | None) -> Trial:
    """Read a trial. A suite passes if pytest says so, and if every test that was there before ran and passed."""
    if answer is None or answer["exit"] not in (0, 1, 2):
        return Trial()
    status = {name: outcome[0] for name, outcome in answer["outcomes"].items()}
    broke = any(status.get(name, "passed") != "passed" for name in suite.passed)
    fixed = tuple(name for name in suite.failing if status.get(name) == "passed")
    there = all(status.get(name) == "passed" for name in suite.passed)
    left = any(status.get(name, "passed") != "passed" for name in suite.failing)
    return Trial(fixed, broke, passes=answer["exit"] == 0 and bool(status) and there and not left)
