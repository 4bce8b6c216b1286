"""The shell's state in a snapshot: the part of bash's report that a new shell would not have by itself. Stdlib only.

Exported variables are not in it: they are stored as the snapshot's `env`, so that another start environment, or a
merge, decides about each of them separately. `ShellSnapshot` only holds their attributes beside `export`, such as
`readonly`.

What bash lists (functions, aliases, traps, options) is kept by name, so that a merge decides about each item
separately, and a secret removes only the item that holds it.

`SecretForms` recognises secrets in the forms that commands bring them into: quoted, in lines, in parts, in base64.
Texts are compared as their letters and digits in lower case, so quotes, blanks, newlines and case make no difference.
What a command computes from a secret in other ways (compressed, encrypted, every letter by itself) is not recognised.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from typing import Any, Self, TypeVar

from ramify.sandboxes.agent.shell import TRAP, VARIABLE, Report, Variable, parse_variables, words

LEAST_SECRET = 4  # bytes: shorter values would be found everywhere, so such a secret is recognised only by its name
_MIXED, _ANY, _ENCODED = 8, 12, 16
"""Lengths of a part by which a longer secret is recognised: of letters and digits, of either alone, of an encoding.
Shorter parts would be found in texts that have nothing to do with it: "password", "localhost"."""

_OTHER = bytes(code for code in range(128) if not chr(code).isalnum())
_INDEX = re.compile(rb"\[[0-9]+\]=")
_ESCAPE = re.compile(rb"\\x([0-9A-Fa-f]{2})|%([0-9A-Fa-f]{2})|\\u00([0-9A-Fa-f]{2})|\\([0-7]{3})|\\[abefnrtv]")


def _plain(text: bytes) -> bytes:
    """Its letters, digits and bytes beyond ASCII, in lower case."""
    return text.lower().translate(None, _OTHER)


@lru_cache(maxsize=16)
def forms_of(values: tuple[bytes, ...]) -> SecretForms:
    """The forms of the secrets of a world. A seal asks for them each time."""
    return SecretForms(values)


class SecretForms:
    """Recognises secrets in texts."""

    def __init__(self, values: Iterable[bytes]) -> None:
        self._exact: list[bytes] = []
        self._whole: list[bytes] = []
        self._parts: dict[int, set[bytes]] = {_MIXED: set(), _ANY: set(), _ENCODED: set()}
        for value in values:
            if len(value) < LEAST_SECRET:
                continue
            self._exact.append(value)
            plain = _plain(value)
            if len(plain) >= LEAST_SECRET:
                self._whole += [plain, plain[::-1]]
                self._add_parts(plain)
                self._add_parts(plain[::-1])
            for encoded in _encodings(value):
                if len(encoded) >= _ENCODED:
                    self._add(_ENCODED, _plain(encoded))
                elif len(encoded) >= _MIXED:
                    self._whole.append(_plain(encoded))

    def _add_parts(self, plain: bytes) -> None:
        self._add(_ANY, plain)
        self._parts[_MIXED].update(part for part in _windows(plain, _MIXED) if not (part.isdigit() or part.isalpha()))

    def _add(self, size: int, plain: bytes) -> None:
        self._parts[size].update(_windows(plain, size))

    def __bool__(self) -> bool:
        return bool(self._exact)

    def are_in(self, text: bytes) -> bool:
        """Whether a text holds a secret, or a part of one that is long enough to be recognised."""
        if not self._exact:
            return False
        if any(value in text for value in self._exact):
            return True
        return any(map(self._are_in_plain, {_plain(form) for form in (text, _decoded(text))}))

    def _are_in_plain(self, plain: bytes) -> bool:
        if any(value in plain for value in self._whole):
            return True
        return any(not known.isdisjoint(_windows(plain, size)) for size, known in self._parts.items() if known)


def _windows(text: bytes, size: int) -> Iterable[bytes]:
    return (text[at : at + size] for at in range(len(text) - size + 1))


def _decoded(text: bytes) -> bytes:
    """Without the indexes of bash's arrays and the escapes of bash, JSON and URLs."""

    def byte(match: re.Match[bytes]) -> bytes:
        hexadecimal = match[1] or match[2] or match[3]
        if hexadecimal:
            return bytes([int(hexadecimal, 16)])
        return bytes([int(match[4], 8) & 0xFF]) if match[4] else b""

    return _ESCAPE.sub(byte, _INDEX.sub(b"", text))


def _encodings(value: bytes) -> Iterable[bytes]:
    """The secret in hexadecimal, base64 and base32, in all positions within a longer text."""
    import base64  # the agent, which is forked often, has no use for it

    for form in {value, value.strip()}:
        yield form.hex().encode()
        for before in range(3):
            yield _middle(base64.b64encode(bytes(before) + form), before, len(form), 6)
        for before in range(5):
            yield _middle(base64.b32encode(bytes(before) + form), before, len(form), 5)


def _middle(encoded: bytes, before: int, size: int, bits: int) -> bytes:
    """The characters that depend on the `size` bytes after the first `before` ones, and on nothing else."""
    return encoded[-(-before * 8 // bits) : (before + size) * 8 // bits]


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
        """Without anything that is a secret by name or holds a secret in a form that `SecretForms` recognises."""
        if not secrets:
            return self
        forms = _forms(secrets)

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


def _forms(secrets: Mapping[str, str]) -> SecretForms:
    return forms_of(tuple(map(os.fsencode, secrets.values())))


def environment_without(env: Mapping[str, str], secrets: Mapping[str, str]) -> dict[str, str]:
    """The variables that are no secret by name and hold none, in their names or values."""
    forms = _forms(secrets)
    return {
        k: v
        for k, v in env.items()
        if k not in secrets and not forms.are_in(os.fsencode(k)) and not forms.are_in(os.fsencode(v))
    }


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
