"""`ramify bench`: measuring engines."""

from __future__ import annotations

import asyncio
import os
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ramify.cli.console import say, say_json

if TYPE_CHECKING:
    from benchmarks.replay.fidelity.step_probe import Plan, Profile


@click.group("bench")
def bench_group() -> None:
    """Measure an engine.

    \b
    Example: ramify bench profile --base-url http://localhost:8000/v1
    """


@bench_group.command("profile")
@click.option("--base-url", required=True, metavar="URL", help="Of an OpenAI-compatible vLLM, with its /v1.")
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), default=Path("steps.json"), show_default=True)
@click.option("--model", help="Which of the server's.  [default: the first that it lists]")
@click.option("--device", default="not told", help="What it runs on, for the file.")
@click.option("--batches", default="1,4,16,32", show_default=True, help="Requests at once, when decoding is timed.")
@click.option("--prompts", default="64,512,1536", show_default=True, help="Prompt tokens; each within one step.")
@click.option("--tokens", default=64, show_default=True, help="Of each answer, when decoding is timed.")
@click.option("--api-key", envvar="OPENAI_API_KEY", help="[default: $OPENAI_API_KEY]")
@click.option("--json", "as_json", is_flag=True, help="One object.")
def profile_command(
    base_url: str,
    out: Path,
    model: str | None,
    device: str,
    batches: str,
    prompts: str,
    tokens: int,
    api_key: str | None,
    as_json: bool,
) -> None:
    """Measure how long a step of a live engine takes, and write it as a step-time model.

    The engine should have nothing else to do meanwhile. The file is what `benchmarks/goodput.py --steps` takes.

    \b
    Example: ramify bench profile --base-url http://localhost:8000/v1 --device H200 --out h200.json
    """
    from benchmarks.replay.fidelity.step_probe import Plan
    from benchmarks.replay.inputs.step_times import Steps

    if not (out.parent.is_dir() and os.access(out if out.exists() else out.parent, os.W_OK)):
        raise click.BadParameter(f"{out} cannot be written: is its folder there?", param_hint="--out")
    plan = Plan(_numbers(batches, "--batches"), _numbers(prompts, "--prompts"), tokens)
    found, name = asyncio.run(_measure(base_url, api_key, model, plan, quiet=as_json))
    day = datetime.now(UTC).date().isoformat()
    how = f"least squares over {len(found.spans)} probes; their mean error {found.error:.1%}"
    Steps(found.step, name, device, f"`ramify bench profile` of {base_url}, {day}", how).write(out)
    if as_json:
        say_json({"path": str(out), "model": name, "error": found.error, "step": asdict(found.step)})
        return
    for term, value in asdict(found.step).items():
        say(f"{term:<16} {value:.4f}")
    say(f"mean error of {len(found.spans)} probes: {found.error:.1%}")
    say(f"written to {out}")


async def _measure(
    base_url: str, api_key: str | None, model: str | None, plan: Plan, *, quiet: bool
) -> tuple[Profile, str]:
    import httpx

    from benchmarks.replay.fidelity.step_probe import HttpEndpoint, profile

    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(
        base_url=base_url.rstrip("/") + "/", headers=headers, timeout=600.0, limits=limits
    ) as client:
        endpoint = await HttpEndpoint.find(client, model)
        told = (lambda line: None) if quiet else (lambda line: say(line, err=True))
        return await profile(endpoint, plan, told), endpoint.model


def _numbers(text: str, option: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise click.BadParameter(f"{text!r} is no list of whole numbers like 1,4,16", param_hint=option) from error
