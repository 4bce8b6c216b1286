"""Read a world's files from the host, although the world may have planted anything there. Host side.

`world.path` leads through `/proc/PID/root`. A plain `open` there follows an absolute link to the *host's* file of
that name, blocks for ever on a FIFO, and may find another file than the one that was checked. Here the kernel
resolves the whole path below the tree in one call (openat2, Linux 5.6), and anything but a regular file is refused
unread.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
from pathlib import Path

from ramify.sandboxes.linux.kernel import RESOLVE_BENEATH, RESOLVE_NO_MAGICLINKS, OpenHow
from ramify.sandboxes.linux.syscalls import call


def open_inside(tree: Path, path: str) -> int:
    """A descriptor of a regular file below `tree`, for reading. Links inside the tree are followed.

    Raises `OSError`: EXDEV if a link leads out of the tree (every absolute link does), EINVAL if it is not a regular
    file.
    """
    top = os.open(tree, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        how = OpenHow(
            os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC, 0, RESOLVE_NO_MAGICLINKS | RESOLVE_BENEATH
        )
        file = call("openat2", top, os.fsencode(path), ctypes.byref(how), ctypes.c_size_t(ctypes.sizeof(how)))
    finally:
        os.close(top)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise OSError(errno.EINVAL, "not a regular file", path)
    return file


def read_inside(tree: Path, path: str, most: int) -> bytes:
    """The contents of a file below `tree`. Raises as `open_inside` does, and EFBIG for more than `most` bytes."""
    with os.fdopen(open_inside(tree, path), "rb") as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise OSError(errno.EFBIG, f"more than {most} bytes", path)
    return data
