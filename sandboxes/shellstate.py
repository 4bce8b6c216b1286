"""What a shell knows, as bash itself tells it, and as a snapshot keeps it. Stdlib only: the agent uses it.

After every command bash reports its whole state (`REPORT`, 0.1 ms: builtins alone). A snapshot keeps the part that
a new shell cannot know by itself (`Kept`). Exported variables are not in it: they travel as the snapshot's `env`, so
that a world with another start environment, or a merge, decides about each of them alone; what `Kept` holds of one
is an attribute beside `export`, such as `readonly`.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Self

FORMAT = 1
LEAST_SECRET = 4  # bytes: a shorter value would be found everywhere; such a secret is known by its name alone

OPTIONS = (
    'if [[ "$BASHOPTS $SHELLOPTS" != "${RAMIFY_OPTIONS-}" ]]; then'
    ' RAMIFY_OPTIONS="$BASHOPTS $SHELLOPTS"; builtin export -n RAMIFY_OPTIONS; builtin shopt -p; builtin set +o; fi'
)
"""Eighty lines, which only `with_options` reads: where they are as they were, bash need not tell them again."""

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
"""First, and then no DEBUG trap runs amid the rest: the shell gets it back before its next command."""
REPORT = "; builtin printf '\\0'; ".join(SECTIONS)
"""Everything else, a NUL between the sections."""

AT_OPTIONS = 1 + next(at for at, section in enumerate(SECTIONS) if OPTIONS in section)

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
VARIABLE = "RAMIFY_REPORT"
"""A read-only variable of the shell that holds `TRAPS` and `REPORT`: bash reads its script byte by byte."""

HOUSEKEEPING = frozenset({"PWD", "OLDPWD", "SHLVL", "_"})
BASHS_OWN = (
    HOUSEKEEPING
    | {VARIABLE, "RAMIFY_OPTIONS"}
    | set(
        """BASH BASHOPTS BASHPID BASH_ALIASES BASH_ARGC BASH_ARGV BASH_ARGV0 BASH_CMDS BASH_COMMAND
    BASH_EXECUTION_STRING BASH_LINENO BASH_LOADABLES_PATH BASH_MONOSECONDS BASH_SOURCE BASH_SUBSHELL BASH_TRAPSIG
    BASH_VERSINFO
    BASH_VERSION COMP_WORDBREAKS DIRSTACK EPOCHREALTIME EPOCHSECONDS EUID FUNCNAME GROUPS HISTCMD HOSTNAME HOSTTYPE
    LINENO MACHTYPE OSTYPE PIPESTATUS PPID RANDOM SECONDS SHELLOPTS SRANDOM UID""".split()  # noqa: SIM905  (a list of forty reads worse)
    )
)
"""Variables that bash keeps itself: it says something else each time, or refuses to be told."""
BORN_WITH = ("IFS", "OPTERR", "OPTIND", "PS4", "SHELL", "TERM")
"""Variables of every new shell that a script can take away."""

_ITEM = re.compile(rb"^declare -([A-Za-z-]+) ([A-Za-z_][A-Za-z0-9_]*)(=?)", re.MULTILINE)
_FUNCTION = re.compile(rb"^(?=[^\s]+ \(\) ?\n)", re.MULTILINE)
_TRAP = re.compile(rb"^trap -- (?:'[^']*'|\\'|\$'(?:[^'\\]|\\.)*')* (\w+)$", re.MULTILINE)
_COMPAT = re.compile(rb"^shopt -[su] compat[0-9]+\n", re.MULTILINE)  # BASH_COMPAT, a variable, says it all
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


def with_options(told: bytes, before: bytes) -> bytes:
    """A whole state, where bash told the options only if they had changed since `before`.

    Raises `ValueError` on what is no state: what a world's commands forge must not end its agent.
    """
    parts = told.split(b"\0")
    if len(parts) != len(SECTIONS) + 1:
        raise ValueError(f"bash told {len(parts)} parts of its state, not {len(SECTIONS) + 1}")
    if not before:
        return told
    umask, _, options = parts[AT_OPTIONS].partition(b"\n")
    if not options:
        parts[AT_OPTIONS] = umask + b"\n" + before.split(b"\0")[AT_OPTIONS].partition(b"\n")[2]
    return b"\0".join(parts)


def debug_trap(traps: bytes) -> bytes:
    """The command that sets the DEBUG trap again; "" where there is none."""
    return next((match[0] for match in _TRAP.finditer(traps) if match[1] == b"DEBUG"), b"")


def words(text: bytes) -> list[bytes]:
    """The words that bash's own quoting (`%q`, `declare -p`) stands for. Nothing is expanded."""
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
    name: str
    flags: str  # as `declare -p` writes them, "-" for none
    text: bytes  # the whole declaration
    value: bytes | None  # as written, quoted; none where it has none

    @property
    def in_environment(self) -> bool:
        return "x" in self.flags and self.value is not None and not set(self.flags) & set("aA")


