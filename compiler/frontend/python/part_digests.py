"""The digests of parts of the code: one hash over canonical texts, in the order in which the parts are met.

A digest is the same under every version of Python, wherever a part stands, and whatever a function of the project is
called. In plans of format 5 and earlier it covers `ast.dump` of the parts, without an order.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain

from ramify.compiler.frontend.python.canonical_text import (
    Piece,
    body_of,
    is_plain_function,
    pieces_of,
)
from ramify.compiler.frontend.python.code_parts import RETURNED, CodeIndex, Key
from ramify.compiler.frontend.python.names import reads_function_names
from ramify.compiler.frontend.python.sources import Function, Sources


@dataclass(frozen=True, slots=True)
class Meaning:
    """A free name in the text of a part: the parts that it may mean. `only`: the one part that it certainly means."""

    name: str
    keys: tuple[Key, ...]
    only: Key | None
    returned: tuple[Key, ...] = ()  # methods of what a step of this name returns


def _with_meanings(index: CodeIndex, key: Key, pieces: Iterable[Piece]) -> tuple[bytes | Meaning, ...]:
    """Return the pieces of a part's text. A name that means no part is text, and adjacent texts are joined."""
    meanings: dict[tuple[str, tuple[str, ...], str | None], dict[Key, None]] = {}
    for use, to in index.uses(key):
        meanings.setdefault((use.name, use.chain, use.module), {})[to] = None
    found: list[bytes | Meaning] = []
    texts: list[str] = []
    for piece in pieces:
        keys = () if isinstance(piece, str) else tuple(meanings.get((piece.name, piece.chain, piece.module), ()))
        if isinstance(piece, str) or not keys:
            texts.append(piece if isinstance(piece, str) else f"<{piece} >")
            continue
        known = len(keys) == 1 and not piece.chain and not piece.hidden and piece.module is None
        returned = tuple(meanings.get((piece.name, piece.chain, RETURNED), ()))
        found += [
            "".join(texts).encode("utf-8", "surrogatepass"),
            Meaning(str(piece), keys, keys[0] if known else None, returned),
        ]
        texts = []
    return (*found, "".join(texts).encode("utf-8", "surrogatepass"))


def digest_of(functions: Iterable[Function], sources: Sources, steps: Iterable[str]) -> str:
    """Return the digest of functions with all that they use. Record that a change there may affect these steps."""
    index = sources.analysis(CodeIndex)
    starts = [index.part(function) for function in functions]
    for key in index.closure(starts, into_steps=True):
        index.used_by.setdefault(key, set()).update(steps)
    return digest_of_parts(index, starts, into_steps=True)


def digest_of_parts(index: CodeIndex, starts: Iterable[Key], *, into_steps: bool) -> str:
    """Return the digest of these parts and all that they use; see `CodeIndex.closure`."""
    starts = list(starts)
    if index.is_ordered:
        return writer_for(index, starts, into_steps=into_steps).digest_of(starts)
    keys = index.closure(starts, into_steps=into_steps)
    texts = sorted(text for key in keys for text in index.parts[key].texts)
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()


def writer_for(index: CodeIndex, starts: Iterable[Key], *, into_steps: bool) -> DigestWriter:
    """Return a writer for the digest of these parts and all that they use."""
    nodes = (node for key in index.closure(starts, into_steps=into_steps) for node in index.parts[key].nodes)
    return DigestWriter(index, into_steps=into_steps, names_matter=any(map(reads_function_names, nodes)))


class DigestWriter:
    """Writes parts into one digest, each once, under the number by which other parts refer to it."""

    def __init__(self, index: CodeIndex, *, into_steps: bool, names_matter: bool) -> None:
        self._index, self._into_steps, self._names_matter = index, into_steps, names_matter
        self._numbers: dict[Key, int] = {}
        self._todo = deque[Key]()
        self._hash = hashlib.sha256()

    def digest_of(self, starts: Iterable[Key]) -> str:
        for key in starts:
            self._number(key)
        return self.digest()

    def digest(self) -> str:
        """Return the digest of all that was written so far, with what it uses."""
        while self._todo:
            key = self._todo.popleft()
            self._hash.update(f"\n#{self._numbers[key]} ".encode())
            self._write(self._texts_of(key))
            self.write_implied(key)
        return self._hash.hexdigest()

    def _texts_of(self, key: Key) -> tuple[bytes | Meaning, ...]:
        """Return a part's text. Kept in the index, since the writers of several steps need it."""
        known = self._index.texts_for_digests.get((key, self._is_anonymous(key)))
        if known is None:
            part = self._index.parts[key]
            write = body_of if self._is_anonymous(key) else pieces_of
            pieces = chain.from_iterable(map(write, part.nodes)) if part.nodes else part.texts
            known = self._index.texts_for_digests[key, self._is_anonymous(key)] = _with_meanings(
                self._index, key, pieces
            )
        return known

    def write_implied(self, key: Key) -> None:
        """Add references to what the part uses without naming it."""
        for to in self._index.implied(key):
            self._hash.update(f" +{to[1]} {self._reference(to)}".encode("utf-8", "surrogatepass"))

    def write(self, key: Key, pieces: Iterable[Piece]) -> None:
        """Add text that belongs to this part."""
        self._write(_with_meanings(self._index, key, pieces))

    def _write(self, texts: Iterable[bytes | Meaning]) -> None:
        for each in texts:
            if isinstance(each, bytes):
                self._hash.update(each)
            elif each.only is not None and (self._is_step(each.only) or self._is_anonymous(each.only)):
                self._hash.update(self._reference(each.only).encode("utf-8", "surrogatepass"))
            else:
                references = ",".join(f"{key[1]} {self._reference(key)}" for key in each.keys)
                self._hash.update(f"<{each.name} {references}>".encode("utf-8", "surrogatepass"))
            if isinstance(each, Meaning) and not self._into_steps:
                for key in each.returned:
                    method = key[1].rpartition(".")[2]
                    self._hash.update(f" ->{method} {self._reference(key)}".encode("utf-8", "surrogatepass"))

    def _reference(self, key: Key) -> str:
        return f"<step {self._index.steps[key]}>" if self._is_step(key) else f"<#{self._number(key)}>"

    def _number(self, key: Key) -> int:
        if key not in self._numbers:
            self._numbers[key] = len(self._numbers)
            self._todo.append(key)
        return self._numbers[key]

    def _is_step(self, key: Key) -> bool:
        return key in self._index.steps and not self._into_steps

    def _is_anonymous(self, key: Key) -> bool:
        """Return whether a function may have any name, because no code reads the names of functions."""
        nodes = self._index.parts[key].nodes
        return len(nodes) == 1 and is_plain_function(nodes[0]) and not self._names_matter
