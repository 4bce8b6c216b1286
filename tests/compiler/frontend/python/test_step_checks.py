"""Workflows and steps that are refused, with an error that names the place and the correction."""

from __future__ import annotations

import compileall
import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ramify import Sandbox, step
from ramify.compiler.errors import SourceError, WorkflowError
from ramify.compiler.pipeline import compile_workflow
from ramify.runtime.errors import NotInARun


def test_an_endless_loop_of_steps_is_refused(compile_source: Callable[..., Any]) -> None:
    with pytest.raises(WorkflowError, match=r"sample.py:\d+:\d+ .*loop without an exit.*`break`"):
        compile_source("""
@workflow
async def flow():
    while True:
        await edit()
""")


WORKER = """
async def worker(queue):
    while True:
        await queue.get()
        await edit()
        queue.task_done()

@workflow
async def flow():
    queue = asyncio.Queue()
    {begun}
    await queue.join()
    await edit()
"""


def test_a_worker_that_is_cancelled_may_loop_without_end(compile_source: Callable[..., Any]) -> None:
    """As in the example of `asyncio.Queue`."""
    compilation = compile_source(WORKER.format(begun="worker_task = asyncio.create_task(worker(queue))"))
    assert [op.step for op in compilation.plan.ops if op.step] == ["edit", "edit"]
    with pytest.raises(WorkflowError, match="loop without an exit"):
        compile_source(WORKER.format(begun="await worker(queue)"))


def test_two_steps_of_one_name_in_two_modules_are_refused(compile_source: Callable[..., Any]) -> None:
    with pytest.raises(WorkflowError, match=r"two steps are called same.*rename one of them"):
        compile_source("""
def made(module):
    async def same(sandbox: Sandbox): ...
    same.__module__ = module
    same.__qualname__ = "same"
    return step(same)
one, two = made("a"), made("b")
@workflow
async def flow():
    await one(); await two()
""")


def test_a_workflow_called_in_a_step_is_refused(compile_source: Callable[..., Any]) -> None:
    with pytest.raises(WorkflowError, match=r"step outer calls the workflow inner.*plain async function"):
        compile_source("""
@workflow
async def inner(): ...
@step
async def outer(sandbox: Sandbox):
    await inner()
@workflow
async def flow():
    await outer()
""")


@pytest.mark.parametrize("body", ["fork([1])", "await fork([1])", "for _ in [1]: fork([2])", "await one(fork([1]))"])
def test_a_fork_that_is_not_entered_is_refused(body: str, compile_source: Callable[..., Any]) -> None:
    with pytest.raises(WorkflowError, match=r"sample\.py:\d+: fork\(...\) is not entered.*write `async with fork"):
        compile_source(f"@step\nasync def one(x): ...\n@workflow\nasync def flow():\n    {body}\n")


@pytest.mark.parametrize(
    ("body", "dropped"),
    [
        ("one()", "one"),
        ("inner()", "inner"),
        ("helper()", "one"),
        ("async with fork([1]) as branches: branches.map(one)", "branches.map"),
        ("async with fork([1]) as branches: branches.best().adopt()", "branches.best().adopt"),
    ],
)
def test_a_call_that_nobody_awaits_is_refused(body: str, dropped: str, compile_source: Callable[..., Any]) -> None:
    program = """
@step
async def one(sandbox: Sandbox): ...
@workflow
async def inner(): await one()
def helper():
    one()
@workflow
{kind} flow():
    {body}
"""
    with pytest.raises(WorkflowError, match="is called without `await`") as error:
        compile_source(program.format(kind="async def", body=body))
    assert error.value.what.startswith(f"{dropped}(...)")
    assert f"`await {dropped}(...)`" in error.value.mend
    assert error.value.where.endswith(":19" if body == "helper()" else ":22")  # the program begins at 12
    compile_source(program.format(kind="def", body=body.replace("async with", "with")))  # it waits by itself


def test_two_steps_of_one_name_in_one_file(compile_source: Callable[..., Any]) -> None:
    with pytest.raises(WorkflowError, match=r"two steps are called same.*rename one of them"):
        compile_source("""
async def first(sandbox: Sandbox): ...
async def second(sandbox: Sandbox): ...
first.__qualname__ = second.__qualname__ = "same"
first, second = step(first), step(second)
@workflow
async def flow():
    await first(); await second()
""")


@pytest.mark.parametrize(
    ("signature", "what"),
    [
        ("(sandbox: Sandbox, lock: threading.Lock)", "takes, as lock, a Lock"),
        ("(sandbox: Sandbox, files: list[IO[str]])", "takes, as files, a IO"),
        ("(sandbox: Sandbox, key: Callable[[int], int])", "takes, as key, a Callable"),
        ("(sandbox: Sandbox) -> Generator[int, None, None]", "returns a Generator"),
    ],
)
def test_a_step_with_a_type_that_cannot_be_stored_is_refused(
    compile_source: Callable[..., Any], signature: str, what: str
) -> None:
    with pytest.raises(WorkflowError, match=f"step bad {what}") as error:
        compile_source(f"""
import threading
from typing import IO, Callable, Generator
@step
async def bad{signature}: ...
@workflow
async def flow():
    await bad()
""")
    assert error.value.where.startswith("app/sample.py:")
    assert "pass what it is made from" in error.value.mend


@pytest.mark.parametrize(
    ("body", "what"),
    [
        ("return lambda: sandbox.path", "returns a function that holds its world sandbox"),
        ("def later(): return sandbox.path\n    return [later]", "returns a function that holds its world sandbox"),
        ("return kept.path", "holds a world in kept"),
    ],
)
def test_a_step_that_keeps_its_world_is_refused(compile_source: Callable[..., Any], body: str, what: str) -> None:
    with pytest.raises(WorkflowError, match=f"step bad {what}") as error:
        compile_source(f"""
Sandbox.__ramify_world__ = True
kept = Sandbox()
@step
async def bad(sandbox: Sandbox):
    {body}
@workflow
async def flow():
    await bad()
""")
    assert error.value.where.startswith("app/sample.py:")


def test_a_step_called_outside_a_workflow_raises_with_the_place() -> None:
    @step
    async def alone(sandbox: Sandbox) -> None: ...

    with pytest.raises(NotInARun, match=r"alone' was called at python/test_step_checks.py:\d+ outside .*@workflow"):
        alone()


def test_a_workflow_without_its_source_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after `python -m compileall -b`, where Python loads the bytecode."""
    file = tmp_path / "sourceless_flow.py"
    file.write_text("from ramify import workflow\n\n\n@workflow\nasync def flow() -> int:\n    return 1\n")
    compileall.compile_file(file, legacy=True, quiet=1)
    file.unlink()
    monkeypatch.syspath_prepend(tmp_path)
    flow = importlib.import_module("sourceless_flow").flow
    with pytest.raises(SourceError, match=r"sourceless_flow.py is not there, empty or not readable; put the file"):
        compile_workflow(flow, ref="sourceless_flow:flow")
