"""Read the limits that a shell sets itself (`ulimit`), and give them to the next shell. Stdlib only: used by the
agent.
"""

from __future__ import annotations

import resource
from collections.abc import Mapping, Sequence

LIMITS = {name: getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")}


def told(pid: int) -> str:
    """The limits of a process, in the format of `shell_state.Report`. Raises `ProcessLookupError`."""
    pairs = ((name, *resource.prlimit(pid, number)) for name, number in LIMITS.items())
    return "".join(f"{name} {soft} {hard}\n" for name, soft, hard in pairs)


def set_limits(limits: Mapping[str, Sequence[int]]) -> None:
    """Set limits as a shell had them, as far as the new shell's world allows."""
    for name, (soft, hard) in limits.items():
        _, highest = resource.getrlimit(LIMITS[name])
        hard, soft = _least(hard, highest), _least(soft, highest)
        resource.setrlimit(LIMITS[name], (_least(soft, hard), hard))


def _least(a: int, b: int) -> int:
    if resource.RLIM_INFINITY in (a, b):
        return b if a == resource.RLIM_INFINITY else a
    return min(a, b)
