"""Forbid by Landlock once more what a world's mounts and capabilities forbid. Stdlib only.

A landlocked process is refused every mount call, may trace nothing outside its domain, and, with this rule set, makes
no device nodes. In the host's network (`WorldSpec.network`) it reaches no abstract sockets outside the domain, such
as the desktop's bus and X11.

Writable paths are not listed here. Landlock ties a rule to an inode, but a seal replaces the overlays under a living
shell, and their mount points are in `/`; the only rule that would keep holding is "all of /", which is no rule. The
read-only flags of the mounts protect them instead. A world over an image has a `/` that a seal replaces, so it has a
domain only in the host's network, with no rule about files.
"""

from __future__ import annotations

import ctypes
import functools
import os
from pathlib import Path

from ramify.sandboxes.linux.syscalls import call

ASK_VERSION = 1  # LANDLOCK_CREATE_RULESET_VERSION
RULE_PATH_BENEATH = 1
MAKE_CHAR, MAKE_BLOCK, REFER = 1 << 6, 1 << 11, 1 << 13  # LANDLOCK_ACCESS_FS_*
SCOPE_ABSTRACT_SOCKET = 1 << 0

ABI_REFER, ABI_SCOPES = 2, 6
"""The first versions that can allow a rename from folder to folder, and that have scopes."""


class RulesetAttr(ctypes.Structure):
    _fields_ = (("handled_fs", ctypes.c_uint64), ("handled_net", ctypes.c_uint64), ("scoped", ctypes.c_uint64))


class PathBeneathAttr(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed", ctypes.c_uint64), ("parent", ctypes.c_int32))


@functools.cache
def abi_version() -> int:
    """The ABI version of the running kernel; 0 for none (too old, not built in, or disabled)."""
    try:
        return call("landlock_create_ruleset", None, ctypes.c_size_t(0), ASK_VERSION)
    except OSError:
        return 0


def enter_domain() -> bool:
    """Enter a domain for good; False if the kernel has no suitable Landlock, or the world no lasting `/`.

    Needs no-new-privs.
    """
    root = Path("/").stat()
    rules = _rules.get((root.st_dev, root.st_ino)) or _rules.get(_ANY_ROOT)
    if rules is None:
        return False
    call("landlock_restrict_self", rules, 0)
    return True


_rules: dict[tuple[int, int], int] = {}
"""Rule sets by the device and inode of the `/` that they are for: descriptors, which stay open."""

_ANY_ROOT = (-1, -1)


def make_ruleset() -> bool:
    """Make the rule set for the `/` of this process, which must stay its root; False if the kernel has no suitable
    Landlock."""
    abi = abi_version()
    if abi < ABI_REFER:
        return False
    attr = RulesetAttr(MAKE_CHAR | MAKE_BLOCK | REFER, 0, SCOPE_ABSTRACT_SOCKET if abi >= ABI_SCOPES else 0)
    descriptor = call("landlock_create_ruleset", ctypes.byref(attr), ctypes.c_size_t(ctypes.sizeof(attr)), 0)
    root = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        rule = PathBeneathAttr(REFER, root)  # otherwise renames from folder to folder are refused everywhere
        call("landlock_add_rule", descriptor, RULE_PATH_BENEATH, ctypes.byref(rule), 0)
        found = os.fstat(root)
    finally:
        os.close(root)
    _rules[(found.st_dev, found.st_ino)] = descriptor
    return True


def make_ruleset_for_sockets() -> bool:
    """Make the rule set for any `/`, which keeps the host's abstract sockets out of reach; False if the kernel has no
    suitable Landlock."""
    if abi_version() < ABI_SCOPES:
        return False
    attr = RulesetAttr(0, 0, SCOPE_ABSTRACT_SOCKET)
    _rules[_ANY_ROOT] = call("landlock_create_ruleset", ctypes.byref(attr), ctypes.c_size_t(ctypes.sizeof(attr)), 0)
    return True
