from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ramify.compiler.errors import SourceError, WorkflowError
from ramify.compiler.frontend.python import calls, workflow_reader
from ramify.compiler.pipeline import compile_workflow
from ramify.compiler.plan import OpKind
from ramify.compiler.spec import spec_text

Compile = Callable[..., Any]


def outline(compilation: Any) -> list[str]:
    """Return the Spec's lines without the head and the sites."""
    lines = spec_text(compilation.spec).splitlines()
    return [line.partition(" @ ")[0] for line in lines[1:] if not line.startswith("step ")]


def flow(body: str) -> str:
    lines = body.strip("\n").splitlines()
    return "@workflow\nasync def flow(x=None):\n" + "\n".join("    " + line for line in lines)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("await edit(x)", ["run edit"]),
        ("await edit(await test(x))", ["run test", "run edit"]),
        ("task = edit(x)\nawait task", ["run edit"]),
        ("await llm.propose(x, n=3)", ["call llm.propose"]),
        ("for i in x:\n    await edit(i)", ["loop", "  body:", "    run edit"]),
        ("while await test(x):\n    await edit(x)", ["loop", "  test:", "    run test", "  body:", "    run edit"]),
        ("while True:\n    await edit(x)\n    if x: break",
         ["loop without end", "  body:", "    run edit", "    choice", "      arm 1:", "        break"]),
        ("if x:\n    await edit(x)\nelse:\n    return",
         ["choice", "  arm 1:", "    run edit", "  arm 2:", "    return"]),
        ("y = [await edit(i) for i in x if await test(i)]", ["loop", "  body:", "    run test", "    run edit"]),
        ("y = {i: await edit(i) async for i in x}", ["loop", "  body:", "    run edit"]),
        ("x and await edit(x)", ["choice", "  arm 1:", "    run edit"]),
        ("y = await edit(x) if x else await test(x)",
         ["choice", "  arm 1:", "    run edit", "  arm 2:", "    run test"]),
        ("match x:\n    case 1:\n        await edit(x)\n    case [a, *b] if await test(a):\n        return",
         ["choice", "  arm 1:", "    run edit", "  arm 2:", "    run test", "    return"]),
        ("try:\n    await edit(x)\nexcept OSError:\n    raise\nelse:\n    await score(x)\n"
         "finally:\n    await test(x)",
         ["try", "  body:", "    run edit", "  except 1:", "    raise", "  else:", "    run score",
          "  finally:", "    run test"]),
        ("with open(x) as file:\n    await edit(file)", ["run edit"]),
        ("f'{await edit(x)}'", ["run edit"]),
        ("(y := await edit(x))", ["run edit"]),
        # nothing of Ramify in it: nothing in the Spec
        ("y = sorted(x, key=lambda i: -i)\nfor i in y:\n    if i: continue\n    print(i)\n    break", []),
        ("import json\nawait asyncio.sleep(0)\nx.append(json.dumps(x))\nawait x.run('ls')", []),
    ],
)  # fmt: skip
def test_statements_and_expressions(body: str, expected: list[str], compile_source: Compile) -> None:
    assert outline(compile_source(flow(body))) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # the receiver says which fork; names made from its branches belong to it
        (flow("""
async with fork(x) as outer:
    async with fork(x) as inner:
        best = max(await outer.map(edit))
        await inner.run(test, x)
        for each in [best]:
            await each.adopt()
        async with outer[0].enter():
            await edit(x)
"""),
         ["fork", "  fork", "    run edit on the branches of fork 1 out",
          "    run test on the branches of fork 0 out", "    loop", "      body:",
          "        adopt into the world of fork 1 out", "    enter a branch of fork 1 out", "      run edit"]),
        # a helper gets its branches by a parameter
        ("async def take(it, one):\n    await one.adopt()\n" + flow("""
async with fork(x) as outer:
    async with fork(x) as inner:
        await take(inner, one=outer[0])
"""),
         ["fork", "  fork", "    inlined take", "      adopt into the world of fork 1 out"]),
        # functions defined inside
        (flow("""
async def one(i):
    await edit(i)
two = lambda i: test(i)
await asyncio.gather(*(one(i) for i in x), two(x))
"""),
         ["loop", "  body:", "    inlined one", "      run edit", "inlined lambda", "  run test"]),
        # a helper that holds nothing is left out, one that calls itself is a break there
        ("def plain(i):\n    if not i: raise ValueError\n    return plain(i - 1)\n"
         "async def deep(i):\n    await edit(i)\n    await deep(plain(i))\n" + flow("plain(3)\nawait deep(3)"),
         ["inlined deep", "  run edit", "  unseen: deep calls itself (app/sample.py:18)"]),
        ("async def even(i):\n    await odd(i)\nasync def odd(i):\n    await even(i)\n" + flow("await even(x)"), []),
        ("async def even(i):\n    await odd(i)\n    await edit(i)\nasync def odd(i):\n"
         "    await even(i)\n" + flow("await even(x)"),
         ["inlined even", "  inlined odd", "    unseen: even calls itself (app/sample.py:17)", "  run edit"]),
    ],
)  # fmt: skip
def test_forks_and_helpers(text: str, expected: list[str], compile_source: Compile) -> None:
    assert outline(compile_source(text)) == expected


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("await x(1)", "x is only known at run time"),
        ("await x[0](1)", "x[0] is only known at run time"),
        ("await asyncio.gather(*(x(i) for i in 'ab'))", "x is only known at run time"),
        ("await asyncio.to_thread(edit, x)", "edit is passed to asyncio.to_thread"),
        ("await asyncio.gather(*map(helper, x))", "helper is passed to map"),
        ("x.submit(lambda: helper(x))", "lambda: helper(x) is passed to x.submit"),
        ("print(llm)", "llm is passed to print"),
        ("context = fork(x)\nasync with context as branches:\n    pass", "fork(...) is not opened"),
        ("await x.map(edit, x)", "edit is passed to x.map"),
        ("await chosen(x)", "chosen is only known at run time"),
        ("async with Entered() as y:\n    pass", "Entered runs steps when it is awaited, entered or iterated"),
        ("await around(x)", "a decorator of around runs steps"),
        ("await tried(x)", "a decorator wraps step edit"),
        ("await made(x)", "a decorator wraps step edit"),
        ("await asyncio.gather(*map(tried, x))", "tried is passed to map"),
        ("await opaque(x)", "opaque is an object, and what its call does is only known at run time"),
        ("await bound(x)", "bound is an object"),
        ("await eval('edit(x)')", "eval is an object"),
        ("await Agent().works(x)", "Agent().works is a method of an object that is only known at run time"),
        (
            "await asyncio.gather(x.works(1), x.other(2))",
            "x.works is a method of an object that is only",
        ),
    ],
)
def test_unreadable_code_is_a_graph_break_with_a_reason(body: str, reason: str, compile_source: Compile) -> None:
    helpers = "async def helper(x):\n    await edit(x)\n@workflow\nasync def other(x): ...\n"
    helpers += (
        "class Agent:\n    async def works(self, x):\n        await helper(x)\n    async def other(self, x): ...\n"
    )
    helpers += "class Opaque:\n    def __call__(self, x): return edit(x)\nopaque = Opaque()\n"
    helpers += "class Entered:\n    async def __aenter__(self): await helper(1)\n    def __aexit__(self, *_): ...\n"
    helpers += (
        "from functools import wraps\ndef steps(f):\n    @wraps(f)\n    async def g(*a):\n"
        "        await edit(1)\n        return await f(*a)\n    return g\n@steps\nasync def around(x): ...\n"
    )
    helpers += "def again(f):\n    @wraps(f)\n    async def g(*a):\n        return await f(*a)\n    return g\n"
    helpers += "class Again:\n    def __init__(self, f): wraps(f)(self)\n    def __call__(self): ...\n"
    helpers += "import functools\ntried, made = again(again(edit)), Again(edit)\n"
    helpers += "chosen = edit\ndef choose():\n    global chosen\n    chosen = other\n"
    helpers += "bound = functools.partial(helper)\n"
    plan = compile_source(helpers + flow(body)).plan
    (catch_all, seen) = plan.breaks
    assert plan.op(catch_all.op) == plan.catch_all
    assert reason in seen.reason
    op = plan.op(seen.op)
    assert op.kind is OpKind.BREAK
    assert op.site is not None
    assert seen.where == f"app/sample.py:{op.site.line}"


