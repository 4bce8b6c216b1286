"""Edits of a source text: edits of the layout only, and edits of the behaviour."""

from __future__ import annotations

import ast
import random
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from flows import Flow
from rewrites import KEPT, REWRITTEN

Files = dict[str, str]
APP, HELPERS = "edited_app.py", "edited_helpers.py"


@dataclass(frozen=True)
class Edit:
    """`layout`: it must not be refused. `accepted`: it needs `accept_changes`."""

    name: str
    change: Callable[[Files, Flow, random.Random], Files | None]  # returns None if the edit is not applicable
    layout: bool = True
    accepted: bool = False
    forked: bool = False  # resumed in a fork of the killed run


def comments_above(files: Files, flow: Flow, chance: random.Random) -> Files:
    lines = "".join(f"# comment {i}\n" for i in range(chance.randint(1, 5)))
    return {name: lines + text for name, text in files.items()}


def comments_inside(files: Files, flow: Flow, chance: random.Random) -> Files:
    return {name: _inside(text, chance, "# a comment") for name, text in files.items()}


def blank_lines(files: Files, flow: Flow, chance: random.Random) -> Files:
    return {name: _inside(text, chance, "") for name, text in files.items()}


def _inside(text: str, chance: random.Random, line: str) -> str:
    """Insert lines before some of the statements."""
    starts = {
        node.lineno: node.col_offset
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.stmt) and not getattr(node, "decorator_list", None)
    }
    chosen = set(chance.sample(sorted(starts), min(len(starts), chance.randint(1, 6))))
    made = []
    for number, old in enumerate(text.splitlines(), 1):
        if number in chosen and old.strip():
            made.append(" " * starts[number] + line if line else "")
        made.append(old)
    return "\n".join(made) + "\n"


@cache
def _formatted(tool: str, width: int, text: str) -> str:
    command = {
        "black": ["black", "-q", "-l", str(width), "-"],
        "ruff": ["ruff", "format", "-q", "--isolated", "--line-length", str(width), "-"],
    }[tool]
    if tool == "ruff":
        command += ["--config", "format.quote-style='single'"] if width % 2 else []
    ran = subprocess.run([sys.executable, "-m", *command], input=text, capture_output=True, text=True, check=True)
    return ran.stdout


@cache
def has(tool: str) -> bool:
    return subprocess.run([sys.executable, "-m", tool, "--version"], capture_output=True).returncode == 0


def formatted(tool: str) -> Callable[[Files, Flow, random.Random], Files | None]:
    def change(files: Files, flow: Flow, chance: random.Random) -> Files | None:
        if not has(tool):
            return None
        width = chance.choice([20, 30, 41, 60, 79, 81, 88, 100])
        return {name: _formatted(tool, width, text) for name, text in files.items()}

    return change


def unparsed(files: Files, flow: Flow, chance: random.Random) -> Files:
    """Write the code anew from its syntax tree: other quotes, parentheses and line breaks, no comments."""
    return {name: ast.unparse(ast.parse(text)) + "\n" for name, text in files.items()}


def functions_moved(files: Files, flow: Flow, chance: random.Random) -> Files:
    """Reorder the functions of the app; the workflow stays last."""
    text = files[APP]
    lines, nodes = text.splitlines(), ast.parse(text).body
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    blocks = ["\n".join(lines[_start(node) - 1 : node.end_lineno]) for node in functions]
    steady = [block for block in blocks if "@workflow" in block or "reconcile" in block or "def look" in block]
    others = [block for block in blocks if block not in steady]
    chance.shuffle(others)
    first = min(_start(node) for node in functions)
    head = "\n".join(lines[: first - 1])
    steady.sort(key=lambda block: ("def look" not in block, "@workflow" in block))
    return files | {APP: "\n\n\n".join([head, *others[:1], *steady, *others[1:]]) + "\n"}


