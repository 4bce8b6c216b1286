"""`llm.stream`: pieces while the answer comes, and the same pieces in a resumed run."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import stream_app
from hypothesis import given
from hypothesis import strategies as st

from ramify import Runtime, llm
from ramify.runtime.errors import NotInARun, RunError, RunFailed, RunWaiting
from ramify.runtime.execution.streamed_answers import Pieces, answer_pieces, pieces_of
from ramify.serving.client import LLMClient
from ramify.serving.testing import Fault, ScriptedModel
from ramify.serving.types import ChatResult

TEXT = "The river is wide and slow."
PIECES = ["The ", "river ", "is ", "wide ", "and ", "slow."]
LONG = TEXT + " So it is." * 200
"""Not complete before the workflow stops in the middle, however slow its steps are."""


@asynccontextmanager
async def runtime_with(model: ScriptedModel, home: Path) -> AsyncIterator[Runtime]:
    async with (
        LLMClient("http://model.test/v1", transport=model, retries=0) as client,
        Runtime(home=home, sandbox="copy", llm=client) as runtime,
    ):
        yield runtime


async def asked_then_resumed(
    flow: Any, home: Path, first: ScriptedModel, *args: Any, then: str = "Other words."
) -> tuple[Any, ScriptedModel]:
    """Run until the question, then resume with a model that answers differently."""
    async with runtime_with(first, home) as runtime:
        with pytest.raises(RunWaiting):
            await runtime.run(flow, "?", *args)
        run = str(runtime.last_run_id)
    other = ScriptedModel(lambda _: then)
    async with runtime_with(other, home) as runtime:
        return await runtime.resume(run, answer="yes"), other


@given(st.text("ab \n\t日本한.", max_size=60), st.lists(st.integers(0, 60), max_size=6))
def test_pieces_depend_on_the_text_alone(text: str, cuts: list[int]) -> None:
    pieces, got, at = Pieces(), list[str](), 0
    for cut in [*sorted(min(cut, len(text)) for cut in cuts), len(text)]:
        got += pieces.add(text[at:cut])
        at = cut
    got += pieces.end()
    assert (got, "".join(got)) == (list(pieces_of(text)), text)


def test_a_piece_is_a_word_or_an_ideograph() -> None:
    assert list(pieces_of(TEXT)) == PIECES
    assert list(pieces_of("日本 ok")) == ["日", "本 ", "ok"]


async def test_pieces_come_before_the_answer_is_complete(home: Path) -> None:
    model = ScriptedModel(lambda _: TEXT, token_s=0.05)
    async with runtime_with(model, home) as runtime:
        came = [(piece, len(model.finished)) async for piece in stream_app.spoken.stream("?")]
        assert [piece for piece, _ in came] == PIECES
        assert came[0][1] == 0
        assert len(await runtime.llm_calls()) == 1


async def test_a_plain_function_reads_them_too(home: Path) -> None:
    async with runtime_with(ScriptedModel(lambda _: TEXT), home) as runtime:
        assert await runtime.run(stream_app.spoken_in_a_thread, "?") == PIECES


async def test_steps_between_the_pieces_and_the_answer_are_recorded(home: Path) -> None:
    model = ScriptedModel(lambda _: TEXT, token_s=0.01)
    got, other = await asked_then_resumed(stream_app.steps_between, home, model)
    assert (got, other.calls) == ([*map(str.upper, PIECES), TEXT], [])


@pytest.mark.parametrize("token_s", [0.0, 0.05])
async def test_who_leaves_stops_the_model_and_leaves_at_the_same_word_again(home: Path, token_s: float) -> None:
    model = ScriptedModel(lambda _: TEXT, token_s=token_s)
    got, other = await asked_then_resumed(stream_app.first_words, home, model, 2)
    assert (got, other.calls) == (PIECES[:2], [])
    if token_s:
        assert (model.finished, model.active) == ([], 0)


async def test_what_was_read_stands_after_a_failure(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_app, "STOPS", True)
    async with runtime_with(ScriptedModel(lambda _: LONG, token_s=0.05), home) as runtime:
        with pytest.raises(RunFailed):
            await runtime.run(stream_app.first_words, "?", 2)
        monkeypatch.setattr(stream_app, "STOPS", False)
        with pytest.raises(RunWaiting):
            await runtime.resume(str(runtime.last_run_id))
        assert await runtime.resume(str(runtime.last_run_id), answer="yes") == PIECES[:2]


async def test_a_timeout_falls_at_the_same_word_again(home: Path) -> None:
    model = ScriptedModel(lambda _: TEXT, token_s=0.1)
    got, other = await asked_then_resumed(stream_app.until_time_is_up, home, model)
    assert got[-1] == "…"
    assert PIECES[: len(got) - 1] == got[:-1]
    assert other.calls == []


async def test_an_answer_that_breaks_in_the_middle_breaks_there_again(home: Path) -> None:
    model = ScriptedModel(lambda _: TEXT, faults=[Fault.CUT])
    got, other = await asked_then_resumed(stream_app.or_else, home, model)
    assert (got[0], got[-1], other.calls) == ("The ", "LLMUnavailable", [])


@pytest.mark.parametrize("then", [TEXT, "Other words."])
async def test_who_reads_on_after_all_gets_the_rest_or_an_error(
    home: Path, monkeypatch: pytest.MonkeyPatch, then: str
) -> None:
    """The code changed: it reads beyond the word at which an earlier process left."""

    async def at_once(*_: object) -> None: ...

    model = ScriptedModel(lambda _: TEXT, token_s=0.05)
    async with runtime_with(model, home) as runtime:
        with pytest.raises(RunWaiting):
            await runtime.run(stream_app.first_words, "?", 2)
        run = str(runtime.last_run_id)
    monkeypatch.setattr("ramify.runtime.execution.streamed_answers.until_cancelled_again", at_once)
    monkeypatch.setattr(stream_app, "MORE", True)
    async with runtime_with(ScriptedModel(lambda _: then), home) as runtime:
        if then == TEXT:
            assert await runtime.resume(run, answer="yes") == PIECES
        else:
            with pytest.raises(RunFailed, match="in other words"):
                await runtime.resume(run, answer="yes")


@pytest.mark.parametrize("then", [TEXT, "Other words."])
async def test_an_effect_in_the_middle_is_not_repeated_for_other_words(
    home: Path, monkeypatch: pytest.MonkeyPatch, then: str
) -> None:
    stream_app.SENT.clear()
    monkeypatch.setattr(stream_app, "STOPS", True)
    async with runtime_with(ScriptedModel(lambda _: LONG, token_s=0.05), home) as runtime:
        with pytest.raises(RunFailed):
            await runtime.run(stream_app.sent_word_by_word, "?")
        run = str(runtime.last_run_id)
    monkeypatch.setattr(stream_app, "STOPS", False)
    async with runtime_with(ScriptedModel(lambda _: then), home) as runtime:
        if then == TEXT:
            assert await runtime.resume(run) == PIECES == stream_app.SENT
        else:
            for _ in range(2):  # it stays so: the workflow has not caught it
                with pytest.raises(RunFailed, match="in other words"):
                    await runtime.resume(run)
            assert PIECES[:2] == stream_app.SENT


async def test_an_answer_in_other_words_is_not_recorded_however_late_its_reader_comes(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next resume would take it for the answer that was read. Here its reader does not compare it at all."""
    stream_app.SENT.clear()
    monkeypatch.setattr(stream_app, "STOPS", True)
    async with runtime_with(ScriptedModel(lambda _: LONG, token_s=0.05), home) as runtime:
        with pytest.raises(RunFailed):
            await runtime.run(stream_app.sent_word_by_word, "?")
        run = str(runtime.last_run_id)
    monkeypatch.setattr(stream_app, "STOPS", False)
    monkeypatch.setattr(
        "ramify.runtime.execution.streamed_answers._after", lambda before, answered, journal: answered
    )
    async with runtime_with(ScriptedModel(lambda _: "Other"), home) as runtime:
        with pytest.raises(RunFailed, match="in other words"):
            await runtime.resume(run)
        assert await runtime.llm_calls(run) == []