def test_a_method_that_may_be_another_classs_refuses_nothing(compile_source: Compile) -> None:
    """Another class of the module has a method of that name, which would be refused where it is called."""
    helpers = (
        "class Agent:\n    async def works(self, x):\n        async with fork(x) as branches:\n"
        "            await helper(x)\n            edit(x)\nasync def helper(x):\n    await edit(x)\n"
    )
    spec = compile_source(helpers + flow("await x.works(1)\nawait helper(x)")).spec
    assert [type(item).__name__ for item in spec.body] == ["Unseen", "Inlined"]


def test_a_partial_of_a_step_is_the_step(compile_source: Compile) -> None:
    plan = compile_source("import functools\nbound = functools.partial(edit, 1)\n" + flow("await bound()")).plan
    assert plan.op("run.1").step == "edit"
    assert len(plan.breaks) == 1


def test_plans_of_format_7_and_before_have_a_decorated_step_as_the_step(
    load: Callable[[Path], Any], tmp_path: Path
) -> None:
    text = (
        "import functools\nfrom stand_in import *\n@step\nasync def edit(): ...\ndef again(f):\n"
        "    @functools.wraps(f)\n    async def g(): return await f()\n    return g\ntried = again(edit)\n"
        "@workflow\nasync def flow():\n    await tried()\n"
    )
    (tmp_path / "sample.py").write_text(text)
    flow = load(tmp_path / "sample.py").flow
    read = [workflow_reader.read_workflow(flow, ref="sample.py:flow", version=version) for version in (7, 8)]
    assert [type(spec.body[0]).__name__ for spec in read] == ["StepCall", "Unseen"]


