"""Workflows of several shapes. Their effects are written to an outside log, each id with its own number."""

from __future__ import annotations

from dataclasses import dataclass

_HEAD = '''"""An app that is edited."""
import asyncio
import json
from pathlib import Path

import ramify
from ramify import DidNotHappen, Happened, Sandbox, fork, interrupt, step, workflow
HELPER_IMPORT
LOG = Path(__file__).with_name("log")


def lines() -> list[list[str]]:
    return [line.split("|") for line in LOG.read_text().splitlines()] if LOG.exists() else []


def log(*words: object) -> None:
    with LOG.open("a") as file:
        file.write("|".join(map(str, words)) + "\\n")


def look(key: str, **given: object) -> object:
    found = [line for line in lines() if line[-1] == key]
    return Happened(json.loads(found[0][1])) if found else DidNotHappen()


@step(effect="irreversible", reconcile=look)
async def pay(who: str) -> str:
    """Pay somebody,
    once.
    """
    log("PAY", json.dumps(f"paid {who}"), ramify.idempotency_key())
    return f"paid {who}"


@step(effect="irreversible", reconcile=look)
async def next_id() -> int:
    number = 1 + sum(line[0] == "ID" for line in lines())
    log("ID", number, ramify.idempotency_key())
    return number


@step
async def note(sandbox: Sandbox, text: str) -> str:
    (sandbox.path / "note.txt").write_text(text)
    return text.upper()


@step(effect="pure")
async def extra(text: str) -> str:
    return text + "!"


def worded(number: int, *, unit: str = "no") -> str:
    text = f"{unit} {number}"
    return text


'''
_HELPERS = '''"""What the app calls."""


async def both(first, second):
    one = await first()
    two = await second("pair")
    return [one, two]


def sorted_names(names):
    found = sorted(names)
    return found
'''


@dataclass(frozen=True)
class Flow:
    name: str
    body: str
    labels: tuple[str, ...]  # the names whose ids are in the result, in the order in which they are asked for
    rest: str  # JSON of the rest of the result
    helpers: str = ""
    asks: bool = False

    @property
    def files(self) -> dict[str, str]:
        imports = "from edited_helpers import both, sorted_names\n" if self.helpers else ""
        app = _HEAD.replace("HELPER_IMPORT", imports) + self.body
        return {"edited_app.py": app} | ({"edited_helpers.py": self.helpers} if self.helpers else {})


FLOWS = (
    Flow(
        "payments",
        """
@workflow
async def flow() -> dict[str, object]:
    out = [await pay("ada"), await pay("bob")]
    first = worded(len(out))
    ada = await next_id()
    bob = await next_id()
    cyd = await next_id()
    text = await note(first)
    return {"ids": {"ada": ada, "bob": bob, "cyd": cyd}, "rest": [out, text]}
""",
        ("ada", "bob", "cyd"),
        '[["paid ada", "paid bob"], "NO 2"]',
    ),
    Flow(
        "loop",
        """
@workflow
async def flow() -> dict[str, object]:
    ids = {}
    paid = []
    for name in ["ada", "bob", "cyd"]:
        number = await next_id()
        ids[name] = number
        if name != "bob":
            paid.append(await pay(name))
    text = await note(worded(len(paid), unit="paid"))
    return {"ids": ids, "rest": [paid, text]}
""",
        ("ada", "bob", "cyd"),
        '[["paid ada", "paid cyd"], "PAID 2"]',
    ),
    Flow(
        "forked",
        """
@workflow
async def flow() -> dict[str, object]:
    ada = await next_id()
    async with fork(["x", "y"]) as branches:
        outcomes = await branches.map(note)
        texts = [outcome.value for outcome in outcomes]
    bob = await next_id()
    paid = await pay("ada")
    return {"ids": {"ada": ada, "bob": bob}, "rest": [paid, texts]}
""",
        ("ada", "bob"),
        '["paid ada", ["X", "Y"]]',
    ),
    Flow(
        "gathered",
        """
@workflow
async def flow() -> dict[str, object]:
    ada = await next_id()
    paid = await asyncio.gather(pay("ada"), pay("bob"), pay("cyd"))
    bob = await next_id()
    text = await note(worded(3))
    return {"ids": {"ada": ada, "bob": bob}, "rest": [list(paid), text]}
""",
        ("ada", "bob"),
        '[["paid ada", "paid bob", "paid cyd"], "NO 3"]',
    ),
    Flow(
        "helped",
        """
@workflow
async def flow() -> dict[str, object]:
    ada, text = await both(next_id, note)
    names = sorted_names(["y", "x"])
    bob = await apart()
    cyd = await apart()
    paid = await pay(names[0])
    return {"ids": {"ada": ada, "bob": bob, "cyd": cyd}, "rest": [paid, text]}


async def apart() -> int:
    number = await next_id()
    return number
""",
        ("ada", "bob", "cyd"),
        '["paid x", "PAIR"]',
        _HELPERS,
    ),
    Flow(
        "asking",
        """
@workflow
async def flow() -> dict[str, object]:
    ada = await next_id()
    told = await note("ready")
    answer = await interrupt("Pay?")
    paid = await pay(answer)
    bob = await next_id()
    return {"ids": {"ada": ada, "bob": bob}, "rest": [paid, told]}
""",
        ("ada", "bob"),
        '["paid ada", "READY"]',
        asks=True,
    ),
    Flow(
        "retried",
        """
@step(retry=2)
async def shaky(text: str) -> str:
    tried = LOG.with_name("tried")
    if not tried.exists():
        tried.touch()
        raise OSError("the first time")
    return text


@workflow
def flow() -> dict[str, object]:
    ada = next_id()
    text = shaky("done")
    try:
        bob = next_id()
    finally:
        paid = pay("ada")
    return {"ids": {"ada": ada, "bob": bob}, "rest": [paid, text]}
""",
        ("ada", "bob"),
        '["paid ada", "done"]',
    ),
)
