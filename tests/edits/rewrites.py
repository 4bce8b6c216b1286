"""Edits that write the same program in another way: what people, editors and linters do to working code.

Some change only steps or imports, which a resume accepts without being asked. The others change the workflow's own
text, and may be refused; what they compute stays the same.
"""

from __future__ import annotations

import ast
import random
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable

from flows import Flow

Files = dict[str, str]
Change = Callable[[Files, Flow, random.Random], Files | None]
APP, HELPERS = "edited_app.py", "edited_helpers.py"


def _replaced(*pairs: tuple[str, str], file: str = APP) -> Change:
    """Return an edit that replaces the first of these patterns that is there."""

    def change(files: Files, flow: Flow, chance: random.Random) -> Files | None:
        for pattern, new in pairs:
            text, count = re.subn(pattern, new, files.get(file, ""), count=1, flags=re.MULTILINE)
            if count:
                return files | {file: text}
        return None

    return change


def _flow(text: str) -> ast.FunctionDef | ast.AsyncFunctionDef:
    node = next(node for node in ast.parse(text).body if getattr(node, "name", "") == "flow")
    assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    return node


def _around(*opening: str, closing: tuple[str, ...] = (), rest: bool = False) -> Change:
    """Return an edit that puts a statement of the workflow, or the `rest` after it, under these lines."""

    def change(files: Files, flow: Flow, chance: random.Random) -> Files | None:
        text = files[APP]
        node = _flow(text)
        is_async = isinstance(node, ast.AsyncFunctionDef)
        if not is_async and any("async" in line or "await" in line for line in (*opening, *closing)):
            return None
        at = chance.choice(node.body)
        last = node.body[-1] if rest else at
        lines, depth = text.splitlines(), 4 + len(opening[-1]) - len(opening[-1].lstrip())
        inner = textwrap.indent("\n".join(lines[at.lineno - 1 : last.end_lineno]), " " * depth).splitlines()
        outer = [[" " * at.col_offset + line for line in given] for given in (opening, closing)]
        lines[at.lineno - 1 : last.end_lineno] = [*outer[0], *inner, *outer[1]]
        return files | {APP: "\n".join(lines) + "\n"}

    return change


def _before_flow(added: str, then: Change) -> Change:
    """Return an edit that adds a definition in front of the workflow, and then makes another edit."""

    def change(files: Files, flow: Flow, chance: random.Random) -> Files | None:
        changed = then(files, flow, chance)
        if changed is None:
            return None
        return changed | {APP: changed[APP].replace("\n@workflow\n", f"\n{textwrap.dedent(added)}\n\n@workflow\n", 1)}

    return change


def _calls_renamed(old: str, new: str, decorator: str) -> Change:
    """Return an edit that renames a step, whose decorator is now this one."""

    def change(files: Files, flow: Flow, chance: random.Random) -> Files | None:
        head, _, tail = files[APP].partition(f"async def {old}(")
        start = head.rindex("@step")
        found = f"{head[:start]}{decorator}\nasync def {old}({tail}"
        return {name: re.sub(rf"\b{old}\b(?=[(,)])", new, text) for name, text in {**files, APP: found}.items()}

    return change


def step_elsewhere(files: Files, flow: Flow, chance: random.Random) -> Files:
    """Move a step to a module of its own."""
    text = files[APP]
    node = next(node for node in ast.parse(text).body if getattr(node, "name", "") == "note")
    assert isinstance(node, ast.AsyncFunctionDef)
    lines, first = text.splitlines(), node.decorator_list[0].lineno - 1
    moved = "from ramify import Sandbox, step\n\n\n" + "\n".join(lines[first : node.end_lineno]) + "\n"
    rest = [*lines[:first], *lines[node.end_lineno or 0 :]]
    at = next(i for i, line in enumerate(rest) if line.startswith("from ramify import"))
    rest.insert(at + 1, "from edited_steps import note")
    return files | {APP: "\n".join(rest) + "\n", "edited_steps.py": moved}


def unrolled(files: Files, flow: Flow, chance: random.Random) -> Files | None:
    """Write a loop over constants as its turns."""
    text = files[APP]
    loop = next((each for each in _flow(text).body if isinstance(each, ast.For)), None)
    if loop is None or not isinstance(loop.iter, ast.List):
        return None
    lines = text.splitlines()
    body = textwrap.indent(textwrap.dedent("\n".join(lines[loop.lineno : loop.end_lineno])), "    ")
    turns = [f"    {ast.unparse(loop.target)} = {ast.unparse(each)}\n{body}" for each in loop.iter.elts]
    lines[loop.lineno - 1 : loop.end_lineno] = turns
    return files | {APP: "\n".join(lines) + "\n"}


def linted(files: Files, flow: Flow, chance: random.Random) -> Files | None:
    """Apply the safe fixes of ruff: sorted imports, newer syntax, simpler statements."""
    command = [sys.executable, "-m", "ruff", "check", "-q", "--isolated", "--fix-only"]
    command += ["--select", "I,UP,SIM,C4,F,RET", "-"]
    try:
        return {
            name: subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout
            for name, text in files.items()
        }
    except (OSError, subprocess.CalledProcessError):
        return None


