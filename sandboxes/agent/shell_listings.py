"""Split what bash lists (functions, aliases, traps, options) by name. Stdlib only: used by the agent.

By name, so that a merge decides about each item separately, and a secret removes only the item that holds it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping

TRAP = re.compile(rb"^trap -- (?:'[^']*'|\\'|\$'(?:[^'\\]|\\.)*')* (\w+)$", re.MULTILINE)
_FUNCTION = re.compile(rb"^(?:function )?(.+) \(\) ?\n", re.MULTILINE)
_NAMED = re.compile(rb"^declare -([A-Za-z]+) (.+)$", re.MULTILINE)
_ALIAS = re.compile(rb"^alias (?:-- )?([^=\n]+)=(?:'[^']*'|\\')*$", re.MULTILINE)
_COMPAT = re.compile(rb"^shopt -[su] compat[0-9]+\n", re.MULTILINE)  # the variable BASH_COMPAT says the same


def text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def functions(listing: bytes, names: bytes) -> dict[str, str]:
    """Functions from `declare -f`, by the names in `declare -F`.

    A line in a body may look like a function's head. A function with several possible heads stays in one piece with
    the one before it, as bash wrote them.
    """
    heads = list(_FUNCTION.finditer(listing))
    often = Counter(head[1] for head in heads)
    sure = {name for _, name in _NAMED.findall(names) if often[name] == 1}
    starts = [(text(head[1]), head.start()) for head in heads if head[1] in sure or head.start() == 0]
    ends = [*(start for _, start in starts), len(listing)][1:]
    return {name: text(listing[start:end]) for (name, start), end in zip(starts, ends, strict=True)}


def attributes(names: bytes) -> dict[str, str]:
    """From `declare -F`: the lines with attributes beyond being a function."""
    return {
        text(name): f"declare -{text(flags)} {text(name)}" for flags, name in _NAMED.findall(names) if flags != b"f"
    }


def aliases(listing: bytes) -> dict[str, str]:
    return {text(found[1]): text(found[0]) for found in _ALIAS.finditer(listing)}


def traps(listing: bytes) -> dict[str, str]:
    return {text(found[1]): text(found[0]) for found in TRAP.finditer(listing)}


def options(listing: bytes) -> dict[str, str]:
    """From `umask -p`, `shopt -p` and `set +o`: by `umask`, `shopt NAME`, `set NAME`."""
    lines = text(_COMPAT.sub(b"", listing)).splitlines()
    split = [(line.split(), line) for line in lines if line]
    return {words[0] if words[0] == "umask" else f"{words[0]} {words[-1]}": line for words, line in split}


def in_order(kept: Mapping[str, str]) -> list[str]:
    """Options in bash's order, `set` last: what it turns on may turn on others."""
    return [kept[key] for key in sorted(kept, key=lambda key: (key.startswith("set "), key))]
