"""Which call gets the hint of a run: the first one after a step, with a prompt that stands in the code."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import pytest

from ramify.compiler.passes import OPTIONAL
from ramify.compiler.pipeline import compile_spec
from ramify.compiler.plan import PREFIX, Plan

LONG = "be brief " * 60
TEXTS = f"SYSTEM = {LONG!r}\nSHORT = 'be brief'\nclass Texts:\n    system = SYSTEM\n"


def marked(plan: Plan) -> dict[str, Any]:
    return {op.id: op.attrs[PREFIX] for op in plan.ops if PREFIX in op.attrs}


def known(name: str, role: str = "system", text: str = LONG) -> dict[str, str]:
    return {"role": role, "module": "sample", "name": name, "digest": hashlib.sha256(text.encode()).hexdigest()}


@pytest.mark.parametrize(
    ("call", "messages"),
    [
        ("llm.chat(str(1), system=SYSTEM)", [known("SYSTEM")]),
        ("llm.propose(str(1), system=Texts.system)", [known("Texts.system")]),
        ("llm.choose('?', [], system=SYSTEM)", [known("SYSTEM")]),
        (f"llm.chat(str(1), system={LONG!r})", [known("")]),
        ("llm.chat(SYSTEM)", [known("SYSTEM", "user")]),
        ("llm.chat('?', system=SYSTEM)", [known("SYSTEM"), known("", "user", "?")]),
        ("llm.chat('?', system=SHORT)", None),
        ("llm.chat('?', system=given)", None),
        ("llm.chat(SYSTEM, system=given)", None),
        ("llm.chat('?', system=SYSTEM, model=given)", None),
        ("llm.chat('?', **given)", None),
        ("llm.choose(SYSTEM, [])", None),  # its prompt is built from the question and the options
    ],
)
def test_prompts_that_stand_in_the_code_are_known_ahead(
    compile_source: Callable[..., Any], call: str, messages: list[dict[str, str]] | None
) -> None:
    compilation = compile_source(f"{TEXTS}\n@workflow\nasync def flow(given):\n    await edit()\n    await {call}\n")
    expected = {} if messages is None else {"llm.1": {"model": "default", "messages": messages}}
    assert marked(compilation.plan) == expected
    assert LONG not in compilation.plan.to_json()
    off = compile_spec(compilation.spec, passes=[name for name in OPTIONAL if name != "lookahead"])
    assert marked(off.plan) == {}


@pytest.mark.parametrize(
    ("body", "at"),
    [
        ("await edit(); await first()", "llm.1"),
        ("await first(); await edit()", None),  # nothing runs before it
        ("await llm.chat('?'); await edit(); await first()", None),  # the engine has been asked before
        ("await edit(); await llm.chat('?'); await first()", None),
        ("for _ in range(3): await edit()\n    await first()", "llm.1"),
        ("if given: await llm.chat('?')\n    else: await edit()\n    await first()", "llm.2"),
        ("await edit(); await asks()", "run.2"),
        ("await asks()", None),
        ("await asks(); await edit(); await first()", None),
        ("await edit(); await given(edit); await first()", None),  # unread code may call the model
    ],
)
def test_only_the_first_call_after_a_step_gets_a_hint(
    compile_source: Callable[..., Any], body: str, at: str | None
) -> None:
    compilation = compile_source(f"""
{TEXTS}
@step(effect=Effect.PURE)
async def asks():
    await llm.chat("?", system=SYSTEM)
async def first():
    await llm.chat("?", system=SYSTEM)
@workflow
async def flow(given):
    {body}
""")
    assert list(marked(compilation.plan)) == ([] if at is None else [at])
