"""Irreversible steps whose results the journal cannot keep, and workflows that call them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from threading import Lock
from typing import Any, Generic, Protocol, TypedDict, TypeVar
from zoneinfo import ZoneInfo

from pydantic import BaseModel, SecretStr

from ramify import DidNotHappen, Happened, step, workflow

T = TypeVar("T")
PAID = Path("/nonexistent")
"""Where each payment is a line."""
FOUND: list[Any] = []
"""What the receiver says that it did."""


class Response:
    """No data: as an HTTP client's."""


class Receipt(BaseModel):
    number: int = 0
    note: str = ""


BERLIN = datetime(2026, 7, 1, tzinfo=ZoneInfo("Europe/Berlin"))


class Page(BaseModel, Generic[T]):
    items: list[T]


class Token(BaseModel):
    secret: SecretStr


@dataclass
class Held:
    lock: Any = field(default_factory=Lock)


@dataclass
class Locked:
    response: Response


class Told(TypedDict):
    response: Response


class Anything(Protocol):
    def read(self) -> bytes: ...


class Base:
    pass


@dataclass
class Known(Base):
    x: int


def paid(what: str) -> None:
    with PAID.open("a") as file:
        file.write(f"{what}\n")


def ask(key: str, **arguments: Any) -> Happened | DidNotHappen:
    return Happened(FOUND[0]) if FOUND else DidNotHappen()


@step(effect="irreversible")
async def pay_page(i: int) -> Page[Receipt]:
    paid(f"page {i}")
    return Page[Receipt](items=[Receipt(number=i)])


@step(effect="irreversible", retry=3)
async def pay_surprise(i: int):  # type: ignore[no-untyped-def]  # nothing tells what comes of it
    paid(f"surprise {i}")
    return Held()


@step(effect="irreversible", reconcile=ask)
async def pay_asked(i: int) -> Any:
    paid(f"asked {i}")
    return Response()


@workflow
async def pays_a_page() -> int:
    page = await pay_page(1)
    return page.items[0].number


@workflow
async def is_surprised() -> list[Any]:
    return [await pay_surprise(1), await pay_page(2)]


@workflow
async def catches() -> Any:
    try:
        return await pay_surprise(1)
    except Exception:  # noqa: BLE001
        return await pay_surprise(1)


@workflow
async def asks() -> Any:
    return await pay_asked(1)


@step(effect="irreversible")
async def pay_for(order: Receipt, at: datetime) -> int:
    paid(f"{order.number} {at.tzname()}")
    return order.number


@step
async def fails_once() -> None:
    if (PAID.parent / "fail").exists():
        raise ConnectionError("not yet")


@workflow
async def pays_for(order: Receipt) -> list[int]:
    done = [await pay_for(order, BERLIN), await pay_for(Receipt(), BERLIN)]
    await fails_once()
    return done


@workflow
async def takes(value: Any) -> Any:
    return await pay_page(value) if value == 1 else None


@step(effect="irreversible")
async def pay_response() -> Response:
    paid("response")
    return Response()


@step(effect="irreversible")
async def pay_responses() -> list[Response | None] | dict[str, Response]:
    paid("responses")
    return [Response()]


@step(effect="irreversible")
async def pay_token() -> Token:
    paid("token")
    return Token(secret=SecretStr("x"))


@step(effect="irreversible")
async def pay_locked() -> Locked:
    paid("locked")
    return Locked(Response())


@step(effect="irreversible")
async def pay_told() -> Told:
    paid("told")
    return {"response": Response()}


@step(effect="irreversible")
async def pay_rows() -> Iterator[int]:
    paid("rows")
    return iter([1])


@step(effect="irreversible")
async def pay_open() -> Base | Anything | Response | None:
    paid("open")
    return Known(1)


STEPS = {
    each.definition.name: each for each in (pay_response, pay_responses, pay_token, pay_locked, pay_told, pay_rows)
}


@workflow
async def pays_by(name: str) -> str:
    await STEPS[name]()
    return "paid"


@workflow
async def pays_openly() -> Any:
    return await pay_open()


@workflow
async def gives_a_response() -> Response:
    await pay_page(1)
    return Response()