_CALL = r"^(    +)(\w+) = (await )?(next_id|note|pay|apart|shaky|interrupt)\((.*)\)$"
_QUIET = """
import contextlib

@contextlib.asynccontextmanager
async def quiet():
    yield
"""

KEPT: tuple[tuple[str, Change], ...] = (
    ("ruff check --fix", linted),
    ("a step elsewhere", step_elsewhere),
    ("a step renamed, with its old name", _calls_renamed("extra", "another", '@step(name="extra", effect="pure")')),
    (
        "an irreversible step renamed, with its old name",
        _calls_renamed("pay", "pay_once", '@step(name="pay", effect="irreversible", reconcile=look)'),
    ),
    ("a step's docstring", _replaced((r"    once\.\n", "    Only once.\n"))),
    ("a step without its docstring", _replaced((r'    """Pay somebody,\n    once\.\n    """\n', ""))),
    ("type hints in a step", _replaced((r"    number = 1 \+ sum", "    number: int = 1 + sum"))),
    ("format in a step", _replaced((r'    return f"paid \{who\}"', '    return "paid {}".format(who)'))),
    ("a step decorated", _replaced((r"^async def note", "@(lambda function: function)\nasync def note"))),
    ("a step that is not async", _replaced((r"^async def extra", "def extra"))),
    ("a step with more parameters", _replaced((r"pay\(who: str\)", "pay(who: str, *, note: str | None = None)"))),
    (
        "future annotations",
        _replaced((r"^import asyncio\n", "from __future__ import annotations\n\nimport asyncio\n")),
    ),
    ("unused imports", _replaced((r"^import json\n", "import json\nimport os.path as somewhere\n"))),
    ("unused definitions", _before_flow("LIMIT = 3\n\ndef unused(x):\n    return x", _replaced((r"\Z", "\n")))),
)
"""Without being asked."""

REWRITTEN: tuple[tuple[str, Change], ...] = (
    ("a workflow's docstring", _replaced((r"^((?:async )?def flow.*)$", r'\1\n    """What it does."""'))),
    ("type hints in a workflow", _replaced((r"^    ada = ", "    ada: int = "))),
    ("no type hints in a workflow", _replaced((r"def flow\(\) -> dict\[str, object\]", "def flow()"))),
    (
        "type hints in a helper",
        _replaced((r"both\(first, second\)", "both(first: object, second: object)"), file=HELPERS),
    ),
    (
        "format in a helper",
        _replaced((r'    text = f"\{unit\} \{number\}"', '    text = "{} {}".format(unit, number)')),
    ),
    (
        "an import of a module",
        _before_flow(
            "import asyncio as tasks",
            _replaced((r"asyncio\.gather", "tasks.gather")),
        ),
    ),
    (
        "an import of a helper's module",
        _before_flow("import edited_helpers as helpers", _replaced((r"await both\(", "await helpers.both("))),
    ),
    ("async with around", _before_flow(_QUIET, _around("async with quiet():"))),
    ("async with around the rest", _before_flow(_QUIET, _around("async with quiet():", rest=True))),
    ("try around", _around("try:", closing=("except ZeroDivisionError:", "    raise"))),
    ("try around the rest", _around("try:", closing=("finally:", "    pass"), rest=True)),
    ("if around", _around("if 1 < 2:")),
    ("if around the rest", _around("if 1 < 2:", rest=True)),
    ("a loop of one turn around", _around("for _turn in range(1):")),
    ("match around", _around("match 1:", "    case _:")),
    ("walrus", _replaced((_CALL, r"\1(\2 := \3\4(\5))"))),
    ("an expression apart", _replaced((_CALL, r"\1given = \3\4(\5)\n\1\2 = given"))),
    (
        "an awaitable apart",
        _replaced((_CALL.replace("(await )?", "(await )"), r"\1later = \4(\5)\n\1\2 = await later")),
    ),
    (
        "a nested function",
        _replaced(
            (
                _CALL.replace("(await )?", "(await )"),
                r"\1async def inner():\n\1    return await \4(\5)\n\n\1\2 = await inner()",
            )
        ),
    ),
    ("a lambda", _replaced((_CALL, r"\1\2 = \3(lambda: \4(\5))()"))),
    ("a default argument", _replaced((r"worded\(len\((\w+)\)\)", r'worded(len(\1), unit="no")'))),
    ("a keyword argument", _replaced((r'pay\(("\w+"|\w+(?:\[0\])?)\)(?!:)', r"pay(who=\1)"))),
    ("a constant extracted", _before_flow('ADA = "ada"', _replaced((r'pay\("ada"\)', "pay(ADA)")))),
    (
        "a comprehension",
        _replaced((r'\[await pay\("ada"\), await pay\("bob"\)\]', '[await pay(each) for each in ("ada", "bob")]')),
    ),
    ("a loop unrolled", unrolled),
    ("a step renamed", _calls_renamed("next_id", "new_id", '@step(effect="irreversible", reconcile=look)')),
    ("a deadline", _replaced((r"^@workflow$", '@workflow(deadline="1h")'))),
    ("a statement added", _replaced((r"^    return \{", "    print(end='')\n    return {"))),
)
"""The text of the workflow itself, or of what it calls."""
