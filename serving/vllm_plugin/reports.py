"""What the scheduler took from running requests, and what that cost: totals since the engine's start, in a file.

Whoever runs the engine reads the file when it is asked for metrics. It is replaced whole, at most once a second, and
only when something has changed, so a step costs next to nothing for it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TextIO

from ramify.serving.policy.types import RequestId, Verdict

_EVERY_S = 1.0


@dataclass(slots=True)
class Totals:
    """Preemptions are all of them, also those that vLLM itself makes when KV runs out."""

    preemptions: int = 0
    preempted_tokens: int = 0  # computed again for that, net of what the prefix cache still had
    preempted_s: float = 0.0  # until it got its next step
    pauses: int = 0
    paused_s: float = 0.0
    refusals: int = 0
    cancelled: int = 0  # of those refusals: requests that were running and could not be met any more
    steps: int = 0
    verdicts: int = 0  # decisions of the policy: not every step needs one
    policy_s: float = 0.0  # CPU time that they took, with making the views and moving the queues


class Costs:
    """Counts; the scheduler says what happens, with its times."""

    def __init__(self, path: str | None) -> None:
        self.totals = Totals()
        self._path = None if path is None else Path(path)
        self._preempted: dict[str, tuple[int, float]] = {}  # tokens it had computed, and when it lost them
        self._paused: dict[str, float] = {}
        self._told = Totals()
        self._told_at = float("-inf")

    def preempted(self, request_id: str, computed: int, now: float) -> None:
        self.totals.preemptions += 1
        self._preempted[request_id] = computed, now

    def scheduled(self, tokens: Mapping[str, int], computed: Mapping[str, int], now: float) -> None:
        """A step is made up: `tokens` of each request in it. `computed` are those of its tokens, this step's among
        them, of requests that were preempted (`waiting_again`)."""
        for request_id in [i for i in self._preempted if i in tokens]:
            lost, since = self._preempted.pop(request_id)
            still_there = computed[request_id] - tokens[request_id]
            self.totals.preempted_tokens += max(0, lost - still_there)
            self.totals.preempted_s += now - since

    @property
    def waiting_again(self) -> tuple[str, ...]:
        """Preempted, and without a step since."""
        return tuple(self._preempted)

    def paused(self, request_id: str, now: float) -> None:
        self.totals.pauses += 1
        self._paused[request_id] = now

    def resumed(self, request_id: str, now: float) -> None:
        since = self._paused.pop(request_id, None)
        if since is not None:
            self.totals.paused_s += now - since

    def refused(self, *, running: bool) -> None:
        self.totals.refusals += 1
        self.totals.cancelled += running

    def left(self, request_id: str, now: float) -> None:
        """It has ended, one way or another."""
        self.resumed(request_id, now)
        if request_id in self._preempted:
            self.totals.preempted_s += now - self._preempted.pop(request_id)[1]

    def decided(self, cpu_s: float) -> None:
        self.totals.verdicts += 1
        self.totals.policy_s += cpu_s

    def stepped(self, now: float) -> None:
        """A step is on its way. Raises OSError."""
        self.totals.steps += 1
        self.tell(now)

    def tell(self, now: float, *, at_once: bool = False) -> None:
        """Bring the file up to date. Raises OSError."""
        if self._path is None or (now < self._told_at + _EVERY_S and not at_once) or self.totals == self._told:
            return
        self._told, self._told_at = Totals(**asdict(self.totals)), now
        beside = self._path.with_name(self._path.name + ".new")
        beside.write_text(json.dumps(asdict(self.totals)), "utf-8")
        beside.replace(self._path)


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
