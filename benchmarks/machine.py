"""The machine on which the figures were measured: the `machine` object at the end of every benchmark's JSON.

Machines with the same number of cores differ severalfold: in the speed of one core, which a fixed loop of plain
Python measures, and, for a model on the processor, in their widest vector instructions.
"""

from __future__ import annotations

import os
import platform
import time
from pathlib import Path
from typing import Any

# the first of these that the processor has is reported
_VECTORS = ("amx_tile", "avx512_bf16", "avx512f", "avx2", "asimd")
_LOOP = 200_000


def machine() -> dict[str, Any]:
    return {
        "cores": os.cpu_count(),
        "cpu": processor(),
        "loop_ms": round(loop_ms(), 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "user": "root" if os.geteuid() == 0 else "an ordinary user",
        "load": round(os.getloadavg()[0], 2),  # of the last minute
    }


def processor(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Return the processor's name, family, model and widest vector instructions. Generations can share a name, but
    differ in family and model."""
    try:
        first = cpuinfo.read_text(encoding="utf-8", errors="replace").partition("\n\n")[0]
    except OSError:
        return platform.machine()
    said = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in first.splitlines())}
    flags = said.get("flags", said.get("Features", "")).split()
    parts = [said.get("model name", platform.machine())]
    if "cpu family" in said and "model" in said:
        parts.append(f"family {said['cpu family']} model {said['model']}")
    parts += [flag for flag in _VECTORS if flag in flags][:1]
    return ", ".join(parts)


def loop_ms(times: int = 5) -> float:
    """Return the milliseconds of a loop that takes the interpreter about 10 ms: the minimum of `times` runs."""
    took = []
    for _ in range(times):
        begun = time.perf_counter()
        sum(i * i for i in range(_LOOP))
        took.append(time.perf_counter() - begun)
    return min(took) * 1000
