"""Deep research with a scripted model: notes in forks, merged; quotes where the time is up."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from examples.deep_research.workflow import best, passages_of, research
from ramify import Runtime
from ramify.serving.client import LLMClient
from ramify.serving.testing import ScriptedModel
from ramify.serving.types import ChatRequest

CORPUS = {
    "whales.md": "Blue whales eat krill.\n\nA blue whale's heart weighs 180 kg.\n\nWhales sleep with half a brain.",
    "deep/fish.txt": "Salmon swim up rivers to spawn.\n\nEels do the opposite: they spawn in the sea.",
    "notes.bin": "whales whales whales",
}


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    folder = tmp_path / "corpus"
    for name, text in CORPUS.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def model(request: ChatRequest) -> str:
    said = request.messages[-1].content
    if "Name one topic" in said:
        return ["krill", "eels spawn", "submarines"][(request.seed or 0) % 3]
    return f"SUMMARY OF {len(said)}"


class TooSlow(ScriptedModel):
    """A gateway that refuses summaries: they could not be there in time."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if b"In two sentences" in await request.aread():
            error = {"message": "too late", "code": "deadline_infeasible", "earliest_feasible_s": 900.0}
            return httpx.Response(422, json={"error": error}, request=request)
        return await super().handle_async_request(request)


@pytest.mark.parametrize("sandbox", ["copy", pytest.param("namespaces", marks=pytest.mark.linux_ns)])
async def test_what_is_found_is_merged(home: Path, corpus: Path, sandbox: str) -> None:
    client = LLMClient("http://model.test/v1", transport=ScriptedModel(model))
    async with client, Runtime(home=home, sandbox=sandbox, llm=client) as runtime:
        report = await runtime.run(research, "What do whales eat?", 4, workspace=corpus)
        changed = sorted(change.path for change in await runtime.changes())
        files = [note.file for note in report.notes]
    assert files == ["notes/what-do-whales-eat.md", "notes/krill.md", "notes/eels-spawn.md"]  # none on submarines
    assert changed == sorted([*files, "notes", "report.md"])
    assert not report.late
    assert report.text.count("SUMMARY OF") == 3
    assert "> Blue whales eat krill." in report.text
    assert report.notes[2].sources == ("deep/fish.txt",)


async def test_what_there_is_no_time_for_is_quoted(home: Path, corpus: Path) -> None:
    client = LLMClient("http://model.test/v1", transport=ScriptedModel(model))
    async with client, Runtime(home=home, sandbox="copy", llm=client) as runtime:
        report = await runtime.run(research, "What do whales eat?", 2, workspace=corpus, deadline="10s")
    assert report.late
    assert "SUMMARY" not in report.text
    assert "Blue whales eat krill." in report.text


async def test_what_the_model_is_too_slow_for_is_quoted(home: Path, corpus: Path) -> None:
    client = LLMClient("http://model.test/v1", transport=TooSlow(model))
    async with client, Runtime(home=home, sandbox="copy", llm=client) as runtime:
        report = await runtime.run(research, "What do whales eat?", 1, workspace=corpus)
    assert report.late
    assert "Blue whales eat krill." in report.text


def test_rare_words_count_more(tmp_path: Path) -> None:
    pieces = [("a", "the whale and the krill"), ("b", "the whale " * 5), ("c", "something else altogether")]
    assert [passage.path for passage in best("whale krill", pieces)] == ["a", "b"]
    assert best("nothing of it", pieces) == []


def test_a_document_is_cut_at_its_paragraphs(tmp_path: Path) -> None:
    path = tmp_path / "long.md"
    path.write_text("\n\n".join(f"paragraph {n} " + "x" * 300 for n in range(6)))
    pieces = passages_of(path, "long.md")
    assert len(pieces) == 3
    assert all(text.startswith("paragraph") for _, text in pieces)
