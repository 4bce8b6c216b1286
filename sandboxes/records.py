"""`dataclass` and what goes with it, for the modules of the helper processes. Stdlib only.

The standard library compiles code for each dataclass and imports `inspect`. With the 74 classes of those modules,
that was half of the time in which a helper process starts. Type checkers see the standard library's functions here.

`dataclasses.fields`, `replace` and `asdict` work on these classes, too. Not supported: inheritance of fields,
`__post_init__`, `inspect.signature`, and any argument of `dataclass` and `field` that is not named below.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dataclasses import asdict, astuple, dataclass, field, fields, replace
else:
    _ABSENT = object()
    _RECORD_FIELDS = "__record_fields__"

    class Field:
        """The name, annotation and default of a field."""

        __slots__ = ("default", "default_factory", "name", "repr", "type")

        def __init__(self, default=_ABSENT, default_factory=_ABSENT, repr=True):
            self.name = self.type = ""
            self.default = default
            self.default_factory = default_factory
            self.repr = repr

        def value(self):
            """The default; `_ABSENT` if there is none."""
            return self.default if self.default_factory is _ABSENT else self.default_factory()

    def field(*, default=_ABSENT, default_factory=_ABSENT, repr=True):
        return Field(default, default_factory, repr)

    def dataclass(cls=None, /, *, frozen=False, slots=False):
        """Add the methods of `dataclasses.dataclass`, without compiling any."""
        return (lambda decorated: _record(decorated, frozen, slots)) if cls is None else _record(cls, frozen, slots)

    def fields(record):
        """The fields of a record or of its class, in order."""
        return getattr(record, _RECORD_FIELDS)

    def replace(record, /, **changes):
        """A copy with some fields changed."""
        return type(record)(**{each.name: getattr(record, each.name) for each in fields(record)} | changes)

    def asdict(record):
        """The fields by name; records in them, also in lists, tuples and dicts, are dicts, too."""
        return {each.name: _plain(getattr(record, each.name), asdict) for each in fields(record)}

    def astuple(record):
        """The fields' values, as `asdict` does for names and values."""
        return tuple(_plain(getattr(record, each.name), astuple) for each in fields(record))

    def _plain(value, convert):
        if hasattr(type(value), _RECORD_FIELDS):
            return convert(value)
        if isinstance(value, list | tuple):
            return type(value)([_plain(each, convert) for each in value])
        if isinstance(value, dict):
            return {_plain(key, convert): _plain(each, convert) for key, each in value.items()}
        return value

    def _record(cls, frozen, slots):
        found = tuple(_fields(cls))
        names = tuple(each.name for each in found)
        methods = {"__init__": _initializer(cls.__qualname__, found), "__repr__": _repr, "__eq__": _equal,
                   "__reduce__": _reduce, "__hash__": _hash if frozen else None, "__match_args__": names}  # fmt: skip
        methods = {name: method for name, method in methods.items() if name not in cls.__dict__ or name == "__hash__"}
        methods |= {_RECORD_FIELDS: found, "__dataclass_fields__": _StandardFields()}
        if frozen:
            methods |= {"__setattr__": _refuse_change, "__delattr__": _refuse_change}
        if not slots:
            for name, method in methods.items():
                setattr(cls, name, method)
            for each in found:
                if each.default is not _ABSENT:
                    setattr(cls, each.name, each.default)
                elif each.name in cls.__dict__:
                    delattr(cls, each.name)
            return cls
        dropped = {*names, "__dict__", "__weakref__"}
        body = {name: value for name, value in cls.__dict__.items() if name not in dropped}
        made = type(cls)(cls.__name__, cls.__bases__, body | methods | {"__slots__": names})
        made.__qualname__ = cls.__qualname__
        return made

    def _fields(cls):
        for name, annotation in cls.__annotations__.items():
            given = cls.__dict__.get(name, _ABSENT)
            found = given if isinstance(given, Field) else Field(given)
            found.name, found.type = name, annotation
            yield found

    def _initializer(class_name, found):
        count = len(found)
        names = [each.name for each in found]
        put = object.__setattr__

        def __init__(self, *values, **named):
            if len(values) > count:
                raise TypeError(f"{class_name} takes {count} values ({len(values)} given)")
            for name, value in zip(names, values, strict=False):
                put(self, name, value)
            for each in found[len(values) :]:
                value = named.pop(each.name, _ABSENT)
                if value is _ABSENT and (value := each.value()) is _ABSENT:
                    raise TypeError(f"{class_name} needs a value of {each.name!r}")
                put(self, each.name, value)
            if named:
                raise TypeError(f"{class_name} got an unexpected or a second value of {next(iter(named))!r}")

        return __init__

    def _values(record):
        return tuple([getattr(record, each.name) for each in fields(record)])

    def _repr(self):
        values = ", ".join(f"{each.name}={getattr(self, each.name)!r}" for each in fields(self) if each.repr)
        return f"{type(self).__qualname__}({values})"

    def _equal(self, other):
        return _values(self) == _values(other) if type(other) is type(self) else NotImplemented

    def _hash(self):
        return hash(_values(self))

    def _reduce(self):
        return type(self), _values(self)

    def _refuse_change(self, name, *_):
        from dataclasses import FrozenInstanceError

        raise FrozenInstanceError(f"{type(self).__qualname__} is frozen: {name!r} cannot be changed")

    class _StandardFields:
        """The fields for `dataclasses`' own functions, which is imported when one of them first asks."""

        def __get__(self, record, cls):
            import dataclasses

            specified = []
            for each in getattr(cls, _RECORD_FIELDS):
                if each.default_factory is not _ABSENT:
                    default = dataclasses.field(default_factory=each.default_factory)
                else:
                    default = dataclasses.field(**{} if each.default is _ABSENT else {"default": each.default})
                specified.append((each.name, each.type, default))
            cls.__dataclass_fields__ = dataclasses.make_dataclass(cls.__name__, specified).__dataclass_fields__
            return cls.__dataclass_fields__


__all__ = ["asdict", "astuple", "dataclass", "field", "fields", "replace"]