@dataclass(frozen=True, slots=True)
class Report:
    """What bash said after a command, taken apart. Raises `ValueError` on what is no report."""

    pwd: bytes
    oldpwd: bytes
    variables: tuple[Variable, ...]
    functions: bytes
    attributes: bytes  # of functions: `declare -fx name`
    aliases: bytes
    traps: bytes
    options: bytes  # umask, shopt, set: commands that restore them
    dirs: tuple[bytes, ...]  # the directory stack below the working directory
    args: tuple[bytes, ...]  # $1, $2, …
    limits: Mapping[str, tuple[int, int]]  # by the RLIMIT name: soft, hard

    @classmethod
    def parse(cls, raw: bytes) -> Self:
        parts = raw.split(b"\0")
        if len(parts) != len(SECTIONS) + 2:
            raise ValueError(f"bash reported {len(parts)} parts of its state, not {len(SECTIONS) + 2}")
        traps, pwd, oldpwd, variables, functions, attributes, aliases, options, dirs, args, limits = parts
        return cls(
            pwd,
            oldpwd,
            tuple(_variables(variables)),
            functions,
            attributes,
            aliases,
            b"".join(match[0] + b"\n" for match in _TRAP.finditer(traps)),
            options,
            tuple(words(dirs)[1:]),
            tuple(words(args)[1:]),
            {name: (int(soft), int(hard)) for name, soft, hard in map(str.split, limits.decode().splitlines())},
        )

    @property
    def environment(self) -> dict[str, str]:
        """What a program that the shell starts finds in its environment, exported functions apart."""
        return {v.name: os.fsdecode(b"".join(words(v.value or b""))) for v in self.variables if v.in_environment}

    def kept(self, tree: str) -> Kept:
        """What a snapshot keeps. Places inside `tree`, where this world's tree stands, become relative to it."""
        mine = [v for v in self.variables if v.name not in BASHS_OWN]
        names = {v.name for v in mine}
        lines = (_attributes_only(v) if v.in_environment else v.text for v in mine)
        return Kept(
            variables=tuple(_text(line) for line in lines if line),
            unset=tuple(name for name in BORN_WITH if name not in names),
            functions=_text(self.functions),
            attributes=_text(self.attributes),
            aliases=_text(self.aliases),
            traps=_text(self.traps),
            options=_text(_COMPAT.sub(b"", self.options)),
            args=tuple(map(_text, self.args)),
            oldpwd=_relative(_text(self.oldpwd), tree),
            dirs=tuple(_relative(_text(place), tree) for place in self.dirs),
            limits={name: tuple(pair) for name, pair in self.limits.items()},
        )


def _variables(listing: bytes) -> Iterable[Variable]:
    starts = list(_ITEM.finditer(listing))
    for match, following in zip(starts, [*(m.start() for m in starts[1:]), len(listing)], strict=True):
        text = listing[match.start() : following].rstrip(b"\n")
        value = listing[match.end() : following].rstrip(b"\n") if match[3] else None
        yield Variable(match[2].decode(), match[1].decode(), text, value)


def _attributes_only(variable: Variable) -> bytes:
    """`declare -rx NAME`: its value comes with the environment."""
    return b"" if variable.flags == "x" else f"declare -{variable.flags} {variable.name}".encode()


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _relative(place: str, tree: str) -> str:
    """`./x` for what lies inside the tree: a place in itself never begins so, for bash keeps them absolute."""
    if place == tree:
        return "."
    return f".{place[len(tree.rstrip('/')) :]}" if place.startswith(tree.rstrip("/") + "/") else place


