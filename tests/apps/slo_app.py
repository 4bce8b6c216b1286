"""Workflows that say more of their model calls than a deadline."""

from __future__ import annotations

from ramify import llm, slo, workflow


@workflow
async def answers(question: str) -> str:
    with slo(weight=3.0, think="20s"):
        drafts = await llm.propose(question, n=2)
    with slo(stream=True, last=True, first_token="1s", per_token="200ms"):
        return (await llm.chat(drafts[0])).text


@workflow
def answers_in_a_thread(question: str) -> str:
    with slo(weight=3.0, think="20s"):
        drafts = llm.propose(question, n=2)
    with slo(stream=True, last=True, first_token="1s", per_token="200ms"):
        return llm.chat(drafts[0]).text  # type: ignore[index, attr-defined]  # blocking in a thread: decision 003
