"""A value that was encoded once: its text, its digest, and copies of it, whatever becomes of the value."""

from __future__ import annotations

from typing import Any

from ramify.runtime.codec.canonical import canonical
from ramify.runtime.codec.collector_pause import collector_paused
from ramify.runtime.codec.decoder import Decoder
from ramify.runtime.codec.encoder import Encoder
from ramify.runtime.codec.json_parts import parts_of, written, written_in_parts
from ramify.runtime.codec.long_texts import PIECE, digest_text, has_surrogates, parse, sha256_of, sha256_of_ascii
from ramify.runtime.codec.object_parts import TAG, find_cycle
from ramify.runtime.errors import NotSerialisable

_DIVIDED = 1 << 24  # the size from which a text is made in parts, which takes a little more time
_CONTAINER = 256  # about the bytes in memory of a container with few items


def decode(text: str) -> Any:
    """Return the value that was given to `encode`.

    Raises `NotSerialisable` if a type has changed incompatibly, or lies in a module that the program does not import.
    """
    with collector_paused():
        found = parse(text)
        return Decoder().decode(found) if f'"{TAG}"' in text else found  # JSON's own values are what they are


class Encoded:
    """A value as it was when it was encoded. `tagged`: it holds more than JSON's own types.

    It is kept as the encoder returned it, which shares long strings and bytes with the value, or as its text.

    what: names the value in errors. unicode: a long text keeps its characters if that is shorter; otherwise it is in
    ASCII.

    Raises `NotSerialisable`, which names the part of the value that cannot be stored; errors that the value's own
    code raises are wrapped in it.
    """

    __slots__ = ("_digest", "_encoder", "_text", "_tree", "_unicode", "_what", "tagged")

    def __init__(self, value: object, what: str = "value", *, unicode: bool = False) -> None:
        self._what, self._unicode = what, unicode
        self._text: str | None = None
        self._digest: str | None = None
        try:
            self._encoder: Encoder | None = Encoder()
            with collector_paused():
                self._tree = self._encoder.encode(value, what)
            self.tagged = self._encoder.tagged
            if self._encoder.unsure:
                self._refuse_unless_same(value)
        except NotSerialisable:
            raise
        except Exception as error:
            raise _refusal(error, value, what) from error

    @classmethod
    def of_text(cls, text: str) -> Encoded:
        """Return the value of a text of `encode`."""
        made = cls.__new__(cls)
        made._what, made._unicode, made._text, made._digest, made.tagged = "value", False, text, None, True
        made._tree = made._encoder = None
        return made

    def text(self) -> str:
        """Return the value as JSON."""
        if self._text is None:
            assert self._encoder is not None
            try:
                self._text = _text_of(self._encoder, self._tree, unicode=self._unicode)
            except NotSerialisable:
                raise
            except Exception as error:
                raise _refusal(error, self._tree, self._what) from error
        return self._text

    def digest(self) -> str:
        """Return the sha256 (hex) of the value, independent of the order of dict entries."""
        if self._digest is None:
            try:
                self._digest = self._digest_of_tree() or digest_text(self.text())
            except NotSerialisable:
                raise
            except Exception as error:
                raise _refusal(error, self._tree, self._what) from error
        return self._digest

    def value(self) -> Any:
        """Return the value as `decode` returns it: each time another copy."""
        if self._encoder is None or self._encoder.unsure or self._encoder.by_text:
            return decode(self.text())
        with collector_paused():
            return Decoder().decode(self._tree)

    def take(self) -> Any:
        """Return the value as `decode` returns it, for the last time if that needs no copy."""
        if self._encoder is None or self.tagged:
            return self.value()
        self.text()
        self.digest()
        found, self._tree, self._encoder = self._tree, None, None
        return found

    def compact(self) -> Encoded:
        """Keep the value in its shorter form: many small containers take more memory than their text."""
        known = self._encoder
        if known is not None and known.size > PIECE and known.size < known.containers * _CONTAINER:
            self.text()
            self.digest()
            self._tree = self._encoder = None
        return self

    def _digest_of_tree(self) -> str | None:
        """Return the digest; None if it must be taken of the text."""
        known, tree = self._encoder, self._tree
        if known is None or known.by_text:
            return None
        if known.in_order and self._text is not None and self._text.isascii():
            return sha256_of([self._text])
        if known.uncanonical:
            tree = canonical(tree)
        if known.size_in_ascii <= _DIVIDED:
            return sha256_of_ascii([written(tree, in_order=True)])
        return sha256_of_ascii(parts_of(tree, in_order=not known.in_order))

    def _refuse_unless_same(self, value: object) -> None:
        """Decode and encode again a value whose class may change what is decoded; refuse it if the text differs."""
        text, what = self.text(), self._what
        known = self._encoder
        if known is not None and known.is_shorter_in_unicode:  # which depends on parts that are not kept, too
            text = _text_of(known, self._tree, unicode=False)
        try:
            encoder = Encoder()
            again = _text_of(encoder, encoder.encode(decode(self.text()), what), unicode=False)
        except Exception as error:
            raise NotSerialisable(
                f"{what} cannot be kept: reading it back raised {type(error).__name__}: {error}. Pass plain values, "
                "dataclasses or pydantic models"
            ) from error
        if again != text:
            raise NotSerialisable(
                f"{what} cannot be kept: a decoded {type(value).__qualname__} differs from the original. Pass plain "
                "values, dataclasses or pydantic models"
            )


def _text_of(encoder: Encoder, tree: Any, *, unicode: bool) -> str:
    write = written_in_parts if encoder.size_in_ascii > _DIVIDED and not encoder.by_text else written
    if not unicode or not encoder.is_shorter_in_unicode:
        return write(tree)
    text = write(tree, unicode=True)
    return write(tree) if has_surrogates(text) else text


def _refusal(error: Exception, value: object, what: str) -> NotSerialisable:
    """Return the error for a value whose encoding raised `error`."""
    if isinstance(error, RecursionError):
        where = find_cycle(value, what)
        why = f"{where} contains itself" if where else "it is nested too deeply"
        return NotSerialisable(
            f"{what} cannot be kept: {why}. Pass a flat value, in which names stand for references"
        )
    if isinstance(error, ValueError):  # an integer of thousands of digits
        return NotSerialisable(f"{what} cannot be kept: {error}")
    # a property, a hash or an iterator of the value's own
    return NotSerialisable(f"{what} cannot be kept: reading it raised {type(error).__name__}: {error}")