def test_a_step_that_is_a_static_method_is_the_step(compile_source: Compile) -> None:
    plan = compile_source("class Bank:\n    pay = staticmethod(mail)\n" + flow("await Bank.pay(x)")).plan
    assert [op.step for op in plan.ops if op.kind is OpKind.RUN] == ["mail"]
    assert len(plan.breaks) == 1


def test_a_step_that_is_only_passed_on_is_in_the_table(compile_source: Compile) -> None:
    assert compile_source(flow("await asyncio.to_thread(edit, x)")).plan.step("edit") is not None


def test_adopting_after_the_release_is_refused(compile_source: Compile) -> None:
    with pytest.raises(WorkflowError, match="released by then") as error:
        compile_source(flow("async with fork(x) as branches:\n    best = branches[0]\nawait best.adopt()"))
    assert error.value.where == "app/sample.py:17"


def test_inlining_has_a_limit(compile_source: Compile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "MOST_INLINED", 4)
    helpers = "async def h0():\n    await edit()\n" + "".join(
        f"async def h{i}():\n    await h{i - 1}(); await h{i - 1}()\n" for i in range(1, 12)
    )
    plan = compile_source(helpers + flow("await h11()")).plan
    assert all("more than 4 calls" in b.reason for b in plan.breaks[1:])


def test_a_helper_of_the_same_folder_is_read_and_one_of_a_library_is_not(
    load: Callable[[Path], Any], tmp_path: Path
) -> None:
    head = "from stand_in import *\n"
    library = tmp_path / "app" / "site-packages"
    library.mkdir(parents=True)
    (tmp_path / "app" / "near.py").write_text(
        head + "@step\nasync def edit(): ...\nasync def near():\n    await edit()\n"
    )
    (library / "far.py").write_text(head + "@step\nasync def edit2(): ...\nasync def far():\n    await edit2()\n")
    load(tmp_path / "app" / "near.py")
    load(library / "far.py")
    text = (
        "import near\nfrom far import far\n"
        + head
        + "@workflow\nasync def flow():\n    await near.near()\n    await far()\n"
    )
    (tmp_path / "app" / "flow.py").write_text(text)
    plan = compile_workflow(load(tmp_path / "app" / "flow.py").flow, ref="r").plan
    assert [step.name for step in plan.steps] == ["edit"]
    (run,) = [op for op in plan.ops if op.kind is OpKind.RUN]
    assert str(run.site) == "app/near.py:5:10"


