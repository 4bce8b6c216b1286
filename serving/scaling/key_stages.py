"""Which pools' replicas are kept warm after they were taken back (QUART §6.1).

A pool is a key stage once the corrector has scaled it up; it stops to be one after `forget_s` without another, so
that one burst more or less does not change the list. Warm replicas are ended, the least recently used first, while
the host uses more than `most_memory` of its memory.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path

MOST_MEMORY = 0.85


class KeyStages:
    """The list of key stages."""

    def __init__(self, forget_s: float = 300.0) -> None:
        self._forget_s = forget_s
        self._scaled: OrderedDict[str, float] = OrderedDict()

    def scaled_up(self, pool: str, now: float) -> None:
        self._scaled[pool] = now
        self._scaled.move_to_end(pool)

    def list(self, now: float) -> tuple[str, ...]:
        """The key stages, the last scaled first."""
        while self._scaled and now - next(iter(self._scaled.values())) > self._forget_s:
            self._scaled.popitem(last=False)
        return tuple(reversed(self._scaled))


@dataclass(frozen=True, slots=True)
class WarmReplica:
    """A loaded replica that takes no calls. `bytes`: what its end frees, without pages that it shares."""

    id: str
    pool: str
    bytes: int
    used_at: float


def to_end(warm: list[WarmReplica], used: int, total: int, most_memory: float = MOST_MEMORY) -> list[WarmReplica]:
    """The warm replicas to end, the least recently used first, so that the host uses at most that share."""
    out = []
    for one in sorted(warm, key=lambda replica: (replica.used_at, replica.id)):
        if used <= most_memory * total:
            break
        out.append(one)
        used -= one.bytes
    return out


def host_memory(meminfo: Path = Path("/proc/meminfo")) -> tuple[int, int]:
    """Bytes of memory that are used, and all of them."""
    fields = dict(line.split(":", 1) for line in meminfo.read_text("utf-8").splitlines())
    total, free = (int(fields[name].split()[0]) * 1024 for name in ("MemTotal", "MemAvailable"))
    return total - free, total
