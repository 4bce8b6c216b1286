"""What the gateway says arrives by a socket."""

from __future__ import annotations

import json
import socket
from pathlib import Path

from ramify.serving.protocol.length_sketch import LEVELS
from ramify.serving.vllm_plugin.messages_and_reports import GatewayMessages, NewSketch, Release


def test_messages_arrive_by_the_socket(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    messages = GatewayMessages(path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out:
        out.sendto(json.dumps({"request_id": "a", "length_quantiles": [5.0] * len(LEVELS)}).encode(), path)
        bad = (
            b"",
            b"[]",
            b'{"request_id": "a"}',
            b'{"request_id": "a", "length_quantiles": [1]}',
            b'{"compound_id": 1}',
            b"[" * 20_000,
        )
        for one in (*bad, b'{"compound_id": "r", "branches": 3}'):
            out.sendto(one, path)
        out.sendto(b'{"compound_id": "r", "branches": ["a", "b"]}', path)
        out.sendto(b'{"compound_id": "r"}', path)
    sketch, *released = messages.take()
    assert isinstance(sketch, NewSketch)
    assert (sketch.request_id, sketch.sketch.quantile(0.9)) == ("a", 5.0)
    assert released == [Release("r", ("a", "b")), Release("r", None)]
    assert messages.unreadable == 7
    assert list(messages.take()) == []
    messages.close()
    assert not Path(path).exists()
