"""A child of the agent that confines itself and becomes the world's bash. Stdlib only: used by the agent."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping, Sequence
from typing import NoReturn

from ramify.sandboxes.agent import confinement
from ramify.sandboxes.agent.messages import Start
from ramify.sandboxes.agent.shell import CONTROL
from ramify.sandboxes.linux import kernel, resource_limits

RESET = (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT, signal.SIGCHLD)


def become_bash(
    start: Start,
    streams: Sequence[int],
    pwd: str,
    env: Mapping[str, str],
    limits: Mapping[str, Sequence[int]],
    *,
    filtered: bool,
) -> NoReturn:
    """`streams`: its script, output, error output and control descriptor. `limits`: as an earlier shell had them."""
    try:
        os.setsid()
        kernel.become_subreaper()  # so that all that it starts stays below it, and is dumped with it
        if os.getppid() != 1:
            kernel.die_with_parent()  # without a PID 1 that would end it
        _enter(start, pwd)
        for source, target in zip(streams, (0, 1, 2, CONTROL), strict=True):
            os.dup2(source, target)
        for number in RESET:
            signal.signal(number, signal.SIG_DFL)
        signal.set_wakeup_fd(-1)
        os.umask(0o022)
        resource_limits.restore_rlimits(limits)
        view = start.view
        confinement.enter(
            start.bounds,
            isolated=view is not None,
            image=view is not None and view.image,
            filtered=filtered,
            user=None if view is None else view.only_user(),
        )
        if view is not None:
            kernel.close_all_but((0, 1, 2, CONTROL))  # the path to bash could lead through descriptors
        os.execve(start.bash, ["bash", "--norc", "--noprofile"], {**env, "PWD": pwd})
    finally:
        os._exit(127)


def _enter(start: Start, pwd: str) -> None:
    if start.view is None:
        os.chdir(pwd)
        return
    try:
        kernel.enter_folder(pwd)
    except OSError:  # now a magic link of /proc, or no folder: use the world's top
        kernel.enter_folder(start.tree)
