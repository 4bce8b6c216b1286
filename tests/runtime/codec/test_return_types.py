"""The result of an irreversible step is stored, or refused before the step begins; a performed step is never
repeated."""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, NamedTuple, NotRequired, TypedDict, TypeVar

import pytest
import results_app
from pydantic import BaseModel, ConfigDict

from ramify import Runtime
from ramify.runtime.codec import digests
from ramify.runtime.codec.return_types import refuse_unstorable_return
from ramify.runtime.errors import NotSerialisable, ResultNotKept, RunFailed
from ramify.runtime.execution import recorded_arguments
from ramify.runtime.records import EffectStatus


@pytest.fixture(autouse=True)
def paid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(results_app, "PAID", tmp_path / "paid")
    results_app.FOUND.clear()
    (tmp_path / "paid").touch()
    return tmp_path / "paid"


async def refusal(work: Any) -> BaseException | None:
    with pytest.raises(RunFailed) as caught:
        await work
    return caught.value.__cause__


async def test_a_parametrised_model_is_decoded(runtime: Runtime, workspace: Path, paid: Path) -> None:
    assert await runtime.run(results_app.pays_a_page, workspace=workspace) == 1
    assert runtime.last_run_id is not None
    (effect,) = await runtime.effects()
    assert (effect.status, paid.read_text()) == (EffectStatus.DONE, "page 1\n")


async def test_a_step_whose_result_cannot_be_stored_is_done_and_not_repeated(
    runtime: Runtime, workspace: Path, paid: Path
) -> None:
    error = await refusal(runtime.run(results_app.is_surprised, workspace=workspace))
    run = str(runtime.last_run_id)
    assert isinstance(error, ResultNotKept)
    assert f"ramify approve {run} pay_surprise --done --result" in str(error)
    (effect,) = await runtime.effects()
    assert (effect.status, effect.result_json) == (EffectStatus.DONE, None)
    assert "lock" in effect.note
    for _ in range(2):
        assert isinstance(await refusal(runtime.resume(run)), ResultNotKept)
    assert paid.read_text() == "surprise 1\n"

    await runtime.approve(run, "pay_surprise", happened=True, result={"by": "hand"})
    assert await runtime.resume(run) == [{"by": "hand"}, results_app.Page[results_app.Receipt](items=[{"number": 2}])]
    assert paid.read_text() == "surprise 1\npage 2\n"
    assert [one.status for one in await runtime.effects()] == [EffectStatus.DONE] * 2


async def test_a_person_may_decide_to_repeat_it(runtime: Runtime, workspace: Path, paid: Path) -> None:
    await refusal(runtime.run(results_app.is_surprised, workspace=workspace))
    run = str(runtime.last_run_id)
    await runtime.approve(run, "pay_surprise", happened=False)
    assert isinstance(await refusal(runtime.resume(run)), ResultNotKept)
    assert paid.read_text() == "surprise 1\nsurprise 1\n"


async def test_a_workflow_that_catches_it_does_not_pay_twice(runtime: Runtime, workspace: Path, paid: Path) -> None:
    assert isinstance(await refusal(runtime.run(results_app.catches, workspace=workspace)), ResultNotKept)
    assert isinstance(await refusal(runtime.resume(str(runtime.last_run_id))), ResultNotKept)
    assert paid.read_text() == "surprise 1\n"


async def test_a_reconcile_hook_gives_the_result(runtime: Runtime, workspace: Path, paid: Path) -> None:
    await refusal(runtime.run(results_app.asks, workspace=workspace))
    run = str(runtime.last_run_id)
    assert isinstance(await refusal(runtime.resume(run)), ResultNotKept), "it says that nothing happened: it did"
    results_app.FOUND[:] = [threading.Lock()]
    assert isinstance(await refusal(runtime.resume(run)), ResultNotKept)
    results_app.FOUND[:] = ["inv-1"]
    assert await runtime.resume(run) == "inv-1"
    assert paid.read_text() == "asked 1\n"


