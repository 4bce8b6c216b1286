"""A stand-in for the public API, which the compiler recognises by its attributes.

It runs, so that the position of a running frame can be compared with the sites in the plan.
"""

from __future__ import annotations

import functools
import importlib.util
import linecache
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from ramify.compiler.declarations import StepInfo, WorkflowInfo
from ramify.compiler.pipeline import Compilation, compile_workflow
from ramify.compiler.plan import Effect, OpKind, site_file

SAMPLES = Path(__file__).parent / "samples"


class Recorder:
    """Records every call of the stand-ins: (kind, step, file, line, column) of the caller's frame."""

    def __init__(self) -> None:
        self.calls: list[tuple[OpKind, str | None, str, int, int]] = []

    def call(self, kind: OpKind, step: str | None = None) -> None:
        frame = sys._getframe(2)
        line, _, column, _ = list(frame.f_code.co_positions())[frame.f_lasti // 2]
        assert line is not None and column is not None
        self.calls.append((kind, step, site_file(frame.f_code.co_filename), line, column))


async def _value(value: Any) -> Any:
    return value


def stand_in(recorder: Recorder) -> ModuleType:
    class Sandbox:
        pass

    class Step:
        def __init__(self, function: Callable[..., Any], effect: Effect | None, reuse: bool) -> None:
            functools.update_wrapper(self, function)
            hints = function.__annotations__.items()
            sandbox = next((name for name, hint in hints if "Sandbox" in str(hint)), None)
            named = function.__qualname__, function.__module__
            self.__ramify_step__ = StepInfo(*named, effect, sandbox is not None, reuse, sandbox=sandbox)

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            recorder.call(OpKind.RUN, self.__ramify_step__.name)
            return _value(args[0] if args else None)

    def step(function: Any = None, *, effect: Effect | None = None, reuse: bool = False) -> Any:
        return Step(function, effect, reuse) if function else lambda f: Step(f, effect, reuse)

    def workflow(function: Any = None, *, deadline_s: float | None = None) -> Any:
        if function is None:
            return lambda f: workflow(f, deadline_s=deadline_s)
        function.__ramify_workflow__ = WorkflowInfo(function.__qualname__, "sample", deadline_s)
        return function

    class Context:
        def __init__(self, value: Any) -> None:
            self.value = value

        async def __aenter__(self) -> Any:
            return self.value

        async def __aexit__(self, *error: object) -> None:
            return None

    class Branch:
        def enter(self) -> Context:
            return Context(Sandbox())

        def adopt(self) -> Any:
            recorder.call(OpKind.MERGE)
            return _value(None)

    class Branches(list[Branch]):
        def map(self, step: Any, *args: Any) -> Any:
            recorder.call(OpKind.RUN, step.__ramify_step__.name)
            return _value(self)

        def run(self, step: Any, *args: Any) -> Any:
            recorder.call(OpKind.RUN, step.__ramify_step__.name)
            return _value(self)

        def best(self, **how: Any) -> Branch:
            return self[0]

    class Fork:
        __ramify_fork__ = True

        def __call__(self, items: Any) -> Context:
            recorder.call(OpKind.FORK)
            return Context(Branches(Branch() for _ in items))

    class Llm:
        __ramify_llm__ = True

        def chat(self, *args: Any, **kwargs: Any) -> Any:
            recorder.call(OpKind.CALL_LLM)
            return _value("text")

        def propose(self, *args: Any, n: int = 1) -> Any:
            recorder.call(OpKind.CALL_LLM)
            return _value(["text"] * n)

    module = ModuleType("stand_in")
    module.__dict__.update(
        Sandbox=Sandbox, step=step, workflow=workflow, fork=Fork(), llm=Llm(), Effect=Effect, recorder=recorder
    )
    return module


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
def api(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = stand_in(recorder)
    monkeypatch.setitem(sys.modules, "stand_in", module)
    return module


@pytest.fixture
def load(api: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., ModuleType]]:
    """Import a file that begins with `from stand_in import …`, under its stem or another name."""

    def load_file(path: Path, name: str = "") -> ModuleType:
        linecache.clearcache()
        spec = importlib.util.spec_from_file_location(name or path.stem, path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, spec.name, module)
        spec.loader.exec_module(module)
        return module

    yield load_file
    linecache.clearcache()


@pytest.fixture
def compile_source(load: Callable[[Path], ModuleType], tmp_path: Path) -> Callable[..., Compilation]:
    """Compile the function `flow` of a module given as text, which imports the stand-ins."""

    def compile_text(text: str, name: str = "flow") -> Compilation:
        path = tmp_path / "app" / "sample.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text("from __future__ import annotations\nimport asyncio\nfrom stand_in import *\n" + STEPS + text)
        linecache.clearcache()
        return compile_workflow(getattr(load(path), name), ref=f"app/sample.py:{name}")

    return compile_text


STEPS = """
@step
async def edit(sandbox: Sandbox, x=None): ...
@step
async def test(sandbox: Sandbox, x=None): ...
@step(effect=Effect.PURE)
async def score(x=None): ...
@step(effect=Effect.IRREVERSIBLE)
async def mail(x=None): ...
"""


@pytest.fixture
def sample(load: Callable[[Path], ModuleType]) -> Callable[[str], ModuleType]:
    return lambda name: load(SAMPLES / f"{name}.py")
