"""Translate regular expressions (ECMA 262, as JSON Schema has them) into the part of them that llama.cpp enforces.

llama.cpp reads `\\d` as a letter, and lets `.` match a quote, which ends the JSON string. So each atom becomes a
class of code points that stand unescaped in a JSON string. Classes lose the others: what the engine then writes still
matches the pattern. What has no such translation (lookaround, references, word boundaries) raises
UnsupportedPattern.
"""

from __future__ import annotations

from collections.abc import Iterable

Ranges = list[tuple[int, int]]  # of code points, ends included
_LAST = 0x10FFFF
_UNSAFE: Ranges = [(0x00, 0x1F), (0x22, 0x22), (0x5C, 0x5C), (0x7F, 0x9F), (0xD800, 0xDFFF)]
_DIGITS: Ranges = [(0x30, 0x39)]
_WORD: Ranges = [(0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A)]
_SPACE: Ranges = [(0x09, 0x0D), (0x20, 0x20), (0xA0, 0xA0), (0x3000, 0x3000)]
_SETS = {"d": _DIGITS, "w": _WORD, "s": _SPACE}
_HEXADECIMAL = frozenset("0123456789abcdefABCDEF")
_CONTROLS = {"t": 0x09, "n": 0x0A, "v": 0x0B, "f": 0x0C, "r": 0x0D, "0": 0x00}


class UnsupportedPattern(ValueError):
    """The pattern has a part that the engine cannot be made to enforce. The message names it."""


def translated(pattern: str) -> str:
    """A pattern for llama.cpp whose every match is a match of this one. Raises UnsupportedPattern."""
    return _Translation(pattern).whole()


