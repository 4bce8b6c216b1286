"""Model calls that are answered from earlier ones, and those that must not be."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ramify import Runtime, fork, llm, workflow
from ramify.runtime.errors import RunFailed, WrongReuse
from ramify.serving.client import LLMClient
from ramify.serving.testing import ScriptedModel
from ramify.serving.types import ChatRequest

ASKED: list[ChatRequest] = []
BROKEN: list[str] = []  # while this is not empty, `sampling` raises


def script(request: ChatRequest) -> str:
    ASKED.append(request)
    return f"answer {len(ASKED)}"


@pytest.fixture
async def client() -> AsyncIterator[LLMClient]:
    ASKED.clear()
    model = ScriptedModel(script)
    async with LLMClient("http://model.test/v1", transport=model, honours_seed=True) as opened:
        yield opened


@workflow
async def asking(temperature: float, seed: int | None) -> list[str]:
    async with fork([1, 2]) as branches:

        async def on(branch: object) -> str:
            return (await llm.chat("what?", temperature=temperature, seed=seed)).text

        return list(await asyncio.gather(*map(on, branches)))


async def said(home: Path, client: LLMClient, model: str | None, *asked: object, **more: object) -> list[str]:
    async with Runtime(home=home, sandbox="copy", llm=client, model=model, **more) as runtime:  # type: ignore[arg-type]
        result: list[str] = await runtime.run(asking, *asked)
        return result


async def test_equal_calls_are_made_once_across_branches_and_runs(home: Path, client: LLMClient) -> None:
    assert await said(home, client, "m", 0.0, 7) == ["answer 1"] * 2
    assert await said(home, client, "m", 0.0, 7) == ["answer 1"] * 2
    assert len(ASKED) == 1


@pytest.mark.parametrize(("temperature", "seed"), [(0.0, None), (0.7, 7)])
async def test_calls_that_may_differ_are_made_again(
    home: Path, client: LLMClient, temperature: float, seed: int | None
) -> None:
    assert len(set(await said(home, client, "m", temperature, seed))) == 2


async def test_calls_to_a_server_that_may_ignore_seeds_are_made_again(home: Path, client: LLMClient) -> None:
    client.honours_seed = False
    assert len(set(await said(home, client, "m", 0.0, 7))) == 2


async def test_answers_of_other_and_unnamed_models_are_not_reused(home: Path, client: LLMClient) -> None:
    assert await said(home, client, "m", 0.0, 7) == ["answer 1"] * 2
    assert await said(home, client, "n", 0.0, 7) == ["answer 2"] * 2
    assert await said(home, client, None, 0.0, 7) == ["answer 3"] * 2
    assert await said(home, client, None, 0.0, 7) == ["answer 4"] * 2


async def test_reuse_at_any_temperature_if_requested(home: Path, client: LLMClient) -> None:
    assert await said(home, client, "m", 0.7, 7, reuse_answers=True) == ["answer 1"] * 2


@workflow
async def sampling(temperature: float) -> list[str]:
    async with fork([1, 2]) as branches:

        async def on(branch: object) -> list[str]:
            return list(await llm.propose("what?", n=2, temperature=temperature))

        found = await asyncio.gather(*map(on, branches))
    if BROKEN:
        raise RuntimeError(BROKEN[0])
    return [text for texts in found for text in texts]


async def test_samples_stay_distinct_and_a_resume_repeats_no_call(home: Path, client: LLMClient) -> None:
    """Two samples of one prompt are two calls. A resumed run uses its own answers at any temperature."""
    BROKEN[:] = ["not yet"]
    async with Runtime(home=home, sandbox="copy", llm=client, model="m", reuse_answers=True) as runtime:
        with pytest.raises(RunFailed):
            await runtime.run(sampling, 0.7)
    assert len(ASKED) == 2
    BROKEN.clear()
    async with Runtime(home=home, sandbox="copy", llm=client, model="m") as later:  # which does not ask for reuse
        said = await later.resume(str(runtime.last_run_id))
        assert len(set(said)) == 2 and said[:2] == said[2:]
        assert len(ASKED) == 2
        assert len(set(await later.run(sampling, 0.7))) == 4  # a run of its own asks for each
    assert len(ASKED) == 6


async def test_the_checking_mode_repeats_the_call(home: Path, client: LLMClient) -> None:
    with pytest.raises(RunFailed) as caught:
        await said(home, client, "m", 0.0, 7, check_reuse=1.0)
    assert isinstance(caught.value.__cause__, WrongReuse)


@workflow
async def with_luck() -> str:
    if BROKEN:
        raise ConnectionError("no luck")
    return (await llm.chat("what?", temperature=0.0, seed=7)).text


async def test_answers_after_a_change_of_server_are_not_reused(home: Path) -> None:
    """The run's settings name only the server with which it began."""

    def at(name: str) -> LLMClient:
        return LLMClient(f"http://{name}.test/v1", transport=ScriptedModel(lambda _: name), honours_seed=True)

    async with at("one") as one, at("other") as other:
        BROKEN.append("now")
        async with Runtime(home=home, sandbox="copy", llm=one, model="m") as runtime:
            with pytest.raises(RunFailed):
                await runtime.run(with_luck)
            run = str(runtime.last_run_id)
        BROKEN.clear()
        async with Runtime(home=home, sandbox="copy", llm=other, model="m") as runtime:
            assert await runtime.resume(run) == "other"
        for client, name in ((one, "one"), (other, "other"), (one, "one")):
            async with Runtime(home=home, sandbox="copy", llm=client, model="m") as runtime:
                assert await runtime.run(with_luck) == name
                told = [call.reused_from is not None for call in await runtime.llm_calls()]
        assert told == [True]  # by the first run of these
