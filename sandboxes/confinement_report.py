"""Describe what confines worlds on this machine, for `ramify doctor`."""

from __future__ import annotations

from ramify.sandboxes.linux import cgroups, landlock, seccomp
from ramify.sandboxes.linux.cgroups import Groups


def notes() -> tuple[str, ...]:
    """One line for each mechanism that a machine may have or lack. Takes about a millisecond."""
    filtered = seccomp.supported()
    abi = landlock.version()
    groups = cgroups.find()
    return (
        f"system calls are not filtered: {filtered}" if filtered else "system calls are filtered",
        (
            f"Landlock: ABI {abi}"
            if abi >= landlock.ABI_REFER
            else f"no Landlock: ABI {abi}, where {landlock.ABI_REFER} (Linux 5.19) is needed"
        ),
        (
            "limits: held by the kernel (control groups) and by each world's agent"
            if isinstance(groups, Groups)
            else f"limits: only watched by each world's agent, a few times a second: {groups}"
        ),
    )
