"""`EngineDatagrams`: messages to the scheduler inside a vLLM engine, beside its calls.

Each is one JSON object in a datagram to the engine's Unix socket. `ramify.serving.vllm_plugin.messages_and_reports`
says what they mean, and reads them.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping, Sequence
from glob import escape
from pathlib import Path

from ramify.serving.protocol.releases import parts

_RANK = ".dp"


def rank_path(path: str, rank: int) -> str:
    """Return a path for one rank of data parallelism, whose first rank has `path` itself."""
    return path if rank == 0 else f"{path}{_RANK}{rank}"


def rank_paths(path: Path) -> list[Path]:
    """Return `path`, and those of other ranks that are there."""
    others = path.parent.glob(f"{escape(path.name)}{_RANK}[0-9]*")
    return [path, *sorted([one for one in others if one.name.rpartition(_RANK)[2].isdigit()])]


class EngineDatagrams:
    """Sends, and never waits. Close it."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)

    def send(self, path: Path | str, message: Mapping[str, object]) -> bool:
        """Send to the engine at that socket, to each of its ranks. False if it is gone or too busy: it goes on with
        what it knows.
        """
        data = json.dumps(message).encode()
        return sum([self._sent(one, data) for one in rank_paths(Path(path))]) > 0

    def release(self, path: Path | str, compound_id: str, branches: Sequence[str] | None) -> bool:
        """Say that no call will continue these branches of a workflow; of None, the whole workflow."""
        if branches is None:
            return self.send(path, {"compound_id": compound_id})
        said = [self.send(path, {"compound_id": compound_id, "branches": part}) for part in parts(branches)]
        return bool(said) and all(said)

    def _sent(self, path: Path, data: bytes) -> bool:
        try:
            self._socket.sendto(data, str(path))
        except OSError:
            return False
        return True

    def close(self) -> None:
        self._socket.close()
