"""The official Python clients of OpenAI and Anthropic, unchanged, against the embedded engine.

Each event is held strictly against the client's own types."""

from __future__ import annotations

import json
from typing import Any, Literal

import httpx
import openai
import pytest
from openai.types import Completion, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import BaseModel, TypeAdapter

# At temperature 0, and so long an answer that every reply is cut: none may end by a chance of sampling.
STORY = "Write a long story about a river, a mill and a dog."
ASK: list[Any] = [{"role": "user", "content": STORY}]
TOOL = {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}}
LOGPROBS = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
CITY: Any = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Bern", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}
pytestmark = pytest.mark.model


class City(BaseModel):
    city: Literal["Bern", "Rome"]


def _adapted(type_: Any) -> TypeAdapter[Any]:
    return TypeAdapter(type_)


@pytest.mark.parametrize(
    ("path", "body", "whole", "event"),
    [
        ("/chat/completions", {"messages": ASK, "max_tokens": 4}, ChatCompletion, ChatCompletionChunk),
        (
            "/chat/completions",
            {"messages": ASK, "max_tokens": 4, "functions": [], "tools": []},
            ChatCompletion,
            ChatCompletionChunk,
        ),
        (
            "/chat/completions",
            {"messages": ASK, "max_tokens": 3, "logprobs": True, "stream_options": {"include_usage": True}},
            ChatCompletion,
            ChatCompletionChunk,
        ),
        ("/completions", {"prompt": STORY, "max_tokens": 4, "logprobs": 2}, Completion, Completion),
        ("/responses", {"input": STORY, "max_output_tokens": 3}, Response, ResponseStreamEvent),
        ("/responses", {"input": ASK, "tools": [TOOL], "max_output_tokens": 9}, Response, ResponseStreamEvent),
        ("/responses", {"input": STORY, "max_output_tokens": 3, **LOGPROBS}, Response, ResponseStreamEvent),
    ],
)
def test_every_object_is_valid(served: str, path: str, body: dict[str, Any], whole: Any, event: Any) -> None:
    with httpx.Client(base_url=served, timeout=120) as client:
        answer = client.post(path, json={"temperature": 0, **body})
        streamed = client.post(path, json={"temperature": 0, **body, "stream": True})
    assert (answer.status_code, streamed.status_code) == (200, 200)
    _adapted(whole).validate_json(answer.text, strict=True)
    events = [line[6:] for line in streamed.text.split("\n") if line.startswith("data: {")]
    assert len(events) >= 2
    for one in events:
        said = json.loads(one)
        if whole is Completion:  # OpenAI itself sends null before the end, against its client's types
            for choice in said["choices"]:
                choice["finish_reason"] = choice["finish_reason"] or "stop"
        _adapted(event).validate_json(json.dumps(said), strict=True)


async def test_openai_helpers(served: str) -> None:
    async with openai.AsyncOpenAI(base_url=served, api_key="none", max_retries=0) as client:
        name = (await client.models.list()).data[0].id
        assert isinstance(await client.models.retrieve(name), Model)
        stream = await client.chat.completions.create(
            model=name, messages=ASK, max_tokens=4, stream=True, temperature=0
        )
        assert "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
        named = {"name": "city", "schema": CITY, "strict": True}
        chat_format: Any = {"type": "json_schema", "json_schema": named}
        async with client.chat.completions.stream(
            model=name, messages=ASK, response_format=chat_format, temperature=0
        ) as helper:
            assert "content.delta" in [event.type async for event in helper]
            chat = (await helper.get_final_completion()).choices[0]
        assert (json.loads(chat.message.content or "")["city"] in ("Bern", "Rome"), chat.finish_reason) == (
            True,
            "stop",
        )
        async with client.responses.stream(model=name, input=STORY, max_output_tokens=4, temperature=0) as responses:
            events = [event async for event in responses]
        text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
        cut = events[-1]
        assert cut.type == "response.incomplete"
        assert (cut.response.output_text, cut.response.status) == (text, "incomplete")
        async with client.responses.stream(model=name, input="Say A.", text_format=City, temperature=0) as responses:
            parsed = await responses.get_final_response()
        assert parsed.output_parsed is not None and parsed.output_parsed.city in ("Bern", "Rome")
        format_: Any = {"type": "json_schema", "name": "city", "schema": CITY, "strict": True}
        shaped = await client.responses.create(
            model=name, input="Name a city.", text={"format": format_}, temperature=0
        )
        assert json.loads(shaped.output_text)["city"] in ("Bern", "Rome")
        assert shaped.status == "completed"


