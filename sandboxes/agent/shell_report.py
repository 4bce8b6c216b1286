"""What bash reports of its state after every command, and how the report is parsed. Stdlib only.

The report (`TRAPS` and `REPORT`) takes bash 0.1 ms: it uses builtins only. `shell_snapshot.py` keeps the part of it
that a new shell would not have by itself.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Self

OPTIONS = (
    'if [[ "$BASHOPTS $SHELLOPTS" != "${RAMIFY_OPTIONS-}" ]]; then'
    ' RAMIFY_OPTIONS="$BASHOPTS $SHELLOPTS"; builtin export -n RAMIFY_OPTIONS; builtin shopt -p; builtin set +o; fi'
)
"""Eighty lines. Bash repeats them only if they have changed; `fill_in_options` fills them in."""

SECTIONS = (
    'builtin printf "%s" "$PWD"',
    'builtin printf "%s" "${OLDPWD-}"',
    "builtin declare -p",
    "builtin declare -f",
    "builtin declare -F",
    "builtin alias -p",
    "builtin umask -p; " + OPTIONS,
    'builtin printf " %q" "${DIRSTACK[@]}"',
    'builtin printf " %q" "$#" "$@"',
)
TRAPS = "builtin trap -p; builtin trap - DEBUG; builtin printf '\\0'"
"""Sent first, so that no DEBUG trap runs during the rest. The shell gets it back before its next command."""
REPORT = "; builtin printf '\\0'; ".join(SECTIONS)
"""Everything else, separated by NUL."""

AT_OPTIONS = 1 + next(at for at, section in enumerate(SECTIONS) if OPTIONS in section)

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
VARIABLE = "RAMIFY_REPORT"
"""A read-only shell variable that holds `TRAPS` and `REPORT`: bash reads its script byte by byte."""

TRAP = re.compile(rb"^trap -- (?:'[^']*'|\\'|\$'(?:[^'\\]|\\.)*')* (\w+)$", re.MULTILINE)
_ITEM = re.compile(rb"^declare -([A-Za-z-]+) ([A-Za-z_][A-Za-z0-9_]*)(=?)", re.MULTILINE)
_WORD = re.compile(
    rb"""(?P<space>[ \t\n]+) | '(?P<single>[^']*)' | \$'(?P<ansi>(?:[^'\\]|\\.)*)' | \$?"(?P<double>(?:[^"\\]|\\.)*)"
    | \\(?P<escaped>.) | (?P<plain>[^ \t\n'"\\])""",
    re.VERBOSE | re.DOTALL,
)
_ANSI = re.compile(
    rb"""\\(?: ([0-7]{1,3}) | x([0-9A-Fa-f]{1,2}) | u([0-9A-Fa-f]{1,4}) | U([0-9A-Fa-f]{1,8}) | (.) )""",
    re.VERBOSE | re.DOTALL,
)
_LETTERS = {b"a": b"\a", b"b": b"\b", b"e": b"\x1b", b"E": b"\x1b", b"f": b"\f", b"n": b"\n", b"r": b"\r"} | {
    b"t": b"\t",
    b"v": b"\v",
}


def fill_in_options(told: bytes, before: bytes) -> bytes:
    """Complete a state for which bash reported the options only if they had changed since `before`.

    Raises `ValueError` for anything that is no state: commands may forge reports, and must not end their agent.
    """
    parts = told.split(b"\0")
    if len(parts) != len(SECTIONS) + 1:
        raise ValueError(f"bash reported {len(parts)} parts of its state, not {len(SECTIONS) + 1}")
    if not before:
        return told
    umask, _, options = parts[AT_OPTIONS].partition(b"\n")
    if not options:
        parts[AT_OPTIONS] = umask + b"\n" + before.split(b"\0")[AT_OPTIONS].partition(b"\n")[2]
    return b"\0".join(parts)


def debug_trap(traps: bytes) -> bytes:
    """The command that sets the DEBUG trap again; "" without one."""
    return next((match[0] for match in TRAP.finditer(traps) if match[1] == b"DEBUG"), b"")


def words(text: bytes) -> list[bytes]:
    """The words that bash's own quoting (`%q`, `declare -p`) stands for. Expands nothing."""
    found: list[bytearray] = []
    begun = False
    for match in _WORD.finditer(text):
        kind, piece = match.lastgroup or "", match[match.lastgroup or 0]
        if kind == "space":
            begun = False
            continue
        if kind == "ansi":
            piece = _ANSI.sub(_ansi, piece)
        elif kind == "double":
            piece = re.sub(rb'\\([$`"\\])', rb"\1", piece)
        if not begun:
            found.append(bytearray())
        begun = True
        found[-1] += piece
    return [bytes(word) for word in found]


def _ansi(match: re.Match[bytes]) -> bytes:
    octal, short, four, eight, letter = match.groups()
    if octal or short:
        return bytes([int(octal, 8) & 0xFF if octal else int(short, 16)])
    if four or eight:
        point = int(four or eight, 16)
        return (
            chr(point).encode("utf-8", "surrogatepass") if point <= sys.maxunicode else match[0]
        )  # bash writes none
    return _LETTERS.get(letter, letter)


@dataclass(frozen=True, slots=True)
class Variable:
    """One line of `declare -p`."""

    name: str
    flags: str  # as in `declare -p`; "-" for none
    text: bytes  # the whole declaration
    value: bytes | None  # as written, quoted; None without a value

    @property
    def in_environment(self) -> bool:
        return "x" in self.flags and self.value is not None and not set(self.flags) & set("aA")


@dataclass(frozen=True, slots=True)
class Report:
    """Bash's report after a command, parsed. Raises `ValueError` for anything else."""

    pwd: bytes
    oldpwd: bytes
    variables: tuple[Variable, ...]
    functions: bytes
    attributes: bytes  # of functions: `declare -f name`, `declare -fx name`
    aliases: bytes
    traps: bytes
    options: bytes  # umask, shopt, set: commands that restore them
    dirs: tuple[bytes, ...]  # the directory stack below the working directory
    args: tuple[bytes, ...]  # $1, $2, …
    limits: Mapping[str, tuple[int, int]]  # by RLIMIT name: soft, hard

    @classmethod
    def parse(cls, raw: bytes) -> Self:
        parts = raw.split(b"\0")
        if len(parts) != len(SECTIONS) + 2:
            raise ValueError(f"bash reported {len(parts)} parts of its state, not {len(SECTIONS) + 2}")
        traps, pwd, oldpwd, variables, functions, attributes, aliases, options, dirs, args, limits = parts
        return cls(
            pwd,
            oldpwd,
            tuple(parse_variables(variables)),
            functions,
            attributes,
            aliases,
            traps,
            options,
            tuple(words(dirs)[1:]),
            tuple(words(args)[1:]),
            {name: (int(soft), int(hard)) for name, soft, hard in map(str.split, limits.decode().splitlines())},
        )

    @property
    def environment(self) -> dict[str, str]:
        """The environment of programs that the shell starts, without exported functions."""
        return {v.name: os.fsdecode(b"".join(words(v.value or b""))) for v in self.variables if v.in_environment}


def parse_variables(listing: bytes) -> Iterable[Variable]:
    starts = list(_ITEM.finditer(listing))
    for match, following in zip(starts, [*(m.start() for m in starts[1:]), len(listing)], strict=True):
        text = listing[match.start() : following].rstrip(b"\n")
        value = listing[match.end() : following].rstrip(b"\n") if match[3] else None
        yield Variable(match[2].decode(), match[1].decode(), text, value)
