"""What earlier processes recorded of a run is looked up by the arguments of a call."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, NamedTuple

from ramify.runtime.codec import codec
from ramify.runtime.journal.recorded_run import RecordedRun
from ramify.runtime.records import BranchPath, EffectRecord, EffectStatus, RunId


def recorded(run: Any, *effects: EffectRecord) -> RecordedRun:
    return RecordedRun(run, ops=[], llm=[], effects=effects, elsewhere=[], failed={}, emit=lambda _: None)


def test_arguments_without_classes_do_not_need_the_recorded_classes() -> None:
    found = recorded(SimpleNamespace(id="a run whose texts are not read", created_at=0.0, consumed_s=0.0))
    assert list(found.earlier_texts(codec.encode({"a": [1, "x", (2,)]}))) == []


class Way(NamedTuple):
    dst: str
    src: str


def taken(src: str, dst: str) -> EffectRecord:
    """An effect that was recorded when the class had the fields `src, dst`."""
    args = codec.encode({"way": Way(src, dst)}).replace('["dst","src"]', '["src","dst"]')
    key = f"main|take|{src}{dst}|0"
    return EffectRecord(RunId("r"), key, "take", BranchPath("main"), EffectStatus.DONE, key, args)


def test_an_effect_is_not_found_by_the_items_of_a_named_tuple_in_another_order() -> None:
    run, effects = (
        SimpleNamespace(id="r", args_json="null", created_at=0.0, consumed_s=0.0),
        [taken("b", "a"), taken("a", "b")],
    )
    assert recorded(run, *effects).effect_like("take", [codec.encode({"way": Way(src="a", dst="b")})]) is effects[1]
    assert recorded(run, *effects).effect_like("take", [codec.encode({"way": Way(src="b", dst="a")})]) is effects[0]
    assert recorded(run, *effects).effect_like("take", [codec.encode({"way": Way(src="b", dst="c")})]) is None
