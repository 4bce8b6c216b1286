"""The saver takes the configs that LangGraph's savers take, and refuses those that they refuse."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest
from langgraph.checkpoint.base import BaseCheckpointSaver, empty_checkpoint
from langgraph.checkpoint.sqlite import SqliteSaver

from ramify import Saver

NAMED = {"thread_id": "1", "checkpoint_ns": "", "checkpoint_id": "a"}


def conf(**changed: Any) -> Any:
    return {"configurable": {**NAMED, **changed}}


def without(*keys: str) -> Any:
    return {"configurable": {key: value for key, value in NAMED.items() if key not in keys}}


ODD: list[Any] = [
    None,
    {},
    conf(),
    conf(thread_id="other"),
    conf(thread_id=1),
    conf(checkpoint_ns=None),
    conf(checkpoint_ns="below:1"),
    conf(checkpoint_ns=5),
    conf(checkpoint_id=None),
    conf(checkpoint_id=""),
    conf(checkpoint_id=7),
    without("checkpoint_id"),
    without("checkpoint_ns"),
    without("checkpoint_ns", "checkpoint_id"),
    without("thread_id"),
    {"configurable": {}},
]


def checkpoint(id: Any) -> Any:
    return {**empty_checkpoint(), "id": id}


def filled(saver: BaseCheckpointSaver[Any]) -> BaseCheckpointSaver[Any]:
    for thread, ns, id in [("1", "", "a"), ("1", "", "b"), ("1", "below:1", "c"), ("2", "", "d")]:
        saver.put({"configurable": {"thread_id": thread, "checkpoint_ns": ns}}, checkpoint(id), {}, {})
    return saver


def outcome(do: Callable[[], Any]) -> Any:
    """What it returns, or the type of its error."""
    try:
        return do()
    except Exception as error:  # noqa: BLE001  the type of any error is what is compared
        return type(error)


def got(saver: BaseCheckpointSaver[Any], config: Any) -> Any:
    found = saver.get_tuple(config)
    return found and found.checkpoint["id"]


def listed(saver: BaseCheckpointSaver[Any], config: Any) -> Any:
    return [found.checkpoint["id"] for found in saver.list(config)]


def put(saver: BaseCheckpointSaver[Any], config: Any) -> Any:
    saver.put(config, checkpoint("e"), {}, {})
    return {thread: listed(saver, {"configurable": {"thread_id": thread}}) for thread in ("1", "other")}


def wrote(saver: BaseCheckpointSaver[Any], config: Any) -> Any:
    saver.put_writes(config, [("log", "written")], "task")
    return [found.pending_writes for found in saver.list(None)]


@pytest.mark.parametrize("config", ODD, ids=repr)
@pytest.mark.parametrize("do", [got, listed, put, wrote])
def test_a_config_means_what_it_means_there(
    do: Callable[[BaseCheckpointSaver[Any], Any], Any], config: Any, address: str
) -> None:
    with SqliteSaver.from_conn_string(":memory:") as theirs, Saver(address) as ours:
        expected = outcome(lambda: do(filled(theirs), config))
        if config is not None and config.get("configurable", {}).get("checkpoint_ns", "") is None and do is put:
            expected = TypeError  # as on PostgreSQL: their SQLite stores it where nothing finds it
        elif config == {} and do is listed:
            expected = listed(theirs, None)  # as on PostgreSQL and in memory
        elif do is wrote and expected is not KeyError and None in (config or {}).get("configurable", {}).values():
            expected = TypeError  # theirs stores it for a checkpoint named "None"
        assert outcome(lambda: do(filled(ours), config)) == expected


def test_names_that_are_no_text_are_written_as_text(address: str) -> None:
    id = UUID(int=7)
    with Saver(address) as saver:
        task: Any = 5
        at = saver.put({"configurable": {"thread_id": 1, "checkpoint_ns": ""}}, checkpoint(id), {}, {})
        saver.put_writes(at, [("log", "written")], task)
        found = saver.get_tuple(at)
        assert found is not None
        assert found.config == {"configurable": {"thread_id": "1", "checkpoint_ns": "", "checkpoint_id": str(id)}}
        assert found.pending_writes == [("5", "log", "written")]


@pytest.mark.parametrize("name", [True, 1.5, None, (1,)])
def test_names_of_channels_are_text(name: Any, address: str) -> None:
    """JSON would give `True` back as "true"."""
    with Saver(address) as saver:
        odd = {**checkpoint("a"), "channel_values": {name: 1}}
        with pytest.raises(TypeError, match="names of channels must be text"):
            saver.put({"configurable": {"thread_id": "1", "checkpoint_ns": ""}}, odd, {}, {})
        assert saver.get_tuple({"configurable": {"thread_id": "1"}}) is None


def test_a_filter_key_that_is_no_text_matches_nothing(address: str) -> None:
    odd: Any = {1: 2}
    with Saver(address) as saver:
        assert list(filled(saver).list(None, filter=odd)) == []
