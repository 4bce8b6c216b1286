"""Errors of the gateway: `ApiError` in OpenAI's format, and the reasons for which a call is interrupted."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from ramify.serving.policy.types import Refusal
from ramify.serving.protocol import wire
from ramify.serving.protocol.wire import INFEASIBLE_CODE, refusal_from_line

# Messages that llama.cpp sends with status 500 as if they were its own failure, although the request is at fault.
_CLIENTS = re.compile(
    r"Failed to parse (messages|tools): |\w+ input is not supported|"
    r"(?:got exception: )?Unexpected empty grammar stack|Unknown reasoning format"  # of a schema that nothing matches
)
_NAMED = re.compile(
    r"Field '(\w+)'|Expected '(messages|tools)'|(response_format|top_logprobs) |All non-assistant (messages) |"
    r"Failed to parse (messages|tools): |['\"](\w+)['\"] (?:must|is required|elements)|(prompt) contains |"
    r".*key '(prompt)' not found|llama\.cpp does not support '(\w+)'",
    re.IGNORECASE,
)


_OF_A_MESSAGE = ("Expected 'content'", "unsupported content[]")


@dataclass
class ApiError(Exception):
    """One refused or failed call. Statuses from 500 on, and 429, invite a retry; the others do not."""

    status: int
    code: str
    message: str
    param: str | None = None  # the field at fault
    extra: Mapping[str, object] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    lost: bool = False  # the engine failed, not the request: another replica may do it

    def body(self) -> dict[str, object]:
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        said = {"message": self.message, "type": kind, "param": self.param, "code": self.code}
        return {"error": {**said, **self.extra}}


STOPPING = ApiError(503, "stopping", "the gateway is stopping: try again when it is back", lost=False)


def without_address(error: ApiError, shown: str) -> ApiError:
    """The same error for clients that need not know where the engine is."""
    unreachable = error.code == "upstream_unavailable"
    message = "no engine can be reached: try again" if unreachable else error.message.replace(f" at {shown}", "")
    return replace(error, message=message)


def bad_request(param: str, message: str, *, status: int = 400) -> ApiError:
    return ApiError(status, "invalid_request", message, param)


def list_in(name: str, value: object) -> list[object]:
    """The list in a request's field, empty if it is not given. Raises ApiError, which names the field."""
    if value is None:
        return []
    if not isinstance(value, list):
        raise bad_request(name, f"{name}: must be a list")
    return value


def asks_nothing(value: object) -> bool:
    """Does a field with this value ask for nothing, whatever the field is? Clients send null and empty lists where
    they have nothing to send."""
    return value is None or value == []


def text_in(name: str, value: object) -> str:
    """The text in a request's field. Raises ApiError, which names the field."""
    if not isinstance(value, str):
        raise bad_request(name, f"{name}: text is missing where it must be")
    return value


def infeasible(message: str, earliest_feasible_s: float | None) -> ApiError:
    """A deadline that cannot be met. The client must not retry."""
    return ApiError(
        422,
        "deadline_infeasible",
        message,
        "deadline",
        {"earliest_feasible_s": earliest_feasible_s},
        {"x-should-retry": "false"},
    )


def broken_off(said: object) -> ApiError:
    """The error for what an engine sent in the middle of a stream. A scheduler's refusal keeps its own words."""
    message = said.get("message") if isinstance(said, Mapping) else None
    if refusal_from_line(message) is not None:
        return ApiError(400, INFEASIBLE_CODE, str(message))
    if isinstance(message, str) and is_request_fault(message):
        return ApiError(400, "upstream_refused", message, field_named_in(message))
    return ApiError(502, "upstream_failed", f"the engine ended its answer early: {said}", lost=True)


def error_detail(body: bytes) -> Mapping[str, object]:
    """What an engine says of a request that failed: OpenAI's `error` object, FastAPI's `detail`, or plain text."""
    try:
        said = wire.parse_object(body)
    except wire.Malformed:
        return {"message": body[:200].decode("utf-8", "replace")}
    if isinstance(error := said.get("error"), Mapping):
        return error
    detail = said.get("detail", said.get("message", error))
    if isinstance(detail, str):
        return {"message": detail}
    if isinstance(detail, list):
        parts = [one for one in detail if isinstance(one, Mapping)]
        return {"message": "; ".join(_detail_part(one) for one in parts)}
    return {"message": body[:200].decode("utf-8", "replace")}


def _detail_part(part: Mapping[str, object]) -> str:
    """One entry of FastAPI's list: where, and what."""
    where = part.get("loc")
    place = ".".join(str(name) for name in where if name != "body") if isinstance(where, list) else ""
    return f"{place}: {part.get('msg')}" if place else str(part.get("msg"))


def is_too_long(detail: Mapping[str, object]) -> bool:
    """Is it a refusal of a prompt beyond the model's context? OpenAI has a code of its own for that."""
    if detail.get("type") == "exceed_context_size_error" or detail.get("code") == "context_length_exceeded":
        return True
    return "maximum context length" in str(detail.get("message", ""))


def is_request_fault(message: str) -> bool:
    """True if the request is at fault although the engine answered 500: another try would fail in the same way."""
    return _CLIENTS.match(message) is not None


def field_named_in(message: str) -> str | None:
    """The field at fault, where an engine names it only in its message."""
    if (named := _NAMED.match(message)) is not None:
        return next(name for name in named.groups() if name is not None).lower()
    of_a_message = message.startswith(_OF_A_MESSAGE)
    of_a_message |= "input is not supported" in message and is_request_fault(message)
    return "messages" if of_a_message else None


def as_api_error(error: ApiError | wire.Malformed) -> ApiError:
    """What an attempt at an engine ended in, as an ApiError."""
    if isinstance(error, ApiError):
        return error
    return ApiError(502, "upstream_failed", f"the engine's answer cannot be read: {error}", lost=True)


def no_descriptor(purpose: str) -> ApiError:
    """The error for what this process has no file descriptor for. The engine is well, so other replicas need not be
    asked."""
    said = f"the gateway has as many open files as it may have (ulimit -n) and cannot {purpose}: try again"
    return ApiError(503, "too_many_connections", said, headers={"retry-after": "1"})


class Refused(Exception):
    """The policy will not start this call, or will not let it continue."""

    def __init__(self, refusal: Refusal) -> None:
        self.refusal = refusal
        super().__init__(refusal.reason)


class Preempted(Exception):
    """The policy gives this call's slot to another call. This one waits again."""


class Aborted(Exception):
    """The workflow that made this call does not need it any more."""
