"""Measure how long a step of a live vLLM engine takes, and write it as a step-time model.

    python benchmarks/profile_engine.py --base-url http://localhost:8000/v1 [--device H200] [--out steps.json]

The engine should do nothing else meanwhile. `benchmarks/goodput.py --steps` takes the file. The figures under "step"
are also what the vLLM plug-in takes as its option `step`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

import httpx

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.arguments import to_write  # noqa: E402
from benchmarks.replay.errors import ReplayError  # noqa: E402
from benchmarks.replay.fidelity.step_probe import HttpEndpoint, Plan, Profile, profile  # noqa: E402
from benchmarks.replay.inputs.step_times import Steps  # noqa: E402


def numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no list of whole numbers like 1,4,16") from error


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base-url", required=True, help="of an OpenAI-compatible vLLM, with its /v1")
    parser.add_argument("--out", type=to_write, default=Path("steps.json"), help="the file to write (steps.json)")
    parser.add_argument("--model", help="which of the server's models (the first that it lists)")
    parser.add_argument("--device", default="not told", help="what it runs on, for the file")
    parser.add_argument("--batches", type=numbers, default=(1, 4, 16, 32), help="requests at once (1,4,16,32)")
    parser.add_argument("--prompts", type=numbers, default=(64, 512, 1536), help="prompt tokens (64,512,1536)")
    parser.add_argument("--tokens", type=int, default=64, help="of each answer, when decoding is timed (64)")
    parser.add_argument("--api-key", default=os.environ.get("OPENAI_API_KEY"), help="($OPENAI_API_KEY)")
    parser.add_argument("--json", action="store_true", help="print one object")
    asked = parser.parse_args(arguments)
    try:
        found, name = asyncio.run(measure(asked))
    except ReplayError as error:
        print(f"profile_engine: {error}", file=sys.stderr)
        return 1
    day = datetime.now(UTC).date().isoformat()
    how = f"least squares over {len(found.spans)} probes; their mean error {found.error:.1%}"
    source = f"`benchmarks/profile_engine.py` of {asked.base_url}, {day}"
    Steps(found.step, name, asked.device, source, how).write(asked.out)
    if asked.json:
        step = asdict(found.step)
        print(json.dumps({"path": str(asked.out), "model": name, "error": found.error, "step": step}))
        return 0
    for term, value in asdict(found.step).items():
        print(f"{term:<16} {value:.4f}")
    print(f"mean error of {len(found.spans)} probes: {found.error:.1%}\nwritten to {asked.out}")
    return 0


async def measure(asked: argparse.Namespace) -> tuple[Profile, str]:
    plan = Plan(asked.batches, asked.prompts, asked.tokens)
    headers = {"Authorization": f"Bearer {asked.api_key}"} if asked.api_key else {}
    limits, base = httpx.Limits(max_connections=None), asked.base_url.rstrip("/") + "/"
    async with httpx.AsyncClient(base_url=base, headers=headers, timeout=600.0, limits=limits) as client:
        endpoint = await HttpEndpoint.find(client, asked.model)
        told = (lambda line: None) if asked.json else (lambda line: print(line, file=sys.stderr))
        return await profile(endpoint, plan, told), endpoint.model


if __name__ == "__main__":
    sys.exit(main())