class _Translation:
    """One pass over the pattern, without recursion, because a client made it."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._at = 0
        self._depth = 0
        self._branches: list[tuple[bool, str, bool]] = []  # begins at the start, translation, ends at the end
        self._begun, self._out, self._ended = False, list[str](), False
        self._repeatable = False  # may a quantifier follow?

    def whole(self) -> str:
        while self._at < len(self._pattern):
            self._step()
        if self._depth:
            raise UnsupportedPattern("a group without an end")
        self._end_branch()
        any_text = f"{_class(_negated([]))}*"
        said = [
            f"{'' if begun else any_text}{text}{'' if ended else any_text}" for begun, text, ended in self._branches
        ]
        return f"^({'|'.join(said)})$" if len(said) > 1 else f"^{said[0]}$"

    def _end_branch(self) -> None:
        self._branches.append((self._begun, "".join(self._out), self._ended))
        self._begun, self._out, self._ended, self._repeatable = False, [], False, False

    def _step(self) -> None:
        char = self._take()
        if self._ended and not (char == "|" and not self._depth):
            raise UnsupportedPattern("$ before the end")
        match char:
            case "^":
                if self._depth or self._out or self._begun:
                    raise UnsupportedPattern("^ after the beginning")
                self._begun = True
            case "$":
                if self._depth:
                    raise UnsupportedPattern("$ in a group")
                self._ended = True
            case "|":
                if self._depth:
                    self._add("|", repeatable=False)
                else:
                    self._end_branch()
            case "(":
                self._group()
            case ")":
                self._depth -= 1
                if self._depth < 0:
                    raise UnsupportedPattern(") without a (")
                self._add(")")
            case "*" | "+" | "?":
                self._quantifier(char)
            case "{":
                self._counts()
            case "[":
                self._add(_class(self._set()))
            case ".":
                self._add(_class(_negated([(0x0A, 0x0A), (0x0D, 0x0D), (0x2028, 0x2029)])))
            case "\\":
                self._add(_class(self._escaped()))
            case _:
                self._add(char if char.isalnum() and char.isascii() else _class([(ord(char), ord(char))]))

    def _take(self) -> str:
        if self._at >= len(self._pattern):
            raise UnsupportedPattern("its end in the middle of a part")
        self._at += 1
        return self._pattern[self._at - 1]

    def _add(self, text: str, *, repeatable: bool = True) -> None:
        self._out.append(text)
        self._repeatable = repeatable

    def _group(self) -> None:
        rest = self._pattern[self._at : self._at + 3]
        if rest.startswith("?"):
            if rest.startswith("?:"):
                self._at += 2
            elif rest.startswith("?<") and rest[2:3] not in ("=", "!", ""):
                self._at = self._pattern.find(">", self._at) + 1 or len(self._pattern) + 1
            else:
                raise UnsupportedPattern(f"({rest.rstrip()}")
        self._depth += 1
        self._add("(", repeatable=False)

    def _quantifier(self, text: str) -> None:
        if not self._repeatable:
            raise UnsupportedPattern(f"{text} after nothing")
        self._add(text, repeatable=False)
        if self._pattern[self._at : self._at + 1] == "?":  # lazy: the same texts match
            self._at += 1

    def _counts(self) -> None:
        end = self._pattern.find("}", self._at)
        text = self._pattern[self._at : end] if end >= 0 else ""
        low, comma, high = text.partition(",")
        if not low.isdecimal() or (high and not high.isdecimal()) or not text.isascii():
            raise UnsupportedPattern("{ that begins no count")
        self._at = end + 1
        self._quantifier(f"{{{low}{comma}{high}}}")

    def _escaped(self) -> Ranges:
        """The code points of an escape, outside a class."""
        char = self._take()
        if char.lower() in _SETS:
            return _SETS[char] if char in _SETS else _others(_SETS[char.lower()])
        return [(point := self._point(char), point)]

    def _point(self, char: str) -> int:
        """The code point of the escape that begins with this character."""
        if char in _CONTROLS:
            return _CONTROLS[char]
        if char in ("x", "u"):
            size = 2 if char == "x" else 4
            digits = self._pattern[self._at : self._at + size]
            self._at += size
            if len(digits) < size or not set(digits) <= _HEXADECIMAL:
                raise UnsupportedPattern(f"\\{char}{digits}")
            return int(digits, 16)
        if char.isalnum():
            raise UnsupportedPattern(f"\\{char}")
        return ord(char)

    def _set(self) -> Ranges:
        """The code points of a class, after its `[`."""
        negated = self._pattern[self._at : self._at + 1] == "^"
        self._at += negated
        found: Ranges = []
        begin = self._at
        while (char := self._take()) != "]":
            low = self._member(char)
            dash, end = self._pattern[self._at : self._at + 1], self._pattern[self._at + 1 : self._at + 2]
            if len(low) == 1 and low[0][0] == low[0][1] and dash == "-" and end not in ("]", ""):
                self._at += 1
                high = self._member(self._take())
                if len(high) != 1 or high[0][0] != high[0][1] or high[0][0] < low[0][0]:
                    raise UnsupportedPattern("a range in a class that is none")
                low = [(low[0][0], high[0][1])]
            found += low
        if not negated:
            return found
        shorthand = any(f"\\{name}" in self._pattern[begin : self._at] for name in _SETS)
        return _others(found) if shorthand else _negated(found)

    def _member(self, char: str) -> Ranges:
        if char != "\\":
            return [(ord(char), ord(char))]
        if self._pattern[self._at : self._at + 1] == "b":
            self._at += 1
            return [(0x08, 0x08)]
        return self._escaped()


def _negated(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """All other code points."""
    found: Ranges = []
    at = 0
    for low, high in sorted(ranges):
        if low > at:
            found.append((at, low - 1))
        at = max(at, high + 1)
    return [*found, (at, _LAST)] if at <= _LAST else found


def _others(ranges: Ranges) -> Ranges:
    """All other ASCII. Beyond ASCII, regular expressions disagree on what a word, a digit or a space is."""
    return _negated([*ranges, (0x80, _LAST)])


def _class(ranges: Ranges) -> str:
    """A class of those of them that a JSON string has unescaped. Raises UnsupportedPattern if there are none."""
    safe = _negated([*_negated(ranges), *_UNSAFE])
    if not safe:
        raise UnsupportedPattern("a character that a JSON string has to escape")
    return f"[{''.join(_shown(low) + (f'-{_shown(high)}' if high > low else '') for low, high in safe)}]"


def _shown(point: int) -> str:
    """A code point as llama.cpp's grammars have it."""
    if point < 0x100:
        return f"\\x{point:02X}"
    return f"\\u{point:04X}" if point < 0x10000 else f"\\U{point:08X}"
