"""What came, what the policy moved and what left, one JSON line each: for people, and for the tests that hold it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TextIO

from ramify.serving.policy.types import RequestId, Verdict


class Trace:
    """Counts always; writes where a path is given."""

    def __init__(self, path: str | None) -> None:
        self.pauses = self.resumes = self.preemptions = self.refusals = 0
        self._file: TextIO | None = None if path is None else Path(path).open("a", encoding="utf-8")  # noqa: SIM115

    def arrived(self, now: float, request_id: str, tags: Mapping[str, object] | None) -> None:
        """A request is here, with these `extra_args`."""
        if self._file is not None:
            self._write({"at": now, "arrive": request_id, "extra_args": dict(tags or {})})

    def moved(
        self,
        now: float,
        verdict: Verdict,
        pause: Sequence[RequestId],
        preempt: Sequence[RequestId],
        name: Callable[[RequestId], str],
    ) -> None:
        self.pauses += len(pause)
        self.preemptions += len(preempt)
        self.resumes += len(verdict.resume)
        moves = {"pause": pause, "preempt": preempt, "resume": verdict.resume}
        if self._file is not None and any(moves.values()):
            line = {kind: [name(id_) for id_ in ids] for kind, ids in moves.items() if ids}
            self._write({"at": now, **line, "admit": [name(id_) for id_ in verdict.admit]})

    def refused(self, now: float, request_id: str, reason: str) -> None:
        self.refusals += 1
        if self._file is not None:
            self._write({"at": now, "refuse": request_id, "reason": reason})

    def ended(self, now: float, request_id: str, status: str, generated: int, kv_free: int) -> None:
        """It has left, one way or another; `kv_free` tokens of KV are free from now on."""
        if self._file is not None:
            self._write({"at": now, "end": request_id, "status": status, "generated": generated, "kv_free": kv_free})

    @property
    def writes(self) -> bool:
        return self._file is not None

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _write(self, line: dict[str, object]) -> None:
        assert self._file is not None
        self._file.write(json.dumps(line, default=repr) + "\n")
        self._file.flush()
