"""Log-probabilities of the embedded engine: as many as the client asked for.

Asked for those of the chosen tokens alone (`top_logprobs` 0 in a chat, `logprobs` 0 in a text completion), llama.cpp
gives none; where a chat does not say how many, it gives twenty. So it is always asked for one at least, and what
nobody asked for is cut off its answers.
"""

from __future__ import annotations

from collections.abc import Mapping

Json = Mapping[str, object]


def tops_asked(asked: Json) -> int | None:
    """How many alternatives to each token; None where no log-probabilities are asked for."""
    said = asked.get("logprobs")
    if "messages" not in asked:
        return int(said) if isinstance(said, int) and said is not False else None
    top = asked.get("top_logprobs")
    return (top if isinstance(top, int) else 0) if said is True else None


def for_llama_cpp(body: Json) -> dict[str, object]:
    """The request with the fewest alternatives for which llama.cpp gives log-probabilities."""
    if (tops := tops_asked(body)) is None:
        return dict(body)
    return {**body, "top_logprobs" if "messages" in body else "logprobs": max(1, tops)}


def cut(answer: Json, tops: int | None, *, whole: bool) -> Json:
    """An answer, or a chunk of one, with no more than `tops` alternatives. A whole answer has a list even if
    llama.cpp left it out: of half a character, it gives no log-probabilities."""
    choices = answer.get("choices")
    if tops is None or not isinstance(choices, list):
        return answer
    if not whole and not any(isinstance(choice, Mapping) and choice.get("logprobs") for choice in choices):
        return answer
    return {**answer, "choices": [_choice(choice, tops, whole=whole) for choice in choices]}


def _choice(choice: object, tops: int, *, whole: bool) -> object:
    if not isinstance(choice, Mapping):
        return choice
    said = choice.get("logprobs")
    if not isinstance(said, Mapping):
        return {**choice, "logprobs": {"content": []}} if whole else choice
    content = said.get("content")
    if not isinstance(content, list):
        return choice
    return {**choice, "logprobs": {**said, "content": [_entry(entry, tops) for entry in content]}}


def _entry(entry: Json, tops: int) -> Json:
    """A token with at most so many alternatives."""
    listed = entry.get("top_logprobs")
    return {**entry, "top_logprobs": listed[:tops]} if isinstance(listed, list) else entry