def _start(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return min([node.lineno, *(each.lineno for each in node.decorator_list)])


def function_elsewhere(files: Files, flow: Flow, chance: random.Random) -> Files:
    """Move a helper of the app to a module of its own."""
    text = files[APP]
    node = next(node for node in ast.parse(text).body if getattr(node, "name", "") == "worded")
    assert isinstance(node, ast.FunctionDef)
    lines = text.splitlines()
    moved = "\n".join(lines[node.lineno - 1 : node.end_lineno])
    rest = [*lines[: node.lineno - 1], *lines[node.end_lineno or 0 :]]
    at = next(i for i, line in enumerate(rest) if line.startswith("from ramify import"))
    rest.insert(at + 1, "from edited_more import worded")
    return files | {APP: "\n".join(rest) + "\n", "edited_more.py": moved + "\n"}


def function_renamed(files: Files, flow: Flow, chance: random.Random) -> Files:
    names = {"worded": "in_words", "apart": "by_itself", "both": "the_two", "sorted_names": "in_order"}
    return {name: _renamed(text, names) for name, text in files.items()}


def locals_renamed(files: Files, flow: Flow, chance: random.Random) -> Files:
    names = {
        name: f"{name}_{chance.randint(1, 9)}" for name in (*flow.labels, "out", "number", "told", "one", "found")
    }
    return {name: _locals_renamed(text, names) for name, text in files.items()}


def _renamed(text: str, names: dict[str, str]) -> str:
    for old, new in names.items():
        text = re.sub(rf"\b{old}\b", new, text)
    return text


def _locals_renamed(text: str, names: dict[str, str]) -> str:
    """Rename local names, but not texts, parameters, attributes or keywords."""
    lines = text.splitlines(keepends=True)
    found = []
    for function in ast.walk(ast.parse(text)):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            given = {each.arg for each in ast.walk(function.args) if isinstance(each, ast.arg)}
            bound = {
                n.id for n in ast.walk(function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
            } - given
            found += [n for n in ast.walk(function) if isinstance(n, ast.Name) and n.id in bound and n.id in names]
    for node in sorted(found, key=lambda node: (node.lineno, node.col_offset), reverse=True):
        line = lines[node.lineno - 1]
        lines[node.lineno - 1] = line[: node.col_offset] + names[node.id] + line[node.col_offset + len(node.id) :]
    return "".join(lines)


def step_mended(files: Files, flow: Flow, chance: random.Random) -> Files:
    """Make a step longer without changing its result."""
    more = "    checked = text.strip()\n    if not checked:\n        return text\n"
    return files | {APP: files[APP].replace("    return text.upper()\n", f"{more}    return text.upper()\n")}


def steps_added(files: Files, flow: Flow, chance: random.Random) -> Files | None:
    """Call a pure step before one of the workflow's statements."""
    text = files[APP]
    node = next(node for node in ast.parse(text).body if getattr(node, "name", "") == "flow")
    assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    inner = [each for each in ast.walk(node) if isinstance(each, ast.stmt) and each is not node]
    at = chance.choice([each for each in inner if not isinstance(each, ast.Pass)])
    call = "extra('more')" if isinstance(node, ast.FunctionDef) else "await extra('more')"
    lines = text.splitlines()
    lines.insert(at.lineno - 1, f"{' ' * at.col_offset}more = {call}")
    return files | {APP: "\n".join(lines) + "\n"}


def calls_swapped(files: Files, flow: Flow, chance: random.Random) -> Files | None:
    """Swap the names that get the results of two equal calls: `ada` is now requested after `bob`."""
    first, second = flow.labels[:2]
    pattern = re.compile(rf"^(    +){first} = (.*)\n(    +){second} = (.*)\n", re.MULTILINE)
    changed, count = pattern.subn(rf"\1{second} = \4\n\3{first} = \2\n", files[APP])
    return files | {APP: changed} if count == 1 else None


def patch_added(files: Files, flow: Flow, chance: random.Random) -> Files | None:
    """Add new code under `if ramify.patched(...)` before one of the workflow's statements."""
    text = files[APP]
    node = next(node for node in ast.parse(text).body if getattr(node, "name", "") == "flow")
    assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    at = chance.choice(node.body)
    call = "extra('more')" if isinstance(node, ast.FunctionDef) else "await extra('more')"
    lines = text.splitlines()
    lines[at.lineno - 1 : at.lineno - 1] = ["    if ramify.patched('more'):", f"        more = {call}"]
    return files | {APP: "\n".join(lines) + "\n"}


def several(files: Files, flow: Flow, chance: random.Random) -> Files:
    """Apply several layout edits one after the other."""
    for change in chance.sample([comments_above, comments_inside, blank_lines, locals_renamed, step_mended], 3):
        files = change(files, flow, chance)
    return files


EDITS = (
    Edit("comments above", comments_above),
    Edit("comments inside", comments_inside),
    Edit("blank lines", blank_lines),
    Edit("black", formatted("black")),
    Edit("ruff", formatted("ruff")),
    Edit("unparsed", unparsed),
    Edit("functions moved", functions_moved),
    Edit("a function elsewhere", function_elsewhere),
    Edit("functions renamed", function_renamed),
    Edit("locals renamed", locals_renamed),
    Edit("a step mended", step_mended),
    Edit("several", several),
    Edit("a patch", patch_added),
    Edit("forked", comments_inside, forked=True),
    Edit("a step added", steps_added, layout=False),
    Edit("a step added, accepted", steps_added, layout=False, accepted=True),
    Edit("calls swapped", calls_swapped, layout=False),
    Edit("calls swapped, accepted", calls_swapped, layout=False, accepted=True),
    *(Edit(name, change) for name, change in KEPT),
    *(Edit(name, change, layout=False) for name, change in REWRITTEN),
    *(Edit(f"{name}, accepted", change, layout=False, accepted=True) for name, change in REWRITTEN),
)
