"""Run LangGraph's own test suite over Ramify: which of its tests pass, by how much of LangGraph Ramify replaces.

    pip download --no-deps --no-binary :all: langgraph==VERSION && tar xzf langgraph-VERSION.tar.gz
    python benchmarks/langgraph_suite.py langgraph-VERSION/tests --mode A --json a.json

The tests are copied to a temporary folder and run there against the installed LangGraph. They are not part of this
repository. They need pytest-mock, syrupy, pycryptodome, redis and langgraph-checkpoint-postgres in addition to the
development dependencies. No server is contacted (`NO_DOCKER`).

| mode | what Ramify replaces |
|---|---|
| plain | nothing: the baseline |
| sync | nothing, but `durability="exit"` is raised to `"sync"`: what fails here and in A fails for that reason |
| S | the checkpointer, by `ramify.graph.Saver`; only tests that are parametrised by a checkpointer run |
| B | `StateGraph.compile` and `@entrypoint` if the graph has a checkpointer, by `ramify.compile` |
| A | the same for every graph |
| C | as A, and every function node and task writes a file in its world |

This file is also the pytest plugin that replaces them, so it imports Ramify only in that role.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

MODES = ("plain", "sync", "S", "B", "A", "C")
_RESULTS_FILE = "results.jsonl"
_MODE, _RESULTS, _FOLDER = "RAMIFY_SUITE_MODE", "RAMIFY_SUITE_RESULTS", "RAMIFY_SUITE_FOLDER"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tests", type=Path, help="the folder tests/ of an unpacked source distribution")
    parser.add_argument("--mode", choices=MODES, default="A")
    parser.add_argument("--json", type=Path, help="write each test's outcome here")
    parser.add_argument("--resume", action="store_true", help="leave out the tests whose outcomes --json has already")
    parser.add_argument("--log", type=Path, help="append what pytest prints here")
    parser.add_argument("--timeout", type=float, default=60.0, help="seconds a test may take (60)")
    parser.add_argument("-k", dest="keyword", help="only tests that match, as in pytest")
    parser.add_argument("--files", nargs="*", default=[], help="only these files of tests/")
    parser.add_argument("--slice", type=float, default=1800.0, help="seconds one process of pytest may take (1800)")
    parser.add_argument("--workers", type=int, default=0, help="processes that share the tests (needs pytest-xdist)")
    parser.add_argument(
        "--gate", action="store_true", help="exit with 1 if a test fails twice here and passes in plain LangGraph"
    )
    parser.add_argument("--under", default="", help="a command to run each pytest process with, such as nice")
    options = parser.parse_args(argv)
    outcomes: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(options.tests, Path(folder, "tests"))
        if options.resume and options.json is not None and options.json.exists():
            outcomes.update(json.loads(options.json.read_text())["tests"])
            lines = (json.dumps(outcome) + "\n" for outcome in outcomes.items())
            Path(folder, _RESULTS_FILE).write_text("".join(lines))
        while _run_slice(Path(folder), options, outcomes):
            if options.json is not None:
                options.json.write_text(json.dumps({"mode": options.mode, "tests": outcomes}, indent=1))
        print(json.dumps({"mode": options.mode, "tests": len(outcomes), **Counter(outcomes.values())}))
        return _gate(Path(folder), options, outcomes) if options.gate else 0


def _gate(folder: Path, options: argparse.Namespace, outcomes: dict[str, str]) -> int:
    """Return 1 if no test ran, or one fails that passes in plain LangGraph. Each failed test is run once more."""
    failed = [test for test, outcome in outcomes.items() if outcome not in ("passed", "skipped")]
    for mode in (options.mode, "plain"):
        again: dict[str, str] = {}
        chosen = argparse.Namespace(**{**vars(options), "mode": mode, "keyword": None, "workers": 0})
        chosen.files = [test.removeprefix("tests/") for test in failed]
        (folder / _RESULTS_FILE).unlink(missing_ok=True)
        while failed and _run_slice(folder, chosen, again):
            pass
        failed = [test for test in failed if (again.get(test) == "passed") == (mode == "plain")]
    for test in failed:
        print(f"fails in mode {options.mode} only: {test}")
    return 1 if failed or not outcomes else 0


def _run_slice(folder: Path, options: argparse.Namespace, outcomes: dict[str, str]) -> bool:
    """Run tests that have no outcome yet, until the slice ends or the process dies. Returns False if none ran."""
    results = folder / _RESULTS_FILE
    env = {
        **os.environ,
        _MODE: options.mode,
        _RESULTS: str(results),
        _FOLDER: str(folder / "homes"),
        "NO_DOCKER": "true",
        "PYTHONPATH": os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), str(Path(__file__).parent)])),
    }
    run = [*shlex.split(options.under), sys.executable, "-m", "pytest", "-q", "--tb=short", "-rN"]
    run += ["-p", "langgraph_suite", "-p", "no:cacheprovider", f"--timeout={options.timeout}"]
    run += [f"--session-timeout={options.slice}", *(["-k", options.keyword] if options.keyword else [])]
    run += ["-n", str(options.workers)] if options.workers else []
    run += [f"tests/{name}" for name in options.files] or ["tests"]
    done = subprocess.run(run, cwd=folder, env=env, capture_output=True, text=True)
    if options.log is not None:
        with options.log.open("a") as log:
            log.write(done.stdout + done.stderr)
    found: dict[str, str] = {}
    for line in results.read_text().splitlines() if results.exists() else ():
        test, outcome = json.loads(line)
        if found.get(test) != "failed":  # an error at teardown counts
            found[test] = outcome
    # a test that began and has no outcome is the one that killed the process
    new = {test: "died" if outcome == "began" else outcome for test, outcome in found.items() if test not in outcomes}
    outcomes.update(new)
    shutil.rmtree(folder / "homes", ignore_errors=True)
    return bool(new)


# The pytest plugin


class _Suite:
    """The homes, workspaces and results of the tests of one process."""

    def __init__(self, mode: str, folder: Path, results: Path) -> None:
        self.mode = mode
        self._folder = folder
        self._results = results
        self._number = itertools.count()
        self._open: list[Any] = []
        self.begin()

    def begin(self) -> None:
        """Give the next test a home and a workspace of its own."""
        self._at = self._folder / f"{os.getpid()}-{next(self._number)}"
        (self._at / "workspace").mkdir(parents=True)
        self._open.clear()  # apps compiled during collection live as long as the tests

    def end(self) -> None:
        for app in self._open:
            app.close()

    def known(self) -> set[str]:
        """Return the tests that an earlier process has run."""
        lines = self._results.read_text().splitlines() if self._results.exists() else []
        return {json.loads(line)[0] for line in lines}

    def note(self, test: str, outcome: str) -> None:
        with self._results.open("a") as file:
            file.write(json.dumps([test, outcome]) + "\n")

    def over(self, graph: Any, checkpointer: Any) -> Any:
        from langgraph.checkpoint.base import BaseCheckpointSaver

        import ramify

        if self.mode == "B" and not isinstance(checkpointer, BaseCheckpointSaver):
            return graph
        app = ramify.compile(graph, workspace=self._at / "workspace", home=self._at / "home", sandbox="copy")
        self._open.append(app)
        return app

    def saver(self) -> Any:
        from ramify.graph import Saver

        return Saver(self._at / "checkpoints.db")

    def replace_compile(self) -> None:
        from langgraph.func import entrypoint
        from langgraph.graph import StateGraph

        compile_, call = StateGraph.compile, entrypoint.__call__

        def compiled(builder: Any, checkpointer: Any = None, **options: Any) -> Any:
            return self.over(compile_(builder, checkpointer, **options), checkpointer)

        def called(point: Any, function: Any) -> Any:
            return self.over(call(point, function), point.checkpointer)

        StateGraph.compile = compiled  # type: ignore[assignment]
        entrypoint.__call__ = called  # type: ignore[method-assign]

    def write_files(self) -> None:
        """Make every function node and task write a file of its own before its code runs."""
        from ramify import current_sandbox
        from ramify.runtime.langgraph.node.node_code import Code

        run, arun = Code.run, Code.arun
        names = (f"written-{number}" for number in itertools.count())

        def written(code: Any, *given: Any, **options: Any) -> Any:
            if code.is_function:
                (current_sandbox().path / next(names)).write_text("here")
            return run(code, *given, **options)

        async def awritten(code: Any, *given: Any, **options: Any) -> Any:
            if code.is_function:
                (current_sandbox().path / next(names)).write_text("here")
            return await arun(code, *given, **options)

        Code.run, Code.arun = written, awritten  # type: ignore[method-assign]

    def raise_durability(self) -> None:
        from langgraph.pregel import Pregel

        from ramify.runtime.langgraph.app.world_app import _raise_durability
        from ramify.runtime.langgraph.compat import CONF, ensure_config

        stream, astream = Pregel.stream, Pregel.astream

        def raised(graph: Any, config: Any, options: dict[str, Any]) -> dict[str, Any]:
            _raise_durability(options, ensure_config(graph.config, config)[CONF])
            return options

        def streamed(graph: Any, input: Any, config: Any = None, **options: Any) -> Any:
            return stream(graph, input, config, **raised(graph, config, options))

        def astreamed(graph: Any, input: Any, config: Any = None, **options: Any) -> Any:
            return astream(graph, input, config, **raised(graph, config, options))

        Pregel.stream, Pregel.astream = streamed, astreamed  # type: ignore[method-assign]

    def replace_savers(self, conftest: Any) -> None:
        @contextmanager
        def sync_saver() -> Iterator[Any]:
            saver = self.saver()
            yield saver
            saver.close()

        @asynccontextmanager
        async def async_saver() -> AsyncIterator[Any]:
            saver = self.saver()
            yield saver
            saver.close()

        for name in list(vars(conftest)):
            if name.startswith("_checkpointer_"):
                setattr(conftest, name, async_saver if name.endswith("_aio") else sync_saver)


if _MODE in os.environ and __name__ != "__main__":
    _suite = _Suite(os.environ[_MODE], Path(os.environ[_FOLDER]), Path(os.environ[_RESULTS]))

    def pytest_configure(config: Any) -> None:
        if _suite.mode in ("B", "A", "C"):
            _suite.replace_compile()
        if _suite.mode == "sync":
            _suite.raise_durability()
        if _suite.mode == "C":
            _suite.write_files()
        if _suite.mode == "S":
            _suite.replace_savers(sys.modules["tests.conftest"])

    def pytest_collection_modifyitems(config: Any, items: list[Any]) -> None:
        known = _suite.known()
        items[:] = [item for item in items if item.nodeid not in known]
        if _suite.mode == "S":  # all savers are replaced by the same one: run each test once
            items[:] = [item for item in items if "memory" in _savers_of(item)]

    def _savers_of(item: Any) -> list[str]:
        given = getattr(item, "callspec", None)
        return [given.params[name] for name in _SAVERS if name in given.params] if given is not None else []

    _SAVERS = ("sync_checkpointer", "async_checkpointer")

    def pytest_runtest_setup(item: Any) -> None:
        _suite.note(item.nodeid, "began")
        _suite.begin()

    def pytest_runtest_logreport(report: Any) -> None:
        if report.when == "call" or report.outcome != "passed":
            _suite.note(report.nodeid, report.outcome)
        if report.when == "teardown":
            _suite.end()


if __name__ == "__main__":
    sys.exit(main())
