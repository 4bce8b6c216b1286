"""Objects of pydantic models, and pydantic's addresses: how they are encoded and decoded. pydantic is not imported
before there is one.

A model is stored as its fields and the rest of its state (`model`), without calling its code. If a field is of a type
that only pydantic can write, the model is stored as its own JSON, and validated when it is decoded (`pydantic`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ramify.runtime.codec.attributes import decode_cached, encode_attributes
from ramify.runtime.codec.coders import Decodes, Encodes, not_any_more
from ramify.runtime.codec.dataclass_objects import fields_of_now
from ramify.runtime.codec.object_parts import ASIDE, TAG, same
from ramify.runtime.errors import NotSerialisable

_URLS = ("_BaseUrl", "_BaseMultiHostUrl", "Url", "MultiHostUrl")


def is_model(value: Any) -> bool:
    return hasattr(type(value), "__pydantic_validator__") and hasattr(value, "model_dump")


def encode_model(encoder: Encodes, value: Any, where: str) -> Any:
    cls: Any = type(value)
    ref = encoder.ref(cls, where)
    try:
        return _encode_state(encoder, cls, value, where, ref)
    except NotSerialisable as refused:
        if (by_itself := _own_json(cls, value)) is None:
            raise
        del refused
    encoder.by_text = True
    kept = {TAG: "pydantic", "t": ref, "v": by_itself}
    if value.model_fields_set != set(cls.model_fields):
        kept["set"] = sorted(value.model_fields_set)
    return kept


def _encode_state(encoder: Encodes, cls: Any, value: Any, where: str, ref: Any) -> Any:
    if (names := encoder.field_names.get(cls)) is None:
        names = encoder.field_names[cls] = frozenset(cls.model_fields)
    state = dict(value.__dict__)
    fields = {
        name: one if encoder.is_plain(one) else encoder.part(one, f"{where}.{name}")
        for name, one in state.items()
        if name in names
    }
    kept: dict[str, Any] = {TAG: "model", "t": ref, "v": fields}
    if len(fields) < len(names):
        kept["unset"] = sorted(names - state.keys())
    if len(fields) < len(state):
        more = {name: one for name, one in state.items() if name not in names}
        kept |= encode_attributes(encoder, value, more, where)
    given = value.__pydantic_fields_set__
    if given != names:
        kept["set"] = sorted(given)
    elif given != fields.keys():  # a field was set, and deleted
        kept.setdefault(ASIDE, {})["set"] = sorted(given)
    if value.__pydantic_extra__ is not None:
        kept["extra"] = encoder.part(dict(value.__pydantic_extra__), where)
    private = getattr(value, "__pydantic_private__", None)
    if private is not None and not cls.__pydantic_root_model__:
        told = {name: one for name, one in private.items() if not _is_undefined(one)}
        kept["private"] = encoder.part(told, where)
        if deleted := _private_defaults(cls) - told.keys():
            kept.setdefault(ASIDE, {})["deleted"] = sorted(deleted)
    return kept


def _own_json(cls: Any, value: Any) -> Any:
    """Return a model's own JSON; None if validating it does not give back an equal model."""
    try:
        body = value.model_dump(mode="json", by_alias=True)
        back = cls.model_validate(body)
        json.dumps(body)
    except Exception:  # noqa: BLE001  a validator or a serialiser of the user's own
        return None
    if type(back) is not type(value) or not same(back.__dict__, value.__dict__):
        return None
    hidden = ("__pydantic_extra__", "__pydantic_private__")
    if not all(same(getattr(back, name, None) or {}, getattr(value, name, None) or {}) for name in hidden):
        return None
    return body


def _is_undefined(value: object) -> bool:
    return type(value).__name__ == "PydanticUndefinedType"


def _private_defaults(cls: Any) -> set[str]:
    """Return the private attributes of a model class that every new model has."""
    private = cls.__private_attributes__.items()
    return {name for name, one in private if one.default_factory is not None or not _is_undefined(one.default)}


def decode_model(decoder: Decodes, cls: Any, body: Any, value: Any) -> Any:
    from pydantic_core import PydanticUndefined

    if (parts := decoder.models.get(cls) if isinstance(cls, type) else None) is None:
        parts = decoder.models[cls] = _model_parts(cls)
    fields, private = parts
    made = cls.__new__(cls)
    state = fields_of_now(decoder, cls, body, value, fields, _default)
    aside = value.get(ASIDE, {})
    if "more" in value:
        state |= {name: decoder.decode(one) for name, one in value["more"].items()}
    if aside:
        state.update(decode_cached(decoder, cls, value))
    object.__setattr__(made, "__dict__", state)
    object.__setattr__(
        made, "__pydantic_fields_set__", set(value["set"] if "set" in value else aside.get("set", body))
    )
    if cls.__pydantic_root_model__:  # root models have no extra or private state
        return made
    object.__setattr__(made, "__pydantic_extra__", decoder.decode(value.get("extra")))
    told: dict[str, Any] | None = decoder.decode(value.get("private"))
    if private:
        told, known = told or {}, {*(told or {}), *aside.get("deleted", ())}
        for name, attribute in private.items():
            if name not in known and (one := _private_default(attribute, state | told)) is not PydanticUndefined:
                told[name] = one
    object.__setattr__(made, "__pydantic_private__", told)
    return made


def decode_own_json(_decoder: Decodes, cls: Any, body: Any, value: Any) -> Any:
    _model_parts(cls)
    made = cls.model_validate(body)
    if "set" in value:
        object.__setattr__(made, "__pydantic_fields_set__", set(value["set"]))
    return made


def _model_parts(cls: Any) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Return the fields and the private attributes of a model class."""
    if not isinstance(cls, type) or not hasattr(cls, "__pydantic_validator__") or not hasattr(cls, "model_validate"):
        raise not_any_more(cls, "pydantic")
    found: Any = cls
    return found.model_fields, found.__private_attributes__


def _default(field: Any) -> Any:
    if field.is_required():
        raise LookupError
    return field.get_default(call_default_factory=True)


def _private_default(attribute: Any, validated: Mapping[str, Any]) -> Any:
    """Return the value that a new model gives to its private attribute."""
    if attribute.default_factory is None:
        return attribute.get_default()
    takes_data = getattr(attribute, "default_factory_takes_validated_data", False)  # older pydantics lack it
    return attribute.default_factory(validated) if takes_data else attribute.default_factory()


def is_url(cls: type) -> bool:
    return any(
        kind.__module__ in ("pydantic.networks", "pydantic_core._pydantic_core") and kind.__name__ in _URLS
        for kind in cls.__mro__
    )


def encode_url(encoder: Encodes, value: Any, where: str) -> Any:
    encoder.unsure = True
    return {TAG: "url", "t": encoder.ref(type(value), where), "v": str(value)}


def decode_url(_decoder: Decodes, cls: Any, body: str, _: Any) -> Any:
    if not isinstance(cls, type) or not is_url(cls):
        raise not_any_more(cls, "url")
    made: Any = cls
    return made(body)
