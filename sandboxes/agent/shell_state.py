"""A shell's state, as bash reports it and as a snapshot keeps it. Stdlib only: used by the agent.

After every command bash reports its whole state (`REPORT`, 0.1 ms: builtins only). A snapshot keeps the part that a
new shell would not have by itself (`Kept`). Exported variables are not in it: they are stored as the snapshot's
`env`, so that another start environment, or a merge, decides about each of them separately. `Kept` only holds their
attributes beside `export`, such as `readonly`.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Self, TypeVar

from ramify.sandboxes.agent import shell_listings

T = TypeVar("T")
FORMAT = 2
LEAST_SECRET = 4  # bytes: shorter values would be found everywhere, so such a secret is recognised only by its name

OPTIONS = (
    'if [[ "$BASHOPTS $SHELLOPTS" != "${RAMIFY_OPTIONS-}" ]]; then'
    ' RAMIFY_OPTIONS="$BASHOPTS $SHELLOPTS"; builtin export -n RAMIFY_OPTIONS; builtin shopt -p; builtin set +o; fi'
)
"""Eighty lines. Bash repeats them only if they have changed; `with_options` fills them in."""

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

HOUSEKEEPING = frozenset({"PWD", "OLDPWD", "SHLVL", "_"})
BASH_MANAGED = (
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
"""Variables that bash sets itself: their values always differ, or cannot be set."""
SHELL_DEFAULTS = ("IFS", "OPTERR", "OPTIND", "PS4", "SHELL", "TERM")
"""Variables that every new shell has and that a script can unset."""

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


def with_options(told: bytes, before: bytes) -> bytes:
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
    return next((match[0] for match in shell_listings.TRAP.finditer(traps) if match[1] == b"DEBUG"), b"")


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
            tuple(_variables(variables)),
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

    def kept(self, tree: str) -> Kept:
        """The part that a snapshot keeps. Paths inside `tree`, this world's tree, become relative to it."""
        mine = {v.name: v for v in self.variables if v.name not in BASH_MANAGED}
        lines = {
            v.name: shell_listings.text(_attributes_only(v) if v.in_environment else v.text) for v in mine.values()
        }
        return Kept(
            variables={
                **{name: line for name, line in lines.items() if line},
                **{name: "" for name in SHELL_DEFAULTS if name not in mine},
            },
            functions=shell_listings.functions(self.functions, self.attributes),
            attributes=shell_listings.attributes(self.attributes),
            aliases=shell_listings.aliases(self.aliases),
            traps=shell_listings.traps(self.traps),
            options=shell_listings.options(self.options),
            args=tuple(map(shell_listings.text, self.args)),
            oldpwd=_relative(shell_listings.text(self.oldpwd), tree),
            dirs=tuple(_relative(shell_listings.text(place), tree) for place in self.dirs),
            limits={name: tuple(pair) for name, pair in self.limits.items()},
        )


def _variables(listing: bytes) -> Iterable[Variable]:
    starts = list(_ITEM.finditer(listing))
    for match, following in zip(starts, [*(m.start() for m in starts[1:]), len(listing)], strict=True):
        text = listing[match.start() : following].rstrip(b"\n")
        value = listing[match.end() : following].rstrip(b"\n") if match[3] else None
        yield Variable(match[2].decode(), match[1].decode(), text, value)


def _attributes_only(variable: Variable) -> bytes:
    """`declare -rx NAME`: the value is stored with the environment."""
    return b"" if variable.flags == "x" else f"declare -{variable.flags} {variable.name}".encode()


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _relative(place: str, tree: str) -> str:
    """`./x` for a path inside the tree. Bash keeps paths absolute, so no other path begins like that."""
    if place == tree:
        return "."
    return f".{place[len(tree.rstrip('/')) :]}" if place.startswith(tree.rstrip("/") + "/") else place


def absolute(place: str, tree: str) -> str:
    """The inverse of `_relative`."""
    return tree + place[1:] if place == "." or place.startswith("./") else place


def quoted(data: bytes) -> bytes:
    """A word that bash reads as exactly these bytes."""
    return b"'" + data.replace(b"'", b"'\\''") + b"'"


def export_script(env: Mapping[str, str]) -> bytes:
    """A script that exports these variables."""
    return b"".join(b"builtin export " + _bytes(name) + b"=" + quoted(_bytes(env[name])) + b"\n" for name in env)


