"""`--engine` and `--trace`: which engine answers, and how the workflow's deadline reaches it.

The trace has three sources: the run's journal (the tags that each call was sent with), the gateway (when it admitted
the call), and, with vLLM, its scheduler (each request's `extra_args` as it arrived).
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ramify.runtime.codec import codec
from ramify.runtime.records import LLMRecord, RunRecord
from ramify.serving.client import LLMClient
from ramify.serving.engine.contract import EngineKind, EngineSpec
from ramify.serving.gateway.server import LocalGateway
from ramify.serving.gateway.settings import GatewaySettings


@dataclass
class Served:
    """An engine behind a gateway of this process, for one run."""

    gateway: LocalGateway
    client: LLMClient
    moves: Path  # the log of vLLM's scheduler; other engines write none

    def trace(self, run: RunRecord, calls: Sequence[LLMRecord]) -> Iterator[str]:
        """Yield the path of the deadline: workflow, stage, call, engine."""
        gateway = self.gateway.gateway
        assert gateway is not None, "the gateway is gone"
        snapshot: Mapping[str, Any] = gateway.records.snapshot(run.id)
        admitted = _by_stage(snapshot["requests"], "tags")
        seen = _by_stage(self._arrivals(run.id), "extra_args")
        shown = "none" if run.deadline_s is None else f"{run.deadline_s:g} s"
        yield f"workflow {run.id}: deadline {shown}, {len(calls)} calls of the model"
        for stage, tags in _stages(calls):
            yield f"  stage {stage}: {tags['compound_width']} calls, sent with {_deadlines(tags)}"
            for call in admitted.get(stage, [])[:1]:
                yield f"    gateway: let in after {call['queue_s']:.3f} s, due in {call['deadline_s'] or 0:.1f} s"
            for arrival in seen.get(stage, [])[:1]:
                yield f"    engine:  extra_args {json.dumps(arrival['extra_args'])}"

    def _arrivals(self, run: str) -> list[Mapping[str, Any]]:
        lines = self.moves.read_text().splitlines() if self.moves.exists() else []
        events = [json.loads(line) for line in lines]
        return [e for e in events if "arrive" in e and e["extra_args"].get("compound_id") == run]


@asynccontextmanager
async def serving(
    engine: str, *, home: Path, model: str | None = None, reads_tags: bool = False
) -> AsyncIterator[Served]:
    """Start an engine and a gateway. `reads_tags`: a server at a URL gets the tags, too.

    Raises ValueError for an unknown engine, and ModelMissing or EngineFailed if it does not start.
    """
    with TemporaryDirectory(prefix="ramify-trace-") as folder:
        moves = Path(folder) / "moves.jsonl"
        spec = EngineSpec.parse(engine)
        settings = GatewaySettings(
            home=home,
            engines=(spec,),
            model=None if spec.kind is EngineKind.URL else model,
            trace=moves if spec.kind is EngineKind.VLLM else None,
            forward_xargs=reads_tags,
        )
        async with LocalGateway(settings) as gateway, LLMClient(gateway.base_url, model=model) as client:
            yield Served(gateway, client, moves)


def _stages(calls: Sequence[LLMRecord]) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Return the tags of each stage's first call, in order."""
    found: dict[int, Mapping[str, Any]] = {}
    for call in calls:
        tags = codec.decode(call.tags_json)
        found.setdefault(tags["compound_stage"], tags)
    return iter(sorted(found.items()))


def _by_stage(rows: Sequence[Mapping[str, Any]], field: str) -> dict[int, list[Mapping[str, Any]]]:
    found: dict[int, list[Mapping[str, Any]]] = {}
    for row in rows:
        found.setdefault(row[field].get("compound_stage", -1), []).append(row)
    return found


def _deadlines(tags: Mapping[str, Any]) -> str:
    said = {k: v for k, v in tags.items() if k.endswith(("_s", "_at")) and isinstance(v, int | float)}
    return ", ".join(f"{name}={value:.1f}" for name, value in said.items()) or "no deadline"
