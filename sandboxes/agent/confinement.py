"""The last steps of a shell's child before it becomes bash: what it may do from then on, for good. Stdlib only."""

from __future__ import annotations

import platform

from ramify.sandboxes.linux import kernel, landlock, resource_limits, seccomp
from ramify.sandboxes.linux.resource_limits import Bounds


def enter(bounds: Bounds, *, isolated: bool, image: bool, filtered: bool = True, carried: bool = False) -> None:
    """Limits, and in an isolated world: capabilities dropped, no new privileges, Landlock, seccomp; in that order.

    `image`: the world has a root of its own, and shows none of the host's files. `filtered`: with Landlock and the
    system-call filter. `carried`: for a Python session that was brought back, whose memory lies over an image.
    Raises `OSError`: a world never runs with less.
    """
    resource_limits.apply(bounds, isolated=isolated)
    if not isolated:
        return
    kernel.drop_privileges(image=image)
    if carried:
        seccomp.install_for_restored()
    if not filtered:
        return  # CRIU can neither look through these two nor put them back
    landlock.restrict()
    if not seccomp.supported():
        seccomp.install()


def prepare() -> None:
    """What is the same for every world, worked out once: by the process that they are all forked from."""
    landlock.version()
    resource_limits.nproc_is_per_namespace()
    if not seccomp.supported():
        seccomp.program(platform.machine())