async def test_a_run_that_failed_in_the_middle_asks_again(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_app, "STOPS", True)
    async with runtime_with(ScriptedModel(lambda _: LONG, token_s=0.05), home) as runtime:
        with pytest.raises(RunFailed):
            await runtime.run(stream_app.asked_then_failed, "?")
        run = str(runtime.last_run_id)
    monkeypatch.setattr(stream_app, "STOPS", False)
    async with runtime_with(ScriptedModel(lambda _: "Other words."), home) as runtime:
        assert await runtime.resume(run) == ["OTHER ", "WORDS."]


async def test_equal_calls_of_two_readers_are_not_swapped(home: Path) -> None:
    model = ScriptedModel(lambda _: TEXT, token_s=0.01)
    with pytest.raises(RunError, match="two tasks that read streamed answers called step 'number'"):
        await asked_then_resumed(stream_app.two_at_once, home, model)


async def test_a_pace_holds_pieces_back_and_the_answer_is_fetched_all_the_same() -> None:
    waited, now = list[float](), 0.0

    async def send(hear: Callable[[str], None]) -> ChatResult:
        hear(TEXT)
        return ChatResult(TEXT, "stop", "m")

    async def sleep(seconds: float) -> None:
        nonlocal now
        waited.append(seconds)
        now += seconds

    said = [one async for one in answer_pieces(send, 0.44, lambda: now, sleep)]
    assert said[:-1] == PIECES
    assert waited == pytest.approx([0.4, 0.6, 0.3, 0.5]), (
        "a tenth of a second for each letter before; not for the last"
    )


async def test_a_step_may_read_a_stream(home: Path) -> None:
    async with runtime_with(ScriptedModel(lambda _: TEXT), home) as runtime:
        assert await runtime.run(stream_app.in_a_step, "?") == "|".join(PIECES)
        (call,) = await runtime.llm_calls()
    assert call.step_key is not None


async def test_outside_a_run_it_says_so() -> None:
    with pytest.raises(NotInARun):
        llm.stream("?")
