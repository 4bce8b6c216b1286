"""Errors of steps and model calls as the journal keeps them, so that a resume can raise them again.

Errors of HTTP clients hold their request and response, which are not plain data. Of a request, the method and the
address without user, password and query are kept, no headers and no body; of a response, the status, the reason, the
content type and the first bytes of a body that was read. Any other attribute that cannot be stored is left out, so
code that reads it from an error that was raised again gets an `AttributeError`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ramify.runtime.codec import codec
from ramify.runtime.codec.exceptions import SET_BY_RUNTIME
from ramify.runtime.errors import NotSerialisable

RAISED = "raised"
"""The attribute of a failed row that holds its encoded error, if that can be encoded."""
_HTTP = "raised_http"
"""The attribute of a failed row that holds the requests and responses of its error."""

_MOST_BODY = 20_000  # bytes of a response


def encoded(error: BaseException) -> dict[str, str]:
    """Return the row attributes that keep an error; none if its class or its arguments cannot be stored."""
    try:
        return {RAISED: codec.encode(error)}
    except NotSerialisable:
        pass
    try:
        plain, messages = _plain(error)
        return {RAISED: codec.encode(plain), **({_HTTP: codec.encode(messages)} if messages else {})}
    except Exception:  # noqa: BLE001  a class of the user's that cannot be made or stored
        return {}


def decoded(attrs: Mapping[str, str]) -> Exception | None:
    """Return the error that row attributes keep; None if there is none, or if its class has changed since."""
    if RAISED not in attrs:
        return None
    try:
        error = codec.decode(attrs[RAISED])
        for name, said in codec.decode(attrs.get(_HTTP, "{}")).items():
            setattr(error, name, _made(said))
    except Exception:  # noqa: BLE001  whatever a changed class raises
        return None
    return error if isinstance(error, Exception) else None


def _plain(error: BaseException) -> tuple[BaseException, dict[str, Any]]:
    """Return a copy of an error without what cannot be stored, and the HTTP messages among that, by attribute."""
    cls = type(error)
    if isinstance(error, BaseExceptionGroup):
        plain: BaseException = error.derive([_plain(one)[0] for one in error.exceptions])
    else:  # without the user's __init__, which may take other arguments than `args`
        args = error.__reduce__()[1] if isinstance(error, OSError) else error.args
        base = next(kind for kind in cls.__mro__ if kind.__module__ == "builtins")
        plain = base.__new__(cls, *args)
        base.__init__(plain, *args)  # type: ignore[misc]
    messages = dict[str, Any]()
    for name, value in vars(error).items():
        if (said := _http_message(value)) is not None:
            messages[name] = said
        elif name not in SET_BY_RUNTIME and _is_storable(value):
            vars(plain)[name] = value
    plain.__cause__ = None if error.__cause__ is None else _plain(error.__cause__)[0]
    return plain, messages


def _is_storable(value: object) -> bool:
    try:
        codec.encode(value)
    except NotSerialisable:
        return False
    return True


def _http_message(value: object) -> dict[str, Any] | None:
    import httpx

    if isinstance(value, httpx.Request):
        return {"method": value.method, "url": str(value.url.copy_with(userinfo=b"", query=None))}
    if not isinstance(value, httpx.Response):
        return None
    body = value.content[:_MOST_BODY] if value.is_closed and hasattr(value, "_content") else b""
    return {
        "status": value.status_code,
        "reason": value.reason_phrase,
        "type": value.headers.get("content-type", ""),
        "body": body,
        "request": _http_message(value.request) if getattr(value, "_request", None) is not None else None,
    }


def _made(said: Mapping[str, Any]) -> object:
    import httpx

    if "method" in said:
        return httpx.Request(said["method"], said["url"])
    return httpx.Response(
        said["status"],
        headers={"content-type": said["type"]} if said["type"] else {},
        content=said["body"],
        request=None if said["request"] is None else httpx.Request(said["request"]["method"], said["request"]["url"]),
        extensions={"reason_phrase": said["reason"].encode()},
    )
