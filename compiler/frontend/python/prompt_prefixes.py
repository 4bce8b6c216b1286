"""Prefixes of prompts that are known before a run: system prompts and messages that stand in the code.

The text itself is not stored in the plan. A prefix names it by its digest and by where a run finds it.
"""

from __future__ import annotations

import ast
import hashlib

from ramify.compiler.frontend.python.name_resolution import Scope, is_llm
from ramify.compiler.frontend.python.sources import Function
from ramify.compiler.spec import KnownText, Prefix

_METHODS = ("chat", "stream", "propose", "choose")


def prefix_of(node: ast.Call, scope: Scope) -> Prefix | None:
    """Return the prefix of a call `llm.chat(…)`; None if its model or first message is only known at run time."""
    method = node.func.attr if isinstance(node.func, ast.Attribute) else ""
    given = {keyword.arg: keyword.value for keyword in node.keywords}
    if method not in _METHODS or None in given or any(isinstance(each, ast.Starred) for each in node.args):
        return None
    model = "default" if "model" not in given else _text(given["model"], scope)
    messages: list[KnownText] = []
    if not _is_absent(given.get("system")):
        system = _known_text("system", given["system"], scope)
        if system is None:
            return None
        messages.append(system)
    prompt = node.args[0] if node.args else given.get("prompt")
    if prompt is not None and method != "choose":  # the prompt of `choose` is built from its question and options
        user = _known_text("user", prompt, scope)
        messages += [] if user is None else [user]
    return Prefix(model, tuple(messages)) if model and messages else None


def first_prefix(function: Function, rebound: frozenset[str]) -> Prefix | None:
    """Return the prefix of the first model call in a step's own code."""
    scope = Scope.of(function, rebound)
    calls = [
        node
        for node in ast.walk(function.node)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and is_llm(scope.resolve(node.func.value))
    ]
    first = min(calls, key=lambda node: (node.lineno, node.col_offset), default=None)
    return None if first is None else prefix_of(first, scope)


def _known_text(role: str, node: ast.expr, scope: Scope) -> KnownText | None:
    text = _text(node, scope)
    if not text:
        return None
    name = "" if isinstance(node, ast.Constant) else ast.unparse(node)
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
    return KnownText(role, scope.function.module, name, digest, len(text))


def _text(node: ast.expr, scope: Scope) -> str | None:
    value = node.value if isinstance(node, ast.Constant) else scope.resolve(node)
    return value if isinstance(value, str) else None


def _is_absent(node: ast.expr | None) -> bool:
    return node is None or (isinstance(node, ast.Constant) and not node.value)
