"""New length sketches arrive by a socket."""

from __future__ import annotations

import json
import socket
from pathlib import Path

from ramify.serving.protocol.length_sketch import LEVELS
from ramify.serving.vllm_plugin.length_updates import LengthUpdates


def test_sketches_arrive_by_the_socket_in_limited_numbers(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    refinements = LengthUpdates(path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out:
        out.sendto(json.dumps({"request_id": "a", "length_quantiles": [5.0] * len(LEVELS)}).encode(), path)
        for bad in (b"", b"[]", b'{"request_id": "a"}', b'{"request_id": "a", "length_quantiles": [1]}'):
            out.sendto(bad, path)
    (one,) = refinements.take()
    assert (one[0], one[1].quantile(0.9)) == ("a", 5.0)
    assert refinements.unreadable == 4
    assert list(refinements.take()) == []
    refinements.close()
    assert not Path(path).exists()
