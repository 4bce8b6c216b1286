"""Options of `@step` that cannot work are refused where the step is defined, not after a crash."""

from __future__ import annotations

from typing import Any

import pytest

from ramify import Happened, Sandbox, step


async def pay(amount: int, *, to: str = "ada") -> int:
    return amount


async def in_world(sandbox: Sandbox, amount: int) -> int:
    return amount


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"retry": 1.5}, r"@step\(retry=1\.5\): write how often, a whole number"),
        ({"retry": True}, r"retry=True"),
        ({"retry": "3"}, r"retry='3'"),
        ({"name": 3}, r"@step\(name=3\): a name is a text"),
        ({"reuse": "no"}, r"@step\(reuse='no'\): write True or False"),
        ({"effect": "irreversible", "idempotent": "no"}, r"idempotent='no'"),
    ],
    ids=str,
)
def test_an_option_of_another_type_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(TypeError, match=said):
        step(**options)(pay)


def test_an_empty_name_is_refused() -> None:
    with pytest.raises(ValueError, match=r"the name is empty; leave it out"):
        step(name=" ")(pay)


def takes_no_key() -> None: ...


def takes_another_argument(key: str, price: int) -> None: ...


def takes_no_result(key: str, amount: int, to: str) -> None: ...


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"reconcile": "ask"}, r"reconcile='ask' is not a function: .* as reconcile\(key, amount=…, to=…\)"),
        ({"reconcile": takes_no_key}, r"cannot be called as reconcile\(key, amount=…, to=…\): "),
        ({"reconcile": takes_another_argument}, r"cannot be called as .*missing a required argument: 'price'"),
        ({"compensate": takes_no_result}, r"cannot be called as compensate\(key, result, amount=…, to=…\): multiple"),
    ],
    ids=["a text", "no key", "another argument", "no result"],
)
def test_a_hook_that_cannot_be_called_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(TypeError, match=said):
        step(effect="irreversible", **options)(pay)


def by_name(key: str, amount: int, to: str) -> Happened:
    return Happened(amount)


def any_of_them(key: str, *results: int, **arguments: object) -> Happened:
    return Happened(1)


class Bank:
    def ask(self, key: str, **arguments: object) -> Happened:
        return Happened(1)


@pytest.mark.parametrize("hook", [by_name, any_of_them, Bank().ask, lambda key, *, amount, to: Happened(1)])
def test_a_hook_gets_the_key_and_the_arguments_by_name(hook: Any) -> None:
    assert step(effect="irreversible", reconcile=hook)(pay).definition.outside.reconcile is hook


def test_a_hook_does_not_get_the_world() -> None:
    step(effect="irreversible", reconcile=lambda key, amount: Happened(1))(in_world)
    with pytest.raises(TypeError, match=r"reconcile\(key, amount=…\)"):
        step(effect="irreversible", reconcile=lambda key, sandbox, amount: Happened(1))(in_world)