@dataclass(frozen=True, slots=True)
class Kept:
    """A shell's state in a snapshot, without its `env` and `cwd`, by name, as the store merges it."""

    variables: Mapping[str, str] = field(default_factory=dict)
    """Declarations, as bash writes them; "" for a variable that every new shell has and this one has not."""
    functions: Mapping[str, str] = field(default_factory=dict)
    attributes: Mapping[str, str] = field(default_factory=dict)  # of functions: `declare -fx name`
    aliases: Mapping[str, str] = field(default_factory=dict)
    traps: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, str] = field(default_factory=dict)  # and the umask; keys as in `shell_listings.options`
    args: tuple[str, ...] = ()
    oldpwd: str = ""
    dirs: tuple[str, ...] = ()
    limits: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def encode(self) -> bytes:
        """Canonical: equal states have equal texts."""
        return json.dumps({"format": FORMAT, **asdict(self)}, sort_keys=True, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Raises `ValueError` for an unknown format."""
        values: dict[str, Any] = json.loads(data)
        if values.get("format") == 1:
            values = _by_name(values)
        if values.pop("format", None) != FORMAT:
            raise ValueError(f"the shell's state is not in format {FORMAT}: a newer version of Ramify wrote it")
        limits = {name: tuple(pair) for name, pair in values.pop("limits").items()}
        plain: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}
        return cls(**plain, limits=limits)

    def script(self, tree: str) -> bytes:
        """What a new shell sources to get this state. The order matters.

        Functions are read with extended patterns on and without aliases, as `declare -f` wrote them. Traps and
        options come last, so that `set -e` or a trap cannot affect the lines before.
        """
        unset = [name for name, line in self.variables.items() if not line]
        lines = [b"builtin shopt -s extglob", b"builtin unalias -a"]
        lines += [b"builtin unset -v " + " ".join(unset).encode()] if unset else []
        lines += map(_bytes, self.variables.values())  # before a function can be called `declare`
        lines += map(_bytes, (*self.functions.values(), *self.attributes.values()))
        lines += [b"builtin pushd -n " + quoted(_bytes(absolute(p, tree))) for p in reversed(self.dirs)]
        lines += [b" ".join((b"builtin set --", *(quoted(_bytes(word)) for word in self.args)))]
        lines += [b"OLDPWD=" + quoted(_bytes(absolute(self.oldpwd, tree))), b"builtin shopt -u extglob"]
        lines += map(_bytes, (*self.aliases.values(), *shell_listings.in_order(self.options), *self.traps.values()))
        return b"\n".join(lines) + b"\n"

    def since(self, began: Kept, earlier: Kept) -> Kept:
        """Without variables, options and limits that have not changed since the shell began: a new shell has them
        itself."""
        return replace(
            self,
            variables={
                name: line
                for name, line in self.variables.items()
                if name in earlier.variables or began.variables.get(name) != line
            },
            options={**earlier.options, **_changed(began.options, self.options)},
            limits={**earlier.limits, **_changed(began.limits, self.limits)},
        )

    def without(self, secrets: Mapping[str, str]) -> Kept:
        """Without anything that is a secret by name or contains a secret's value."""
        values = telling(secrets)
        if not secrets:
            return self

        def kept(items: Mapping[str, str]) -> dict[str, str]:
            return {name: item for name, item in items.items() if not _holds(_bytes(item), values)}

        functions = kept(self.functions)
        return replace(
            self,
            variables={
                name: line
                for name, line in self.variables.items()
                if name not in secrets and not any(_holds(_value(item), values) for item in _variables(_bytes(line)))
            },
            functions=functions,
            attributes={name: line for name, line in self.attributes.items() if name in functions},
            aliases=kept(self.aliases),
            traps=kept(self.traps),
            args=() if any(_holds(_bytes(word), values) for word in self.args) else self.args,
        )


def _by_name(values: dict[str, Any]) -> dict[str, Any]:
    """Convert format 1, which stored bash's own lists."""
    listed = {kind: _bytes(values[kind]) for kind in ("functions", "attributes", "aliases", "traps", "options")}
    declared = [(item.name, line) for line in values["variables"] for item in _variables(_bytes(line))]
    return {
        **{kind: value for kind, value in values.items() if kind != "unset"},
        "format": FORMAT,
        "variables": {**dict(declared), **dict.fromkeys(values["unset"], "")},
        "functions": shell_listings.functions(listed["functions"], listed["attributes"]),
        "attributes": shell_listings.attributes(listed["attributes"]),
        "aliases": shell_listings.aliases(listed["aliases"]),
        "traps": shell_listings.traps(listed["traps"]),
        "options": shell_listings.options(listed["options"]),
    }


def _value(variable: Variable) -> bytes:
    return b"".join(words(variable.value or b""))


def _changed(before: Mapping[str, T], now: Mapping[str, T]) -> dict[str, T]:
    return {name: value for name, value in now.items() if before.get(name) != value}


def telling(secrets: Mapping[str, str]) -> list[bytes]:
    """The secrets' values that are long enough to be recognised."""
    return [value for value in map(os.fsencode, secrets.values()) if len(value) >= LEAST_SECRET]


def environment_without(env: Mapping[str, str], secrets: Mapping[str, str]) -> dict[str, str]:
    values = telling(secrets)
    return {k: v for k, v in env.items() if k not in secrets and not _holds(os.fsencode(v), values)}


def _holds(text: bytes, values: list[bytes]) -> bool:
    return any(value in text for value in values)
