"""`EngineDatagrams`: messages to the scheduler inside a vLLM engine, beside its calls.

Each is one JSON object in a datagram to the engine's Unix socket. `ramify.serving.vllm_plugin.messages_and_reports`
says what they mean, and reads them.
"""

from __future__ import annotations

import json
import socket
from collections import deque
from collections.abc import Mapping, Sequence
from glob import escape
from pathlib import Path

from ramify.serving.protocol.releases import parts

_RANK = ".dp"
_MOST_LATE = 1000  # releases that wait for one engine: the oldest are dropped


def rank_path(path: str, rank: int) -> str:
    """Return a path for one rank of data parallelism, whose first rank has `path` itself."""
    return path if rank == 0 else f"{path}{_RANK}{rank}"


def rank_paths(path: Path) -> list[Path]:
    """Return `path`, and those of other ranks that are there."""
    others = path.parent.glob(f"{escape(path.name)}{_RANK}[0-9]*")
    return [path, *sorted([one for one in others if one.name.rpartition(_RANK)[2].isdigit()])]


class EngineDatagrams:
    """Sends, and never waits.

    An engine without calls reads nothing, and its socket holds few messages (10, on many machines). A release that
    finds it full is sent with the next message that is not refused.
    """

    def __init__(self) -> None:
        self._late: dict[Path, deque[bytes]] = {}  # releases, by socket

    def send(self, path: Path | str, message: Mapping[str, object]) -> bool:
        """Send to the engine at that socket, to each of its ranks. False if it is gone or too busy: it goes on with
        what it knows.
        """
        return self._send(path, message, keep=False)

    def release(self, path: Path | str, compound_id: str, branches: Sequence[str] | None) -> bool:
        """Say that no call will continue these branches of a workflow; of None, the whole workflow. False if the
        engine is gone, or hears some of it later.
        """
        if branches is None:
            return self._send(path, {"compound_id": compound_id}, keep=True)
        messages = [{"compound_id": compound_id, "branches": part} for part in parts(branches)]
        said = [self._send(path, message, keep=True) for message in messages]
        return bool(said) and all(said)

    def _send(self, path: Path | str, message: Mapping[str, object], *, keep: bool) -> bool:
        data = json.dumps(message).encode()
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out:
            out.setblocking(False)
            return sum([self._sent(out, one, data, keep) for one in rank_paths(Path(path))]) > 0

    def _sent(self, out: socket.socket, path: Path, data: bytes, keep: bool) -> bool:
        late = self._late.get(path) or deque[bytes](maxlen=_MOST_LATE)
        try:
            while late:
                out.sendto(late[0], str(path))
                late.popleft()
            out.sendto(data, str(path))
        except BlockingIOError:
            if keep:
                late.append(data)
                self._late[path] = late
            return False
        except OSError:  # it is gone, and with it what it held
            self._late.pop(path, None)
            return False
        return True
