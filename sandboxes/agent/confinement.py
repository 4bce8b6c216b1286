"""The last steps of a shell's child before it executes bash: restrict it for good. Stdlib only."""

from __future__ import annotations

import platform

from ramify.sandboxes.linux import kernel, landlock, resource_limits, seccomp
from ramify.sandboxes.linux.resource_limits import Bounds


def enter(
    bounds: Bounds,
    *,
    isolated: bool,
    image: bool,
    filtered: bool = True,
    restored: bool = False,
    user: tuple[int, int] | None = None,
) -> None:
    """Apply limits; in an isolated world also drop capabilities, set no-new-privs, enter Landlock and seccomp, in
    that order.

    `user`: the only user and group of the world, over an image; if it is root, changes of owners have no effect.

    The process is also closed to tracing until it executes its program. It holds the agent's memory and descriptors
    (the store, the connection to the host), and without capabilities it would be as open as any command.

    `image`: the world has its own root and shows none of the host's files. `filtered`: use Landlock and the
    system-call filter. `restored`: for a restored Python session, whose memory is mapped from an image. Raises
    `OSError`: a world never runs with less.
    """
    resource_limits.apply(bounds, isolated=isolated)
    if not isolated:
        landlock.enter_domain()  # in a container with the host's network; elsewhere there are no rules
        return
    if user is not None:
        kernel.become_in_namespace(*user)
    kernel.set_undumpable(closed=True)  # not before: the kernel gives the files of such a process to root
    kernel.drop_privileges(image=image)
    if restored:
        seccomp.install_for_restored()
    if not filtered:
        return  # CRIU can neither see through these two nor restore them
    landlock.enter_domain()
    if not seccomp.why_not():
        if user is not None and user[0] == 0:
            seccomp.install_for_owners()
        seccomp.install()


def prepare() -> None:
    """Compute once what is the same for every world, in the process that all of them are forked from."""
    landlock.abi_version()
    resource_limits.nproc_is_per_namespace()
    if not seccomp.why_not():
        seccomp.program(platform.machine())
