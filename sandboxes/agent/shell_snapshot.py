"""The shell's state in a snapshot: the part of bash's report that a new shell would not have by itself. Stdlib only.

Exported variables are not in it: they are stored as the snapshot's `env`, so that another start environment, or a
merge, decides about each of them separately. `ShellSnapshot` only holds their attributes beside `export`, such as
`readonly`.

What bash lists (functions, aliases, traps, options) is kept by name, so that a merge decides about each item
separately, and a secret removes only the item that holds it.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Self, TypeVar

from ramify.sandboxes.agent.secret_forms import forms_in
from ramify.sandboxes.agent.shell import TRAP, VARIABLE, Report, Variable, parse_variables, words

T = TypeVar("T")
FORMAT = 2

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

_FUNCTION = re.compile(rb"^(?:function )?(.+) \(\) ?\n", re.MULTILINE)
_NAMED = re.compile(rb"^declare -([A-Za-z]+) (.+)$", re.MULTILINE)
_ALIAS = re.compile(rb"^alias (?:-- )?([^=\n]+)=(?:'[^']*'|\\')*$", re.MULTILINE)
_COMPAT = re.compile(rb"^shopt -[su] compat[0-9]+\n", re.MULTILINE)  # the variable BASH_COMPAT says the same


@dataclass(frozen=True, slots=True)
class ShellSnapshot:
    """A shell's state in a snapshot, without its `env` and `cwd`, by name, as the store merges it."""

    variables: Mapping[str, str] = field(default_factory=dict)
    """Declarations, as bash writes them; "" for a variable that every new shell has and this one has not."""
    functions: Mapping[str, str] = field(default_factory=dict)
    attributes: Mapping[str, str] = field(default_factory=dict)  # of functions: `declare -fx name`
    aliases: Mapping[str, str] = field(default_factory=dict)
    traps: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, str] = field(default_factory=dict)  # and the umask; keys as in `parse_options`
    args: tuple[str, ...] = ()
    oldpwd: str = ""
    dirs: tuple[str, ...] = ()
    limits: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, report: Report, tree: str) -> Self:
        """The part of a report that a snapshot keeps. Paths inside `tree`, this world's tree, become relative to
        it."""
        mine = {v.name: v for v in report.variables if v.name not in BASH_MANAGED}
        lines = {v.name: text(_attributes_only(v) if v.in_environment else v.text) for v in mine.values()}
        return cls(
            variables={
                **{name: line for name, line in lines.items() if line},
                **{name: "" for name in SHELL_DEFAULTS if name not in mine},
            },
            functions=parse_functions(report.functions, report.attributes),
            attributes=parse_attributes(report.attributes),
            aliases=parse_aliases(report.aliases),
            traps=parse_traps(report.traps),
            options=parse_options(report.options),
            args=tuple(map(text, report.args)),
            oldpwd=_relative(text(report.oldpwd), tree),
            dirs=tuple(_relative(text(place), tree) for place in report.dirs),
            limits={name: tuple(pair) for name, pair in report.limits.items()},
        )

    def encode(self) -> bytes:
        """Canonical: equal states have equal texts."""
        return json.dumps({"format": FORMAT, **asdict(self)}, sort_keys=True, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Raises `ValueError` for an unknown format."""
        values: dict[str, Any] = json.loads(data)
        if values.get("format") == 1:
            values = _from_format_1(values)
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
        lines += map(_bytes, (*self.aliases.values(), *options_in_order(self.options), *self.traps.values()))
        return b"\n".join(lines) + b"\n"

    def since(self, began: ShellSnapshot, earlier: ShellSnapshot) -> ShellSnapshot:
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

    def without(self, secrets: Mapping[str, str]) -> ShellSnapshot:
        """Without anything that is a secret by name or holds a secret in a form that `secret_forms` recognises."""
        if not secrets:
            return self
        forms = forms_in(secrets)

        def is_clean(*texts: str) -> bool:
            return not any(forms.are_in(_bytes(text)) for text in texts)

        def kept(items: Mapping[str, str]) -> dict[str, str]:
            return {name: item for name, item in items.items() if is_clean(name, item)}

        functions = kept(self.functions)
        return replace(
            self,
            variables={
                name: line
                for name, line in self.variables.items()
                if name not in secrets
                and is_clean(name, line)
                and not any(forms.are_in(_value(item)) for item in parse_variables(_bytes(line)))
            },
            functions=functions,
            attributes={name: line for name, line in self.attributes.items() if name in functions},
            aliases=kept(self.aliases),
            traps=kept(self.traps),
            args=self.args if is_clean(*self.args, "".join(self.args)) else (),
            oldpwd=self.oldpwd if is_clean(self.oldpwd) else "",
            dirs=tuple(place for place in self.dirs if is_clean(place)),
        )


def _from_format_1(values: dict[str, Any]) -> dict[str, Any]:
    """Convert format 1, which stored bash's own lists."""
    listed = {kind: _bytes(values[kind]) for kind in ("functions", "attributes", "aliases", "traps", "options")}
    declared = [(item.name, line) for line in values["variables"] for item in parse_variables(_bytes(line))]
    return {
        **{kind: value for kind, value in values.items() if kind != "unset"},
        "format": FORMAT,
        "variables": {**dict(declared), **dict.fromkeys(values["unset"], "")},
        "functions": parse_functions(listed["functions"], listed["attributes"]),
        "attributes": parse_attributes(listed["attributes"]),
        "aliases": parse_aliases(listed["aliases"]),
        "traps": parse_traps(listed["traps"]),
        "options": parse_options(listed["options"]),
    }


def _value(variable: Variable) -> bytes:
    return b"".join(words(variable.value or b""))


def _changed(before: Mapping[str, T], now: Mapping[str, T]) -> dict[str, T]:
    return {name: value for name, value in now.items() if before.get(name) != value}


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


def text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def parse_functions(listing: bytes, names: bytes) -> dict[str, str]:
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


def parse_attributes(names: bytes) -> dict[str, str]:
    """From `declare -F`: the lines with attributes beyond being a function."""
    return {
        text(name): f"declare -{text(flags)} {text(name)}" for flags, name in _NAMED.findall(names) if flags != b"f"
    }


def parse_aliases(listing: bytes) -> dict[str, str]:
    return {text(found[1]): text(found[0]) for found in _ALIAS.finditer(listing)}


def parse_traps(listing: bytes) -> dict[str, str]:
    return {text(found[1]): text(found[0]) for found in TRAP.finditer(listing)}


def parse_options(listing: bytes) -> dict[str, str]:
    """From `umask -p`, `shopt -p` and `set +o`: by `umask`, `shopt NAME`, `set NAME`."""
    lines = text(_COMPAT.sub(b"", listing)).splitlines()
    split = [(line.split(), line) for line in lines if line]
    return {words[0] if words[0] == "umask" else f"{words[0]} {words[-1]}": line for words, line in split}


def options_in_order(kept: Mapping[str, str]) -> list[str]:
    """Options in bash's order, `set` last: what it turns on may turn on others."""
    return [kept[key] for key in sorted(kept, key=lambda key: (key.startswith("set "), key))]
