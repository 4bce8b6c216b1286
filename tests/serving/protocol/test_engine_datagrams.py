"""Messages to an engine's socket: whole, in parts that fit, and without an engine there."""

from __future__ import annotations

from pathlib import Path

import pytest

from ramify.serving.protocol.engine_datagrams import EngineDatagrams, rank_path
from ramify.serving.vllm_plugin.messages_and_reports import GatewayMessages, Release


@pytest.mark.parametrize("name", ["{}", "\N{GRINNING FACE}" * 250 + "{}", '"\\' * 126 + "{}"])
def test_a_release_of_many_branches_comes_in_parts_that_fit(name: str, tmp_path: Path) -> None:
    path = tmp_path / "s"
    names = [name.format(i) for i in range(2500 if name == "{}" else 40)]
    engine, out = GatewayMessages(str(path)), EngineDatagrams()
    assert out.release(path, "run", names) and out.release(str(path), "run", None)
    *parts, last = engine.take()
    assert all(isinstance(one, Release) and len(one.branches or ()) <= 1000 for one in parts)
    assert not engine.unreadable
    assert [b for one in parts if isinstance(one, Release) for b in one.branches or ()] == names
    assert last == Release("run", None)
    engine.close()
    assert not out.release(path, "run", None), "the engine is gone"
    assert not out.release(path, "run", []), "nothing to say"


def test_each_rank_of_an_engine_hears(tmp_path: Path) -> None:
    path = str(tmp_path / "[s]")  # no pattern
    engines, out = [GatewayMessages(rank_path(path, rank)) for rank in (0, 1, 10)], EngineDatagrams()
    (tmp_path / "[s].dp1.new").touch()
    assert out.release(path, "run", None)
    assert [list(one.take()) for one in engines] == [[Release("run", None)]] * 3
    engines[0].close()
    assert out.release(path, "run", None), "one is left"
    for one in engines:
        one.close()


def test_an_engine_that_reads_nothing_for_long_hears_of_all_releases_in_their_order(tmp_path: Path) -> None:
    """As one without calls. Its socket holds a few messages."""
    engine, out = GatewayMessages(str(tmp_path / "s")), EngineDatagrams()
    said = [out.release(tmp_path / "s", f"run{number}", None) for number in range(700)]
    assert said == sorted(said, reverse=True) and not said[-1], "the socket is full"
    assert not out.send(tmp_path / "s", {"compound_id": "of no use later"})
    heard = list(engine.take())
    while len(heard) < 700:
        out.send(tmp_path / "s", {"compound_id": "call"})
        new = list(engine.take())
        assert new
        heard += [one for one in new if one != Release("call", None)]
    assert heard == [Release(f"run{number}", None) for number in range(700)]
    engine.close()
    assert not out.release(tmp_path / "s", "run", None)
    assert not out._late


def test_releases_that_wait_are_bounded(tmp_path: Path) -> None:
    engine, out = GatewayMessages(str(tmp_path / "s")), EngineDatagrams()
    for number in range(3000):
        out.release(tmp_path / "s", f"run{number}", None)
    assert [len(one) for one in out._late.values()] == [1000]
    engine.close()
