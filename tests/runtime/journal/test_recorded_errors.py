"""An error that is raised again is like the one that was raised, as far as it can be stored."""

from __future__ import annotations

import threading

import httpx
import pytest

from ramify.runtime.journal import recorded_errors


class Kept(Exception):
    def __init__(self, code: int, detail: object) -> None:
        self.code, self.detail = code, detail
        super().__init__(f"code {code}")


def again(error: Exception) -> Exception:
    found = recorded_errors.decoded(recorded_errors.encoded(error))
    assert found is not None
    assert type(found) is type(error)
    assert str(found) == str(error)
    return found


def test_an_error_keeps_its_attributes_except_those_that_cannot_be_stored() -> None:
    assert vars(again(Kept(7, ["x"]))) == {"code": 7, "detail": ["x"]}
    error = Kept(7, threading.Lock())
    assert vars(again(error)) == {"code": 7}
    assert hasattr(error, "detail"), "the error that is raised now stays as it is"


def test_an_error_of_a_client_keeps_what_handlers_ask_for_and_no_credentials() -> None:
    request = httpx.Request("POST", "http://user:word@bank.test/pay?token=t", headers={"authorization": "Bearer t"})
    answer = httpx.Response(429, request=request, text="later", headers={"set-cookie": "t=t"})
    with pytest.raises(httpx.HTTPStatusError) as raised:
        answer.raise_for_status()
    found = again(raised.value)
    assert isinstance(found, httpx.HTTPStatusError)
    assert (found.response.status_code, found.response.text) == (429, "later")
    assert str(found.request.url) == "http://bank.test/pay"
    assert not found.response.cookies
    assert "Bearer" not in str(recorded_errors.encoded(raised.value))


def test_an_error_whose_class_cannot_be_named_is_not_kept() -> None:
    class Local(ValueError): ...

    assert recorded_errors.encoded(Local("x")) == {}
    assert recorded_errors.decoded({}) is None
    assert recorded_errors.decoded({recorded_errors.RAISED: '{"$":"error","t":"gone:Gone","v":[[],{}]}'}) is None


class InSlots(Exception):
    __slots__ = ("code", "detail")

    def __init__(self, code: int, detail: str | None = None) -> None:
        self.code, self.detail = code, detail


def test_slots_of_an_error_come_back_though_its_arguments_hold_the_same_values() -> None:
    found = recorded_errors.decoded(recorded_errors.encoded(InSlots(507)))
    assert isinstance(found, InSlots)
    assert (found.code, found.detail, found.args) == (507, None, (507,))
