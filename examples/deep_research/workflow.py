"""Deep research over a local corpus, with a deadline: what do these documents say about a question?

The question is split into queries. For each query a world is forked, in which the corpus is searched, the best
passages are read, and a note with its sources is written. Notes that found something are merged. Each is a file of
its own, so the merges never conflict. When little time is left, passages are quoted instead of summarised. The report
is written from the notes, and every sentence that it quotes is in the corpus.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from ramify import Sandbox, fork, llm, step, time_left, workflow
from ramify.serving.errors import DeadlineInfeasible, LLMTimeout

PASSAGE = 700  # characters
PASSAGES = 3  # for each query
ENOUGH_S = 15.0  # seconds that a summary and the report may take
WORD = re.compile(r"[A-Za-z][A-Za-z0-9-]{2,}")
STOP = frozenset(
    word
    for line in (
        "the and for are was were what which when where who why how does did with from that this these those about",
        "into not has have had its can may one two say says",
    )
    for word in line.split()
)


@dataclass(frozen=True)
class Passage:
    path: str
    text: str
    score: float


@dataclass(frozen=True)
class Note:
    """What one query found. `file` is its path in the world."""

    query: str
    file: str
    sources: tuple[str, ...]
    summed_up: bool


@dataclass(frozen=True)
class Report:
    text: str
    notes: tuple[Note, ...]
    late: bool  # some passages were quoted because little time was left


def words(text: str) -> list[str]:
    return [word.lower() for word in WORD.findall(text) if word.lower() not in STOP]


def passages_of(path: Path, name: str) -> list[tuple[str, str]]:
    """Split a document into pieces of whole paragraphs, each with the document's name."""
    pieces, now = [], ""
    for paragraph in path.read_text(errors="replace").split("\n\n"):
        if now and len(now) + len(paragraph) > PASSAGE:
            pieces.append((name, now))
            now = ""
        now = f"{now}\n\n{paragraph}".strip()[: 2 * PASSAGE]
    return [*pieces, (name, now)] if now else pieces


def best(query: str, pieces: list[tuple[str, str]]) -> list[Passage]:
    """Return the passages in which the rarest words of the query are densest (BM25)."""
    counted = [(name, text, Counter(words(text))) for name, text in pieces]
    mean = sum(sum(count.values()) for _, _, count in counted) / max(1, len(counted))
    found = []
    for name, text, count in counted:
        score = 0.0
        for word in set(words(query)):
            having = sum(word in other for _, _, other in counted)
            rarity = math.log(1 + (len(counted) - having + 0.5) / (having + 0.5))
            score += rarity * count[word] * 2.5 / (count[word] + 1.5 * (0.25 + 0.75 * sum(count.values()) / mean))
        found.append(Passage(name, text, round(score, 6)))
    return [passage for passage in sorted(found, key=lambda p: -p.score)[:PASSAGES] if passage.score > 0]


def said_best(query: str, text: str) -> str:
    """Return the line with most of the query's words."""
    return max(text.splitlines(), key=lambda line: len(set(words(line)) & set(words(query))))


@step
async def read(sandbox: Sandbox, query: str) -> Note | None:
    """Search the corpus and write a note; None if nothing was found for the query."""
    listed = await sandbox.run("find . -type f \\( -name '*.md' -o -name '*.txt' \\) | sort", check=True)
    names = [name.removeprefix("./") for name in listed.stdout.splitlines() if not name.startswith("./notes/")]
    found = best(query, [piece for name in names for piece in passages_of(sandbox.path / name, name)])
    if not found:
        return None
    left = time_left()
    summed_up = left is None or left > ENOUGH_S
    body = found[0].text
    if summed_up:
        shown = "\n\n".join(passage.text for passage in found)
        try:
            said = await llm.chat(f"{shown}\n\nIn two sentences, what does this say about {query}?", max_tokens=90)
            body = said.text.strip()
        except (LLMTimeout, DeadlineInfeasible):  # the model is too slow for the time left
            summed_up = False
    sources = tuple(dict.fromkeys(passage.path for passage in found))
    file = f"notes/{re.sub(r'[^a-z0-9]+', '-', query.lower()).strip('-')[:60]}.md"
    quotes = "".join(f"\n> {said_best(query, passage.text)}\n> ({passage.path})\n" for passage in found)
    text = f"# {query}\n\n{body}\n{quotes}"
    await sandbox.run(f"mkdir -p notes && cat > {file}", stdin=text, check=True)
    return Note(query, file, sources, summed_up)


@step
async def write_report(sandbox: Sandbox, question: str) -> str:
    notes = (await sandbox.run("cat notes/*.md 2>/dev/null || true")).stdout
    text = f"# {question}\n\n{notes or 'The corpus says nothing about it.'}"
    await sandbox.run("cat > report.md", stdin=text, check=True)
    return text


async def queries(question: str, breadth: int) -> list[str]:
    """Return the question, topics that the model suggests, and words of the question, until there are enough."""
    asked = await llm.propose(f"Name one topic to search for, to answer: {question}", n=breadth, max_tokens=12)
    suggested = [" ".join(words(text)[:4]) for text in asked]
    return list(dict.fromkeys([question, *filter(None, suggested), *words(question)]))[:breadth]


@workflow(deadline="2m")
async def research(question: str, breadth: int = 5) -> Report:
    """Answer a question from the text files of the workspace."""
    async with fork(await queries(question, breadth)) as branches:
        outcomes = await branches.map(read)
        answered = [outcome for outcome in outcomes if outcome.value is not None]
        for outcome in answered:
            await outcome.adopt(strategy="ours")  # two queries may write a note of the same name
    notes = tuple(outcome.value for outcome in answered)
    return Report(await write_report(question), notes, late=any(not note.summed_up for note in notes))
