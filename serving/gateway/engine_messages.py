"""`EngineMessages`: datagrams to the schedulers inside our vLLM engines (`ramify.serving.vllm_plugin`)."""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path

_MOST_BRANCHES = 100  # in one datagram


class EngineMessages:
    """Sends to the engines' sockets, and never waits. Close it."""

    def __init__(self, sockets: Mapping[int, Path]) -> None:
        """`sockets`: by replica, where its engine listens."""
        self._sockets = sockets
        self._socket: socket.socket | None = None
        if sockets:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            self._socket.setblocking(False)

    def send(self, replica: int, message: Mapping[str, object]) -> bool:
        """Send to one engine. False if it does not listen, or is gone or too busy: then it goes on with what it
        knows."""
        path = self._sockets.get(replica)
        if path is None or self._socket is None:
            return False
        try:
            self._socket.sendto(json.dumps(message).encode(), str(path))
        except OSError:
            return False
        return True

    def release(self, compound_id: str, branches: Sequence[str] | None) -> int:
        """Say that no call will continue these branches of a workflow; of None, the whole workflow.

        Returns how many engines were told.
        """
        told = 0
        for replica in self._sockets:
            if branches is None:
                told += self.send(replica, {"compound_id": compound_id})
                continue
            parts = [branches[at : at + _MOST_BRANCHES] for at in range(0, len(branches), _MOST_BRANCHES)]
            said = [self.send(replica, {"compound_id": compound_id, "branches": list(part)}) for part in parts]
            told += bool(said) and all(said)
        return told

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
