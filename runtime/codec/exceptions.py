"""Exceptions: how they are encoded and decoded. Tracebacks, contexts and what the runtime adds are not stored."""

from __future__ import annotations

from types import FunctionType, MemberDescriptorType
from typing import Any

from ramify.runtime.codec.attributes import slots_of
from ramify.runtime.codec.coders import Decodes, Encodes
from ramify.runtime.codec.object_parts import ASIDE, TAG
from ramify.runtime.codec.type_names import ref_of
from ramify.runtime.errors import NotSerialisable

SET_BY_RUNTIME = ("__notes__", "__ramify_step__")
"""Attributes that the runtime sets on errors. The notes are kept aside, with those that the user's code added."""


def encode_error(encoder: Encodes, value: BaseException, where: str) -> Any:
    encoder.unsure = True
    args = value.__reduce__()[1] if isinstance(value, OSError) else value.args  # OSError.args has no file names
    state = {name: v for name, v in vars(value).items() if name not in SET_BY_RUNTIME}
    slots = _slots_of_error(value)
    if isinstance(value, AttributeError) and "obj" in slots and not encoder.can_store(slots["obj"], where):
        del slots["obj"]  # it may be of any type
    parts = [args, state, slots, *([] if value.__cause__ is None else [value.__cause__])]
    kept = {TAG: "error", "t": ref_of(type(value), where), "v": [encoder.part(one, where) for one in parts]}
    return kept | _aside(encoder, value, where)


def encode_validation_error(encoder: Encodes, value: Any, where: str) -> Any:
    """Encode pydantic's `ValidationError`."""
    encoder.unsure = True
    title, errors, mode, hide = value.__reduce__()[1]
    lines = [{**line, "type": _pydantic_error_type(line["type"])} for line in errors]
    parts = [title, lines, mode, hide, *([] if value.__cause__ is None else [value.__cause__])]
    return {TAG: "validation", "v": [encoder.part(one, where) for one in parts]} | _aside(encoder, value, where)


def _aside(encoder: Encodes, value: BaseException, where: str) -> dict[str, Any]:
    """Return the notes, and whether the context is hidden if the cause does not decide it (`raise … from None`)."""
    aside: dict[str, Any] = {}
    if (notes := getattr(value, "__notes__", None)) is not None:
        aside["notes"] = encoder.part(notes, where)
    if value.__suppress_context__ != (value.__cause__ is not None):
        aside["suppress"] = value.__suppress_context__
    return {ASIDE: aside} if aside else {}


def _slots_of_error(error: BaseException) -> dict[str, Any]:
    """Return the state that is not in `__dict__`: `__slots__`, and attributes of built-in exception classes, unless
    these are set from the arguments."""
    found = slots_of(error)
    classes = (cls for cls in type(error).__mro__ if cls not in (OSError, BaseExceptionGroup))  # theirs are in args
    own = (vars(cls).items() for cls in classes if cls.__module__ == "builtins")
    names = {name for each in own for name, d in each if isinstance(d, MemberDescriptorType)}
    for name in names:
        value = None if name.startswith("__") else getattr(error, name, None)
        if value is not None and not any(value is one for one in error.args):
            found[name] = value
    return dict(sorted(found.items()))


def _pydantic_error_type(told: Any) -> Any:
    """Return the type of a pydantic error: pydantic's own name, or the parts of a validator's custom error."""
    return told if isinstance(told, str) else (told.type, told.message_template, told.context)


def decode_error(decoder: Decodes, cls: Any, body: Any, value: Any) -> Any:
    if not isinstance(cls, type) or not issubclass(cls, BaseException):
        raise NotSerialisable(f"a stored value names {cls!r} as an error, but it is not one now")
    args, state, *more = [decoder.decode(one) for one in body]  # earlier versions stored only these two
    # without the user's __init__, which may take other arguments than `args`
    base: Any = next(kind for kind in cls.__mro__ if kind.__module__ == "builtins")
    error = base.__new__(cls, *args)
    base.__init__(error, *args)
    own: Any = cls.__init__
    if not isinstance(own, FunctionType) and own is not base.__init__:
        own(error, *args)
    vars(error).update(state)
    for name, one in (more[0] if more else {}).items():
        setattr(error, name, one)
    if more[1:]:
        error.__cause__ = more[1]
    return _given_aside(decoder, error, value)


def decode_validation_error(decoder: Decodes, body: Any, value: Any) -> Any:
    from pydantic_core import PydanticCustomError, ValidationError

    title, errors, mode, hide, *cause = [decoder.decode(one) for one in body]
    lines: list[Any] = [
        line if isinstance(line["type"], str) else {**line, "type": PydanticCustomError(*line["type"])}
        for line in errors
    ]
    error = ValidationError.from_exception_data(title, lines, mode, hide)
    error.args = ()
    if cause:
        error.__cause__ = cause[0]
    return _given_aside(decoder, error, value)


def _given_aside(decoder: Decodes, error: BaseException, value: Any) -> BaseException:
    aside = value.get(ASIDE, {})
    if "notes" in aside:
        error.__notes__ = decoder.decode(aside["notes"])
    if "suppress" in aside:
        error.__suppress_context__ = bool(aside["suppress"])
    return error