def absolute(place: str, tree: str) -> str:
    """The other way."""
    return tree + place[1:] if place == "." or place.startswith("./") else place


def quoted(data: bytes) -> bytes:
    """One word that bash reads as exactly these bytes."""
    return b"'" + data.replace(b"'", b"'\\''") + b"'"


@dataclass(frozen=True, slots=True)
class Kept:
    """A shell's state in a snapshot, without what its `env` and `cwd` say. Equal where a new shell would be equal."""

    variables: tuple[str, ...] = ()  # declarations, as bash writes them
    unset: tuple[str, ...] = ()  # that every new shell has and this one has not
    functions: str = ""
    attributes: str = ""
    aliases: str = ""
    traps: str = ""
    options: str = ""
    args: tuple[str, ...] = ()
    oldpwd: str = ""
    dirs: tuple[str, ...] = ()
    limits: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def encode(self) -> bytes:
        """Canonical: one state, one text."""
        return json.dumps({"format": FORMAT, **asdict(self)}, sort_keys=True, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Raises `ValueError` where the format is not one that we know."""
        values: dict[str, Any] = json.loads(data)
        if values.pop("format", None) != FORMAT:
            raise ValueError(f"a shell's state in a format other than {FORMAT}: a newer ramify wrote it")
        limits = {name: tuple(pair) for name, pair in values.pop("limits").items()}
        plain: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}
        return cls(**plain, limits=limits)

    def script(self, tree: str) -> bytes:
        """What a new shell sources to be this one. The parsing order matters.

        Functions are read with extended patterns on and no alias known, as `declare -f` wrote them; traps and
        options come last, so that `set -e` or a trap cannot act on the lines before.
        """
        lines = [b"builtin shopt -s extglob", b"builtin unalias -a"]
        lines += [b"builtin unset -v " + " ".join(self.unset).encode()] if self.unset else []
        lines += [_bytes(declaration) for declaration in self.variables]  # before a function can be called `declare`
        lines += [_bytes(self.functions), _bytes(self.attributes)]
        lines += [b"builtin pushd -n " + quoted(_bytes(absolute(p, tree))) for p in reversed(self.dirs)]
        lines += [b" ".join((b"builtin set --", *(quoted(_bytes(word)) for word in self.args)))]
        lines += [b"OLDPWD=" + quoted(_bytes(absolute(self.oldpwd, tree)))]
        lines += [_bytes(self.aliases), _bytes(self.options), _bytes(self.traps)]
        return b"\n".join(lines) + b"\n"

    def since(self, began: Kept, earlier: Kept) -> Kept:
        """With the limits that were changed alone: the others are the machine's, or the world's own."""
        changed = {name: pair for name, pair in self.limits.items() if began.limits.get(name) != pair}
        return replace(self, limits={**earlier.limits, **changed})

    def without(self, secrets: Mapping[str, str]) -> Kept:
        """Nothing that is a secret by its name or holds one's value."""
        values = telling(secrets)
        if not secrets:
            return self
        variables = tuple(
            line
            for line, item in ((line, next(iter(_variables(_bytes(line))))) for line in self.variables)
            if item.name not in secrets and not _holds(b"".join(words(item.value or b"")), values)
        )
        functions = b"".join(f for f in _FUNCTION.split(_bytes(self.functions)) if not _holds(f, values))
        return replace(
            self,
            variables=variables,
            functions=_text(functions),
            aliases=_lines_without(self.aliases, values),
            traps="" if _holds(_bytes(self.traps), values) else self.traps,
            args=() if any(_holds(_bytes(word), values) for word in self.args) else self.args,
        )


def telling(secrets: Mapping[str, str]) -> list[bytes]:
    """The secrets' values that are long enough to be recognised."""
    return [value for value in map(os.fsencode, secrets.values()) if len(value) >= LEAST_SECRET]


def environment_without(env: Mapping[str, str], secrets: Mapping[str, str]) -> dict[str, str]:
    values = telling(secrets)
    return {k: v for k, v in env.items() if k not in secrets and not _holds(os.fsencode(v), values)}


def _holds(text: bytes, values: list[bytes]) -> bool:
    return any(value in text for value in values)


def _lines_without(text: str, values: list[bytes]) -> str:
    return "".join(line for line in text.splitlines(keepends=True) if not _holds(_bytes(line), values))
