"""Where the bug may be, and what the failures say about it: pure functions of a survey."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable

from .edits import Facts
from .source import Source, first_line, used_names
from .suite import Failure, Survey


def suspicion(survey: Survey, source: Source) -> dict[int, float]:
    """Return, for each line that a failing test ran, how suspicious it is: 0 to 1.

    This is Ochiai's coefficient (Abreu et al. 2007): ef / sqrt(F * (ef + ep)), if ef of the F failing tests ran the
    line, and ep passing ones. The line that raised counts more. A line that runs at import counts as far as what it
    defines is used.
    """
    total = max((failing for _, _, failing, _ in survey.lines), default=0)
    scores: dict[int, float] = {}
    for path, line, failing, passing in survey.lines:
        if path == source.path and total:
            scores[line] = failing / (total * (failing + passing)) ** 0.5
    for failure in survey.failures:
        raised = [line for path, line in failure.frames if path == source.path]
        if raised and failure.error != "AssertionError":
            scores[raised[-1]] = min(1.0, 1.4 * scores.get(raised[-1], 0.6))
    _imported(survey, source, scores)
    return scores


def _imported(survey: Survey, source: Source, scores: dict[int, float]) -> None:
    lines = {line for path, line in survey.imported if path == source.path}
    if not survey.lines:  # the suite could not be collected
        for line in lines:
            scores.setdefault(line, 0.3)
        return
    run = dict(scores)
    for node in source.tree.body:
        owner = node.body if isinstance(node, ast.ClassDef) else [node]
        for item in owner:
            names = set(_bound(item))
            if not names or isinstance(item, ast.Import | ast.ImportFrom):
                continue
            for line in range(first_line(item), (item.end_lineno or item.lineno) + 1):
                if line in lines and line not in run:
                    users = [scores_at(run, use) for use in ast.walk(source.tree) if _mentions(use, names)]
                    if best := max(users, default=0.0):
                        scores[line] = 0.7 * best
    for function in source.functions:
        inside = [score for line, score in run.items() if function.lineno <= line <= (function.end_lineno or 0)]
        if inside:
            scores.setdefault(first_line(function), 0.5 * max(inside))
            scores.setdefault(function.lineno, 0.5 * max(inside))


def scores_at(scores: dict[int, float], node: ast.AST) -> float:
    return scores.get(getattr(node, "lineno", 0), 0.0)


def _bound(node: ast.stmt) -> Iterable[str]:
    targets = (
        node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    )
    for target in targets:
        yield from used_names(target)


def _mentions(node: ast.AST, names: set[str]) -> bool:
    return (isinstance(node, ast.Name) and node.id in names) or (
        isinstance(node, ast.Attribute) and node.attr in names
    )


def facts(survey: Survey, source: Source) -> Facts:
    types: dict[tuple[int, str], frozenset[str]] = {}
    for path, line, name, kinds in survey.types:
        if path == source.path:
            types[(line, name)] = frozenset(kinds)
    holds = tuple((line, text, ef, ep) for path, line, text, ef, ep in survey.holds if path == source.path)
    wanted = dict.fromkeys(value for failure in survey.failures if (value := _expected(failure)))
    raises = dict.fromkeys(name for failure in survey.failures if (name := _raises(failure)))
    hints = frozenset(hint for failure in survey.failures for hint in differences(failure))
    factors = dict.fromkeys(text for failure in survey.failures for text in _factors(failure))
    return Facts(suspicion(survey, source), types, holds, tuple(wanted)[:4], tuple(raises), hints, tuple(factors)[:6])


def _factors(failure: Failure) -> Iterable[str]:
    """Return `/ 100` if a result is a hundred times the expected one; only round numbers."""
    if failure.compared is None or failure.compared[0] != "==":
        return
    try:
        got, wanted = (ast.literal_eval(text) for text in failure.compared[1:])
    except (ValueError, SyntaxError, MemoryError):
        return
    if type(got) in (int, float) and type(wanted) in (int, float) and got and wanted:
        for symbol, ratio in (("/", got / wanted), ("*", wanted / got)):
            if abs(ratio - round(ratio)) < 1e-9 and 2 <= abs(ratio) <= 10**6:
                yield f"{symbol} {round(ratio)}"
        if isinstance(got, int) and isinstance(wanted, int) and 2 <= abs(wanted - got) <= 1000:
            yield f"+ {wanted - got}" if wanted > got else f"- {got - wanted}"


def _expected(failure: Failure) -> str:
    """Return the literal that a comparison expected, if it is short and plain."""
    if failure.compared is None or failure.compared[0] != "==":
        return ""
    text = failure.compared[2]
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return ""
    return text if len(text) <= 12 and isinstance(value, int | float | str | list | tuple | dict | set | None) else ""


def _raises(failure: Failure) -> str:
    found = re.match(r"DID NOT RAISE (?:<class ')?(?:\w+\.)*(\w+)", failure.message)
    return found.group(1) if found else ""


def differences(failure: Failure) -> Iterable[str]:
    """Return how a result differs from the expected one."""
    if failure.error == "AssertionError" and failure.compared is None:
        yield "negated"
    if failure.error == "Failed" and "DID NOT RAISE" in failure.message:
        yield "no raise"
    if failure.error not in ("AssertionError", "Failed", "TestTimedOut", ""):
        yield f"raised {failure.error}"
    if failure.status == "timeout":
        yield "timeout"
    if failure.compared is None or failure.compared[0] not in ("==", "is"):
        return
    if failure.compared[1] == "None":
        yield "none"
    try:
        got, wanted = (ast.literal_eval(text) for text in failure.compared[1:])
    except (ValueError, SyntaxError, MemoryError):
        return
    yield from _compared(got, wanted)


def _compared(got: object, wanted: object) -> Iterable[str]:
    numbers = isinstance(got, int | float) and isinstance(wanted, int | float)
    if isinstance(got, bool) and isinstance(wanted, bool):
        yield "negated"
    elif numbers and isinstance(got, int | float) and isinstance(wanted, int | float):
        if abs(got - wanted) == 1:
            yield "one off"
        if got == -wanted:
            yield "sign"
        if type(got) is not type(wanted) or int(got) == int(wanted):
            yield "rounding"
    elif type(got) is not type(wanted):
        yield "other type"
    if isinstance(got, str) and isinstance(wanted, str):
        if got.lower() == wanted.lower():
            yield "case"
        if "".join(got.split()) == "".join(wanted.split()):
            yield "space"
    if isinstance(got, str | list | tuple) and isinstance(wanted, str | list | tuple):
        if len(got) < len(wanted):
            yield "missing"
        elif len(got) > len(wanted):
            yield "extra"
        elif sorted(map(repr, got)) == sorted(map(repr, wanted)):
            yield "order"
        if abs(len(got) - len(wanted)) == 1:
            yield "one off"
        if list(got) == list(wanted)[::-1]:
            yield "reversed"
    elif isinstance(got, dict | set) and isinstance(wanted, dict | set):
        if len(got) < len(wanted):
            yield "missing"
        elif len(got) > len(wanted):
            yield "extra"
