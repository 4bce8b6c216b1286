from __future__ import annotations

import json
from typing import Any

import pytest

from ramify.serving.gateway.dialects import CHAT, TEXT
from ramify.serving.gateway.formats.apis import CHATS, TEXTS, at_engine
from ramify.serving.gateway.formats.log_probabilities import cut, for_llama_cpp, tops_asked
from ramify.serving.gateway.formats.responses import ResponseOfChat

CHAT_ASKED: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]}
TOPS = [{"token": name, "logprob": -1.0, "bytes": [97]} for name in "abc"]
ENTRY: dict[str, Any] = {"token": "a", "logprob": -1.0, "bytes": [97], "top_logprobs": TOPS}


def _chat(logprobs: object) -> dict[str, Any]:
    message = {"role": "assistant", "content": "a"}
    choice = {"index": 0, "message": message, "finish_reason": "stop", "logprobs": logprobs}
    return {"id": "c", "created": 1, "model": "m", "choices": [choice]}


@pytest.mark.parametrize(
    ("asked", "tops", "sent"),
    [
        ({**CHAT_ASKED, "logprobs": True}, 0, {"top_logprobs": 1}),
        ({**CHAT_ASKED, "logprobs": True, "top_logprobs": 0}, 0, {"top_logprobs": 1}),
        ({**CHAT_ASKED, "logprobs": True, "top_logprobs": 5}, 5, {}),
        ({**CHAT_ASKED, "logprobs": False}, None, {}),
        (CHAT_ASKED, None, {}),
        ({"prompt": "a", "logprobs": 0}, 0, {"logprobs": 1}),
        ({"prompt": "a", "logprobs": 3}, 3, {}),
        ({"prompt": "a", "logprobs": False}, None, {}),
        ({"prompt": "a"}, None, {}),
    ],
)
def test_what_is_asked_of_llama_cpp(asked: dict[str, Any], tops: int | None, sent: dict[str, Any]) -> None:
    assert tops_asked(asked) == tops
    assert for_llama_cpp(asked) == {**asked, **sent}


@pytest.mark.parametrize("tops", [0, 2])
def test_a_chat_has_as_many_alternatives_as_were_asked_for(tops: int) -> None:
    asked = {**CHAT_ASKED, "logprobs": True, "top_logprobs": tops}
    api = at_engine(CHATS, llama_cpp=True)
    whole: Any = api.answer(asked).whole(_chat({"content": [ENTRY]}), {})
    assert [len(entry["top_logprobs"]) for entry in whole["choices"][0]["logprobs"]["content"]] == [tops]
    chunk = {"choices": [{"index": 0, "delta": {"content": "a"}, "logprobs": {"content": [ENTRY]}}]}
    said = api.answer(asked).event(b"data: {}", chunk, CHAT.read(chunk))
    assert len(json.loads(said[6:])["choices"][0]["logprobs"]["content"][0]["top_logprobs"]) == tops


def test_what_nobody_asked_for_goes_as_it_came() -> None:
    chunk = {"choices": [{"index": 0, "delta": {"content": "a"}, "logprobs": {"content": [ENTRY]}}]}
    assert cut(chunk, None, whole=True) is chunk  # llama.cpp's own `n_probs`
    told = at_engine(CHATS, llama_cpp=True).answer(CHAT_ASKED).event(b"data: raw", chunk, CHAT.read(chunk))
    assert told == b"data: raw\n\n"


def test_a_whole_answer_of_half_a_character_has_an_empty_list() -> None:
    """Clients read `choice.logprobs.content` where they asked for it."""
    asked = {**CHAT_ASKED, "logprobs": True}
    whole: Any = at_engine(CHATS, llama_cpp=True).answer(asked).whole(_chat(None), {})
    assert whole["choices"][0]["logprobs"] == {"content": []}


def test_a_text_has_the_chosen_tokens_alone() -> None:
    choice = {"index": 0, "text": "a", "finish_reason": "stop", "logprobs": {"content": [ENTRY]}}
    asked = {"prompt": "x", "logprobs": 0}
    whole: Any = at_engine(TEXTS, llama_cpp=True).answer(asked).whole({"choices": [choice]}, {})
    said = whole["choices"][0]["logprobs"]
    assert said == {"tokens": ["a"], "token_logprobs": [-1.0], "top_logprobs": [{}], "text_offset": [0]}
    assert TEXT.read({"choices": [choice]}).ends


@pytest.mark.parametrize(("top", "said"), [(None, 0), (2, 2)])
def test_a_response_has_as_many_as_were_asked_for(top: int | None, said: int) -> None:
    asked = {"input": "hi", "include": ["message.output_text.logprobs"], "top_logprobs": top}
    whole: Any = ResponseOfChat(asked).whole(_chat({"content": [ENTRY]}), {})
    (entry,) = whole["output"][0]["content"][0]["logprobs"]
    assert (entry["token"], len(entry["top_logprobs"])) == ("a", said)
