"""What `branches.map` and `adopt` refuse, before anything is begun."""

from __future__ import annotations

from typing import Any

import pytest

from ramify.fork_engine.types import MergeStrategy
from ramify.runtime.execution.fork_arguments import check_map, strategy_of

USUAL = {"concurrency": None, "errors": "raise", "need": None}


@pytest.mark.parametrize(
    ("option", "kind", "said"),
    [
        ({"errors": "ignore"}, ValueError, "errors='ignore'.*'raise' or 'return'"),
        ({"errors": ["raise"]}, ValueError, "'raise' or 'return'"),
        ({"concurrency": 0}, ValueError, "concurrency=0.*at least one"),
        ({"concurrency": -1}, ValueError, "at least one"),
        ({"concurrency": 1.5}, TypeError, "concurrency=1.5.*whole number"),
        ({"concurrency": "2"}, TypeError, "whole number"),
        ({"need": True}, TypeError, "need=True.*whole number"),
        ({"need": 4}, ValueError, "from 1 to the number of branches, 3"),
    ],
    ids=str,
)
def test_an_option_of_map_that_cannot_be_meant_is_refused(
    option: dict[str, Any], kind: type[Exception], said: str
) -> None:
    with pytest.raises(kind, match=said):
        check_map(3, **{**USUAL, **option})


def test_options_of_map() -> None:
    check_map(3, **USUAL)
    check_map(3, concurrency=1, errors="return", need=3)


def test_strategies_of_adopt() -> None:
    def asked(*_: object) -> bytes:
        return b""

    assert strategy_of("ours") is MergeStrategy.OURS
    assert strategy_of(asked) is asked
    with pytest.raises(ValueError, match=r"strategy='mine'.*use one of 'fail', 'ours', 'theirs', 'union'"):
        strategy_of("mine")
    with pytest.raises(TypeError, match="strategy=None"):
        strategy_of(None)
