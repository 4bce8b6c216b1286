"""What the gateway tells the scheduler beside its requests, and what the plug-in reports to files.

`GatewayMessages` reads a local socket. Each datagram is one message as JSON. `{"request_id": …, "length_quantiles":
[one value for each level]}` is a new prediction of a running request's length, by the request analyzer.
`{"compound_id": …, "branches": […]}` says that no call will continue these branches of a workflow; without
`branches`, that the workflow is over. The engine never waits: it takes what has arrived, a limited number in each
step. It counts what it cannot read, and ignores it.

`TotalsReport` counts preemptions, pauses and refusals since the engine's start, and what they cost. The gateway
reads its file for metrics. The file is replaced as a whole, at most once a second, and only if something has
changed, so it costs a step next to nothing. `DecisionLog` writes one JSON line for each arrival, each verdict that
moved something, each refusal, each release and each end.
"""

from __future__ import annotations

import contextlib
import json
import logging
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TextIO

from ramify.serving.policy.types import RequestId, Verdict
from ramify.serving.protocol.length_sketch import LONGEST, LengthSketch

_LOG = logging.getLogger(__name__)
_A_STEP = 64  # datagrams taken in one step
_LARGEST = 65_536  # bytes


@dataclass(frozen=True, slots=True)
class NewSketch:
    """A request will probably be as long as this."""

    request_id: str  # as clients see it
    sketch: LengthSketch


@dataclass(frozen=True, slots=True)
class Release:
    """No call will continue these branches of a workflow; of None, the whole workflow."""

    compound_id: str
    branches: tuple[str, ...] | None


class GatewayMessages:
    """Listens at the Unix datagram socket `path`; None: it does nothing."""

    def __init__(self, path: str | None) -> None:
        self.unreadable = 0
        self._path = path
        self._socket: socket.socket | None = None
        if path is not None:
            if Path(path).is_socket():  # left by an engine that was killed
                Path(path).unlink()
            self._socket = _listening(path)

    def take(self) -> Iterator[NewSketch | Release]:
        """Yield what has arrived since the last step."""
        if self._socket is None:
            return
        for _ in range(_A_STEP):
            try:
                datagram = self._socket.recv(_LARGEST)
            except BlockingIOError:
                return
            try:
                yield _message(json.loads(datagram))
            except (ValueError, KeyError, TypeError, RecursionError):
                self.unreadable += 1

    def close(self) -> None:
        if self._socket is not None and self._path is not None:
            self._socket.close()
            Path(self._path).unlink(missing_ok=True)
            self._socket = None


def _listening(path: str) -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        made.setblocking(False)
        made.bind(path)
        Path(path).chmod(0o600)
    except OSError:
        made.close()
        raise
    return made


def _message(said: Mapping[str, object]) -> NewSketch | Release:
    """Raises ValueError, KeyError or TypeError for anything else."""
    if "compound_id" not in said:
        sketch = LengthSketch.from_wire(said["length_quantiles"])  # type: ignore[arg-type]
        if sketch.values[-1] > LONGEST:
            raise ValueError(f"no answer has more than {LONGEST:.0f} tokens")
        return NewSketch(str(said["request_id"]), sketch)
    compound_id, branches = said["compound_id"], said.get("branches")
    if not isinstance(compound_id, str) or not isinstance(branches, list | None):
        raise TypeError("a workflow's id is a string, and its branches are a list")
    return Release(compound_id, None if branches is None else tuple(map(str, branches)))


_EVERY_S = 1.0  # the file is replaced at most once in so many seconds


@dataclass(slots=True)
class SchedulerTotals:
    """Totals since the engine's start. Preemptions include those that vLLM itself makes when KV runs out."""

    preemptions: int = 0
    preempted_tokens: int = 0  # tokens computed again after them, net of what the prefix cache still had
    preempted_s: float = 0.0  # seconds until the preempted requests got their next step
    pauses: int = 0
    paused_s: float = 0.0
    refusals: int = 0
    cancelled: int = 0  # refusals of requests that were running
    steps: int = 0
    verdicts: int = 0  # decisions of the policy; not every step needs one
    policy_s: float = 0.0  # CPU time of the decisions, with making the views and moving the queues


