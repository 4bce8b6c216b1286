"""The model's prompts. They are short: the model is small, and every token takes time on a CPU."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .edits import Change, Edit
from .localise import suspicion
from .ranking import Candidate
from .source import Source, first_line
from .suite import Survey

SYSTEM = "You fix bugs in Python code."
OPTIONS = 6  # lettered choices of a question: a small model cannot tell more apart
_CONTEXT = 24  # lines of a function that are shown


@dataclass(frozen=True, slots=True)
class Place:
    """The line that the model is asked to rewrite."""

    path: str
    line: int
    text: str


def suspect(survey: Survey) -> Place | None:
    """Return the most suspicious simple line; the first one of several."""
    best: tuple[float, Place] | None = None
    for path, text in survey.sources.items():
        source = Source(path, text)
        scores = suspicion(survey, source)
        for node in ast.walk(source.tree):
            if not isinstance(node, ast.stmt) or isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Import):
                continue
            score = scores.get(node.lineno, 0.0)
            if score and (best is None or score > best[0]) and node.lineno == _last_line(node):
                best = score, Place(path, node.lineno, source.line(node.lineno))
    return best[1] if best else None


def _last_line(node: ast.stmt) -> int:
    if isinstance(node, ast.If | ast.While):
        return node.test.end_lineno or node.lineno
    if isinstance(node, ast.For):
        return node.iter.end_lineno or node.lineno
    return node.end_lineno or node.lineno


def situation(survey: Survey, path: str, line: int) -> str:
    """Describe the function around a line, and one failure."""
    source = Source(path, survey.sources[path])
    inside = [f for f in source.functions if first_line(f) <= line <= (f.end_lineno or f.lineno)]
    start, end = 1, len(survey.sources[path].splitlines())
    if inside:
        start, end = first_line(inside[-1]), inside[-1].end_lineno or end
    start = max(start, min(line - _CONTEXT // 2, end - _CONTEXT))
    shown = "\n".join(source.line(number) for number in range(start, min(end, start + _CONTEXT) + 1))
    return f"This Python code has a bug.\n\n{shown}\n\n{complaint(survey)}"


def complaint(survey: Survey) -> str:
    failure = survey.failures[0]
    test = failure.test.rsplit("::", 1)[-1]
    if failure.compared:
        _, got, wanted = failure.compared
        return f"{test} fails: it gives {got[:80]} instead of {wanted[:80]}."
    if failure.status == "timeout":
        return f"{test} fails: it does not end."
    return f"{test} fails: {failure.error}: {failure.message[:100]}".rstrip(": ") + "."


def rewrite_question(survey: Survey, place: Place) -> str:
    return (
        f"{situation(survey, place.path, place.line)}\n\nThis line is wrong:\n{place.text.strip()}\n\n"
        "Write the corrected line only, without explanation."
    )


def read_rewrites(survey: Survey, place: Place, answers: Sequence[str]) -> list[Edit]:
    """Return the model's lines as edits. Lines that do not parse are removed later."""
    source = Source(place.path, survey.sources[place.path])
    start = source.offset(place.line, 0)
    indent = place.text[: len(place.text) - len(place.text.lstrip())]
    lines = dict.fromkeys(line for answer in answers for line in _code_lines(answer))
    return [
        Edit(place.path, "model", place.line, (Change(start, start + len(place.text), place.text, indent + line),))
        for line in lines
        if line != place.text.strip()
    ]


def _code_lines(answer: str) -> Iterator[str]:
    """Return the first line of an answer that can be code."""
    for line in answer.splitlines():
        text = line.strip().strip("`").strip()
        if text and text != "python" and not re.match(r"[A-Z][a-z]+ [a-z]|#", text):
            yield text
            return


def choice_question(survey: Survey, head: Sequence[Candidate]) -> str:
    return f"{situation(survey, head[0].edit.path, head[0].edit.line)}\n\nWhich change fixes the bug?"


def options(head: Sequence[Candidate]) -> list[str]:
    return [candidate.shown.split(": ", 1)[-1][:120] for candidate in head]