@pytest.mark.parametrize("name", results_app.STEPS)
async def test_a_declared_result_that_cannot_be_stored_is_refused_before_the_step(
    runtime: Runtime, workspace: Path, paid: Path, name: str
) -> None:
    error = await refusal(runtime.run(results_app.pays_by, name, workspace=workspace))
    assert isinstance(error, NotSerialisable)
    assert "was not begun" in str(error)
    assert paid.read_text() == ""
    assert await runtime.effects() == []


async def test_a_declaration_that_leaves_it_open_is_not_refused(
    runtime: Runtime, workspace: Path, paid: Path
) -> None:
    assert await runtime.run(results_app.pays_openly, workspace=workspace) == results_app.Known(1)
    assert paid.read_text() == "open\n"


async def test_a_workflow_whose_result_cannot_be_stored_creates_no_run(
    runtime: Runtime, workspace: Path, paid: Path
) -> None:
    with pytest.raises(NotSerialisable, match="was not begun"):
        await runtime.run(results_app.gives_a_response, workspace=workspace)
    assert (await runtime.store.runs(), paid.read_text()) == ([], "")


async def test_a_run_of_an_earlier_version_continues_and_pays_nothing_twice(
    runtime: Runtime, workspace: Path, paid: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its keys contain digests of arguments as that version encoded them."""
    (paid.parent / "fail").touch()
    with monkeypatch.context() as earlier:
        earlier.setattr(recorded_arguments, "digest_in_journal", lambda _, value, __: digests._digest_before(value))
        with pytest.raises(RunFailed):
            await runtime.run(results_app.pays_for, results_app.Receipt(number=1), workspace=workspace)
    with pytest.raises(RunFailed):  # once more under this version, which keeps to the keys of then
        await runtime.resume(str(runtime.last_run_id))
    (paid.parent / "fail").unlink()
    assert await runtime.resume(str(runtime.last_run_id)) == [1, 0]
    assert paid.read_text() == "1 CEST\n0 CEST\n"


@pytest.mark.parametrize("value", [threading.Lock(), [1, {2: results_app.Held()}], results_app.Response()])
async def test_arguments_that_cannot_be_stored_create_no_run(
    runtime: Runtime, workspace: Path, paid: Path, value: Any
) -> None:
    with pytest.raises(NotSerialisable, match="workflow 'takes': arguments"):
        await runtime.run(results_app.takes, value, workspace=workspace)
    assert await runtime.store.runs() == []


T = TypeVar("T")


class Plain:
    __slots__ = ("x",)  # no data class: the journal cannot keep it


@dataclass
class Box(Generic[T]):
    value: T


class Named(NamedTuple):
    plain: Plain


class NamedWell(NamedTuple):
    number: int
    names: list[str]


class Model(BaseModel):
    model_config = ConfigDict(arbitrary_types_allowed=True)
    plain: Plain


class Page(BaseModel, Generic[T]):
    model_config = ConfigDict(arbitrary_types_allowed=True)
    value: T


class Partly(TypedDict):
    plain: NotRequired[Plain]


class Plains(list[Plain]):
    pass


@dataclass
class Boxed(Box[Plain]):
    pass


def returns(declared: Any) -> Any:
    def step() -> Any: ...

    step.__annotations__["return"] = declared
    return step


@pytest.mark.parametrize(
    "declared",
    [
        *(Box[Plain], Box[list[Plain]], list[Box[Plain]], Named, Model, Page[Plain], Partly, Plains, Boxed),
        *(deque[Plain], OrderedDict[str, Plain], defaultdict[str, Plain], Counter[Plain], Iterable[Plain]),
    ],
    ids=str,
)
def test_a_declared_type_with_a_part_that_cannot_be_stored_is_refused(declared: Any) -> None:
    with pytest.raises(NotSerialisable, match="Plain"):
        refuse_unstorable_return(returns(declared), "step")


@pytest.mark.parametrize(
    "declared",
    [Box[int], Box, Box[list[str]], Page[int], NamedWell, deque[int], Iterable[str], Counter[str]],
    ids=str,
)
def test_a_declared_type_that_may_be_stored_is_not_refused(declared: Any) -> None:
    refuse_unstorable_return(returns(declared), "step")
