"""Search everything that a run recorded: names, summaries, results, errors, messages, answers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

from ramify.browse.web.responses import Hit
from ramify.compiler.plan import OpKind
from ramify.inspect.history import History, Moment
from ramify.runtime.codec import codec
from ramify.serving.types import ChatResult

MOST = 200  # hits; add words to narrow the search
_AROUND = 60  # characters on either side


def search(history: History, words: str, stopped: Callable[[], bool] = lambda: False) -> list[Hit]:
    """Rows that contain `words`, ignoring case, in the order of the run; each once, with its first match.

    `stopped`: asked before each row. Once it is true, the search ends with the hits so far."""
    wanted = words.casefold().strip()
    if not wanted:
        return []
    found: list[Hit] = []
    for moment in history.moments:
        if stopped():
            break
        if moment.kind is OpKind.SEAL:  # has the same text as its step
            continue
        for where, text in _texts(history, moment):
            excerpt = _excerpt(text, wanted)
            if excerpt is not None:
                found.append(Hit(moment.seq, moment.branch, moment.name, where, excerpt))
                break
        if len(found) == MOST:
            break
    return found


def _texts(history: History, moment: Moment) -> Iterator[tuple[str, str]]:
    yield "name", moment.name
    yield "summary", moment.summary
    yield "branch", moment.branch
    if moment.op is not None:
        yield "error", moment.op.error or ""
        yield "result", _plain(history.result_of(moment.op))
    if moment.llm is not None:
        answer = codec.decode_own(moment.llm.result_json, ChatResult)
        yield "answer", answer.text
        yield "messages", _plain(moment.llm.request_json)


def _plain(text: str | None) -> str:
    """The strings and numbers of a stored value, without JSON's escapes and the codec's tags."""
    return "" if text is None else "\n".join(_strings(json.loads(text)))


def _strings(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        coded = "$" in value
        for name, item in value.items():
            if not (coded and name in ("$", "t")):
                yield "" if coded else name
                yield from _strings(item)
    elif isinstance(value, list):
        for item in value:
            yield from _strings(item)
    elif value is not None:
        yield str(value)


def _excerpt(text: str, wanted: str) -> str | None:
    at = text.casefold().find(wanted)
    if at < 0:
        return None
    start, end = max(0, at - _AROUND), at + len(wanted) + _AROUND
    inner = " ".join(text[start:end].split())
    return ("…" if start else "") + inner + ("…" if end < len(text) else "")