def test_two_steps_of_one_name_are_refused(load: Callable[[Path], Any], tmp_path: Path) -> None:
    text = "from stand_in import *\n@step\nasync def edit(): ...\n"
    (tmp_path / "a.py").write_text(text)
    load(tmp_path / "a.py")
    (tmp_path / "b.py").write_text(
        "import a\n" + text + "@workflow\nasync def flow():\n    await edit(); await a.edit()\n"
    )
    with pytest.raises(WorkflowError, match="two steps are called edit"):
        compile_workflow(load(tmp_path / "b.py").flow, ref="r")


def test_a_function_without_source_is_refused() -> None:
    namespace: dict[str, Any] = {}
    exec("async def flow(): ...", namespace)
    with pytest.raises(SourceError, match="keep it in a file"):
        compile_workflow(namespace["flow"], ref="r")
    with pytest.raises(SourceError, match="not a Python function"):
        compile_workflow(print, ref="r")


@pytest.mark.parametrize(
    ("body", "stages"),
    [
        ("await llm.chat(x)\nawait llm.chat(x)", 2),
        ("if x:\n    await llm.chat(x)\nelse:\n    await llm.propose(x)", 1),
        ("if x:\n    await llm.chat(x)", None),
        ("for i in x:\n    await llm.chat(x)", None),
        ("await llm.chat(x)\nawait x()", None),
        ("await llm.chat(x)\nawait ask(x)", None),
        ("await edit(x)", None),
    ],
)
def test_the_stages_of_a_run_where_they_are_known(body: str, stages: int | None, compile_source: Compile) -> None:
    text = "async def really(x):\n    await llm.chat(x)\n@step\nasync def ask(x):\n    await really(x)\n" + flow(body)
    assert compile_source(text).plan.stages == stages


BASE = """
LIMIT = 3
UNUSED = 1
def inner(x):
    return x + LIMIT
@step
async def work(x):
    return inner(x)
async def helper(x):
    await work(x)
""" + flow("await helper(1)")


@pytest.mark.parametrize(
    ("old", "new", "step_changes", "workflow_changes"),
    [
        ("LIMIT = 3", "LIMIT = 3  # the same", False, False),
        ("return inner(x)", "return (inner(\n        x))", False, False),
        ("UNUSED = 1", "UNUSED = 2", False, False),
        ("LIMIT = 3", "LIMIT = 4", True, False),
        ("x + LIMIT", "x - LIMIT", True, False),
        ("return inner(x)", "return inner(x) + 0", True, False),
        ("await work(x)", "await work(x + 1)", False, True),
        ("await helper(1)", "await helper(2)", False, True),
    ],
)
def test_a_digest_follows_the_code_it_depends_on_and_nothing_else(
    old: str, new: str, step_changes: bool, workflow_changes: bool, compile_source: Compile
) -> None:
    before, after = compile_source(BASE).plan, compile_source(BASE.replace(old, new)).plan
    assert (before.steps[0].code_digest != after.steps[0].code_digest) == step_changes
    assert (before.code_digest != after.code_digest) == workflow_changes


def test_a_digest_does_not_depend_on_the_hash_seed(tmp_path: Path) -> None:
    """Names are collected in sets."""
    (tmp_path / "code.py").write_text("import os, sys\nA = B = 1\ndef f():\n    return os, sys, A, B, f\n")
    script = (
        "import code_ as m; from ramify.compiler.frontend.python.sources import Sources;"
        "from ramify.compiler.frontend.python.modules import dependencies, digest;"
        "s = Sources(); print(digest(dependencies(s.function(m.f), s)))"
    )
    (tmp_path / "code.py").rename(tmp_path / "code_.py")
    digests = {
        subprocess.run(
            [sys.executable, "-c", script],
            cwd=tmp_path,
            env={"PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
        ).stdout
        for seed in "0123"
    }
    assert len(digests) == 1