async def test_several_answers_and_log_probabilities(served: str) -> None:
    async with openai.AsyncOpenAI(base_url=served, api_key="none", max_retries=0) as client:
        asked: dict[str, Any] = {"model": "m", "messages": ASK, "max_tokens": 3, "temperature": 0}
        two = await client.chat.completions.create(**asked, n=2)
        assert two.usage is not None and two.usage.completion_tokens == 6
        assert two.choices[0].message.content == two.choices[1].message.content
        texts = await client.completions.create(model="m", prompt=["a", "b c"], max_tokens=2, temperature=0)
        assert texts.usage is not None and texts.usage.completion_tokens == 4
        for top in (openai.NOT_GIVEN, 0, 2):
            said = (await client.chat.completions.create(**asked, logprobs=True, top_logprobs=top)).choices[0]
            assert said.logprobs is not None and said.logprobs.content is not None
            assert [len(one.top_logprobs) for one in said.logprobs.content] == [top or 0] * 3
        chosen = await client.completions.create(model="m", prompt="a", max_tokens=2, logprobs=0, temperature=0)
        assert chosen.choices[0].logprobs is not None and len(chosen.choices[0].logprobs.tokens or ()) == 2


async def test_anthropic_tool_runner(served: str) -> None:
    """It asks the server to keep the conversation, and goes on without if the server says that it does not."""
    anthropic = pytest.importorskip("anthropic", reason="the official Anthropic client is not installed")
    tool = anthropic.beta_tool(lambda: "3", name="count", description="Counts.", input_schema=CITY)
    with anthropic.Anthropic(base_url=served.removesuffix("/v1"), api_key="none", max_retries=0) as client:
        runner = client.beta.messages.tool_runner(model="any", max_tokens=3, messages=ASK, tools=[tool])
        assert runner.until_done().usage.output_tokens == 3


async def test_anthropic_helpers(served: str) -> None:
    anthropic = pytest.importorskip("anthropic", reason="the official Anthropic client is not installed")
    root = served.removesuffix("/v1")
    async with anthropic.AsyncAnthropic(base_url=root, api_key="none", max_retries=0) as client:
        asked: dict[str, Any] = {"model": "any", "max_tokens": 4, "messages": ASK, "extra_body": {"temperature": 0}}
        whole = await client.messages.create(**asked)
        async with client.messages.stream(**asked) as stream:
            text = "".join([piece async for piece in stream.text_stream])
            final = await stream.get_final_message()
        begun: list[Any] = [*ASK, {"role": "assistant", "content": "Once there"}]
        goes_on = await client.messages.create(**{**asked, "messages": begun})
        counted = await client.messages.count_tokens(model="any", messages=ASK)
        listed = await client.models.list()
        raw = await client.models.with_raw_response.retrieve(listed.data[0].id)
        anthropic.types.ModelInfo.model_validate_json((await raw.text()), strict=True)
    assert not goes_on.content[0].text.startswith("Once there")
    assert (whole.content[0].text, whole.stop_reason) == (text, "max_tokens")
    assert (final.stop_reason, final.usage.output_tokens) == ("max_tokens", 4)
    assert (listed.first_id, listed.last_id, listed.has_more) == (listed.data[0].id, listed.data[-1].id, False)
    assert counted.input_tokens == whole.usage.input_tokens == final.usage.input_tokens


async def test_what_is_not_served_is_an_error_of_the_clients_own(served: str) -> None:
    """Also where the client sends a form, or no content type at all."""
    async with openai.AsyncOpenAI(base_url=served, api_key="none", max_retries=0) as client:
        for asked in (
            client.embeddings.create(model="m", input="a"),
            client.files.create(file=b"a", purpose="batch"),
            client.files.delete("file"),
            client.audio.transcriptions.create(file=("a.wav", b"a"), model="m"),
            client.moderations.create(input="a"),
            client.responses.retrieve("resp"),
            client.responses.delete("resp"),
            client.responses.cancel("resp"),
            client.models.retrieve("none"),
        ):
            with pytest.raises(openai.NotFoundError) as missing:
                await asked
            assert missing.value.param in ("path", "model")
        long: list[Any] = [{"role": "user", "content": "word " * 9000}]
        with pytest.raises(openai.BadRequestError) as refused:
            await client.chat.completions.create(model="m", messages=long)
        assert (refused.value.code, refused.value.param) == ("context_length_exceeded", "messages")
        seen: list[Any] = [{"role": "user", "content": [{"type": "video_url", "video_url": {"url": "http://a/b"}}]}]
        with pytest.raises(openai.BadRequestError) as refused:
            await client.chat.completions.create(model="m", messages=seen)
        assert refused.value.param == "messages" and "127.0.0.1" not in str(refused.value)


async def test_what_is_not_served_is_an_error_of_anthropics_client(served: str) -> None:
    anthropic = pytest.importorskip("anthropic", reason="the official Anthropic client is not installed")
    root = served.removesuffix("/v1")
    async with anthropic.AsyncAnthropic(base_url=root, api_key="none", max_retries=0) as client:
        for asked in (
            client.messages.batches.create(requests=[]),
            client.messages.batches.delete("batch"),
            client.beta.files.upload(file=("a.txt", b"a")),
            client.models.retrieve("none"),
        ):
            with pytest.raises(anthropic.NotFoundError) as missing:
                await asked
            assert missing.value.body["error"]["type"] == "not_found_error"