class TotalsReport:
    """Counts what the scheduler reports, and writes the totals to the file `path`; None: it only counts."""

    def __init__(self, path: str | None) -> None:
        self.totals = SchedulerTotals()
        self._path = None if path is None else Path(path)
        self._preempted: dict[str, tuple[int, float]] = {}  # tokens it had computed, and when it lost them
        self._paused: dict[str, float] = {}
        self._written = SchedulerTotals()
        self._written_at = float("-inf")
        self._failed = False  # to write, the last time

    def preempted(self, request_id: str, computed: int, now: float) -> None:
        self.totals.preemptions += 1
        self._preempted[request_id] = computed, now

    def scheduled(self, tokens: Mapping[str, int], computed: Mapping[str, int], now: float) -> None:
        """Note a scheduled step.

        Args:
            tokens: how many tokens of each request are in the step.
            computed: how many tokens of each preempted request (`waiting_again`) are computed after the step.
            now: the time in seconds.
        """
        for request_id in [i for i in self._preempted if i in tokens]:
            lost, since = self._preempted.pop(request_id)
            still_there = computed[request_id] - tokens[request_id]
            self.totals.preempted_tokens += max(0, lost - still_there)
            self.totals.preempted_s += now - since

    @property
    def waiting_again(self) -> tuple[str, ...]:
        """Requests that were preempted and have had no step since."""
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
        """Note that a request has ended, for any reason."""
        self.resumed(request_id, now)
        if request_id in self._preempted:
            self.totals.preempted_s += now - self._preempted.pop(request_id)[1]

    def decided(self, cpu_s: float) -> None:
        self.totals.verdicts += 1
        self.totals.policy_s += cpu_s

    def stepped(self, now: float) -> None:
        """Note that a step was scheduled, and write the file if it is due."""
        self.totals.steps += 1
        self.write(now)

    def write(self, now: float, *, at_once: bool = False) -> None:
        """Write the file if something has changed and a second has passed, or `at_once`. The engine goes on if that
        fails, on a full disk for instance: it is tried again.
        """
        if self._path is None or (now < self._written_at + _EVERY_S and not at_once) or self.totals == self._written:
            return
        self._written, self._written_at = SchedulerTotals(**asdict(self.totals)), now
        beside = self._path.with_name(self._path.name + ".new")
        try:
            beside.write_text(json.dumps(asdict(self.totals)), "utf-8")
            beside.replace(self._path)
        except OSError as error:
            if not self._failed:
                _LOG.warning("cannot write the report %s: %s", self._path, error)
            self._failed, self._written = True, SchedulerTotals()
        else:
            self._failed = False


class DecisionLog:
    """Counts moves, and writes them to the file `path`; None: it only counts."""

    def __init__(self, path: str | None) -> None:
        self.pauses = self.resumes = self.preemptions = self.refusals = 0
        self._file: TextIO | None = None if path is None else Path(path).open("a", encoding="utf-8")  # noqa: SIM115

    def arrived(self, now: float, request_id: str, tags: Mapping[str, object] | None) -> None:
        """Log the arrival of a request with these `extra_args`."""
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

    def released(self, now: float, compound_id: str, branches: Sequence[str] | None, kv_free: int) -> None:
        """Log that the gateway has released these branches of a workflow; of None, the whole workflow."""
        if self._file is not None:
            self._write({"at": now, "release": compound_id, "branches": branches, "kv_free": kv_free})

    def ended(self, now: float, request_id: str, status: str, generated: int, kv_free: int) -> None:
        """Log that a request has ended. `kv_free` tokens of KV are free from now on."""
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
        try:
            self._file.write(json.dumps(line, default=repr) + "\n")
            self._file.flush()
        except OSError as error:  # a full disk, for instance
            _LOG.warning("no more lines in the decision log %s: %s", self._file.name, error)
            with contextlib.suppress(OSError):  # what it still holds cannot be written either
                self._file.close()
            self._file = None
