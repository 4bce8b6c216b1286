"""`ramify serve`: the gateway and its engines."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from ramify.cli.console import pass_home, run_async, say
from ramify.cli.time_options import Seconds
from ramify.inspect.home import Home

if TYPE_CHECKING:
    from ramify.serving.policy.registry import OptionValue


@click.command("serve")
@click.option(
    "--engine",
    "engines",
    metavar="local|vllm|URL",
    multiple=True,
    help="The engine: the embedded model, vLLM with Ramify's scheduler, or any OpenAI-compatible server. "
    "Repeatable: each engine is a replica.  [default: local]",
)
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="The address to listen on. One that other machines reach needs --client-key.",
)
@click.option(
    "--port", type=click.IntRange(0, 65535), default=8080, show_default=True, help="The port; 0: any free one."
)
@click.option("--base-url", help="The same as --engine URL.")
@click.option(
    "--api-key", envvar="RAMIFY_API_KEY", help="The API key for engines at URLs.  [default: $RAMIFY_API_KEY]"
)
@click.option(
    "--client-key",
    "client_keys",
    envvar="RAMIFY_CLIENT_KEYS",
    multiple=True,
    help="Only accept clients with this key. Repeatable.  [default: $RAMIFY_CLIENT_KEYS, separated by spaces]",
)
@click.option(
    "--allow-host",
    "allow_hosts",
    metavar="NAME",
    multiple=True,
    help="Accept another host name for the gateway, such as host.docker.internal. Repeatable.",
)
@click.option(
    "--allow-origin",
    "allow_origins",
    metavar="ORIGIN",
    multiple=True,
    help="Let web pages of this site call the gateway, such as http://localhost:3000 (CORS). Repeatable.",
)
@click.option(
    "--allow-field",
    "allow_fields",
    metavar="NAME",
    multiple=True,
    help="Let clients send engines a field that reaches beyond their own call, such as priority, or an entry of "
    "vllm_xargs, as in --allow-field vllm_xargs.ngram_size. Repeatable.",
)
@click.option(
    "--insecure-no-keys",
    is_flag=True,
    help="Allow an address other than loopback without keys: everybody who reaches it can use the engine.",
)
@click.option(
    "--model",
    help="The model of local and vllm: a name from `ramify models ls` or a GGUF file; for vllm also a Hugging Face "
    "folder or model id.",
)
@click.option(
    "--replicas",
    metavar="LEAST:MOST",
    help="Replicas of local or vllm, as many as the load needs, as in --replicas 1:4.  [default: 1]",
)
@click.option(
    "--device",
    "devices",
    metavar="DEVICE",
    multiple=True,
    help="What a vllm may use: a GPU (0), several (0,1), or cores (0-7) if it is for CPUs. Give one for each vllm.",
)
@click.option("--slots", type=click.IntRange(min=1), help="How many calls each engine runs at once.")
@click.option(
    "--policy",
    default="concord",
    show_default=True,
    help="The scheduling policy: concord; andes, for streams alone; edf, earliest deadline first; calm-thesis.",
)
@click.option(
    "--policy-option",
    "policy_options",
    metavar="NAME=VALUE",
    multiple=True,
    help="Set an option of the policy, as in --policy-option goodput=token. Repeatable.",
)
@click.option(
    "--placement",
    type=click.Choice(["one-queue", "power-of-k"]),
    help="Where calls wait if there are several replicas: in one queue for all, or in the queues of K replicas each."
    "  [default: one-queue; with calm-thesis power-of-k]",
)
@click.option("--placement-k", type=click.IntRange(min=1), help="The K of --placement power-of-k.  [default: 2]")
@click.option(
    "--forward-tags", is_flag=True, help="Pass Ramify's tags on to engines at URLs, with the remaining deadlines."
)
@click.option(
    "--resume",
    "can_resume",
    is_flag=True,
    help="Running streams may be preempted for urgent calls and resumed later.",
)
@click.option("--engine-hints", type=click.Choice(["dynamo", "vllm"]),
              help="Engines at URLs read hints about agents: Dynamo's, or those proposed for vLLM.")  # fmt: skip
@click.option(
    "--prompt-cache",
    is_flag=True,
    help="local keeps its prompt cache from one call to the next: faster, but equal calls may differ slightly.",
)
@click.option("--hang", "hang_s", type=Seconds(min=0.1), default=120.0, show_default=True, metavar="SECONDS",
              help="An engine that sends nothing on a stream for this long is considered hung.")  # fmt: skip
@click.option("--hang-whole", "whole_s", type=Seconds(min=0.1), metavar="SECONDS",
              help="The same for answers that are not streamed; at least --hang.  [default: 600]")  # fmt: skip
@click.option("--hang-restart", "restart_s", type=Seconds(min=1), metavar="SECONDS",
              help="Restart local and vllm if they are silent for this long.  [default: 60]")  # fmt: skip
@click.option("--keepalive", "keepalive_s", type=Seconds(min=0.1), metavar="SECONDS",
              help="Send a comment on a stream that is silent for this long: proxies would end it.")  # fmt: skip
@click.option("--pace", is_flag=True, help="Send the text of calls of the class stream at reading speed.")
@click.option("--drain", "drain_s", type=Seconds(min=0), default=30.0, show_default=True, metavar="SECONDS",
              help="How long to wait for calls in progress when stopping.")  # fmt: skip
@click.option(
    "--analyzer/--no-analyzer",
    default=True,
    show_default=True,
    help="Predict the lengths of answers, in a separate process that learns from them.",
)
@click.option("--log/--no-log", default=True, show_default=True, help="Write a JSON line for each call to stderr.")
@click.option(
    "--engine-log",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write the output of local and vllm to this file.",
)
@click.option(
    "--vllm-arg",
    "vllm_args",
    metavar="ARGUMENT",
    multiple=True,
    help="An argument for vLLM, as in --vllm-arg=--max-model-len=8192. Repeatable.",
)
@click.option(
    "--trace",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Record the policy's decisions inside vLLM in this file.",
)
@pass_home
def serve_command(
    home: Home,
    engines: tuple[str, ...],
    host: str,
    port: int,
    base_url: str | None,
    api_key: str | None,
    client_keys: tuple[str, ...],
    allow_hosts: tuple[str, ...],
    allow_origins: tuple[str, ...],
    allow_fields: tuple[str, ...],
    insecure_no_keys: bool,
    model: str | None,
    replicas: str | None,
    devices: tuple[str, ...],
    slots: int | None,
    policy: str,
    policy_options: tuple[str, ...],
    placement: str | None,
    placement_k: int | None,
    forward_tags: bool,
    can_resume: bool,
    engine_hints: str | None,
    prompt_cache: bool,
    hang_s: float,
    whole_s: float | None,
    restart_s: float | None,
    keepalive_s: float | None,
    pace: bool,
    drain_s: float,
    analyzer: bool,
    log: bool,
    engine_log: Path | None,
    vllm_args: tuple[str, ...],
    trace: Path | None,
) -> None:
    """Serve an OpenAI-compatible API that orders calls by their deadlines.

    The line that it prints on stderr ends with its address, for clients and for `ramify run --base-url`.

    Ctrl-C stops accepting calls and waits for those in progress; a second one aborts them.

    \b
    Example: ramify serve --port 8000
    """
    from ramify.serving.engine.contract import EngineKind, EngineSpec
    from ramify.serving.errors import BadSettings, Exposed, ScalingError
    from ramify.serving.gateway.server import serve
    from ramify.serving.gateway.settings import GatewaySettings, Placement
    from ramify.serving.http_guard import stays_here
    from ramify.serving.policy.registry import UnknownPolicy
    from ramify.serving.protocol.agent_hints import HintDialect

    named = engines or (() if base_url is not None else ("local",))
    try:
        specs = tuple(EngineSpec.parse(name) for name in named)
        if base_url is not None:
            specs = (*specs, EngineSpec.at(base_url))
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    if _from_environment("api_key") and all(spec.kind is not EngineKind.URL for spec in specs):
        api_key = None  # it is for other commands
    shown = " and ".join(spec.shown for spec in specs)

    def ready(url: str) -> None:
        say(f"serving {shown} at {url}", err=True)
        if stays_here(host):
            if insecure_no_keys:
                say(f"--insecure-no-keys is not needed: only this machine reaches {host}", err=True)
        elif not client_keys:
            say(f"WARNING: no client keys are set: everybody who reaches {url} can use the engine", err=True)

    try:
        settings = GatewaySettings(
            home=home.folder,
            engines=specs,
            upstream_key=api_key,
            model=model,
            replicas=None if replicas is None else _replicas(replicas),
            devices=devices,
            slots=slots,
            host=host,
            port=port,
            api_keys=client_keys,
            allow_hosts=allow_hosts,
            allow_origins=allow_origins,
            allow_fields=allow_fields,
            insecure_no_keys=insecure_no_keys,
            forward_xargs=forward_tags,
            can_resume=can_resume,
            engine_hints=None if engine_hints is None else HintDialect(engine_hints),
            prompt_cache=prompt_cache,
            policy=policy,
            policy_options=dict(map(_option, policy_options)),
            placement=None if placement is None else Placement(placement),
            placement_k=placement_k,
            hang_s=hang_s,
            whole_s=whole_s,
            restart_s=restart_s,
            keepalive_s=keepalive_s,
            pace=pace,
            drain_s=drain_s,
            engine_log=engine_log,
            analyzer=analyzer,
            vllm_args=vllm_args,
            trace=trace,
        )
        run_async(serve(settings, log=sys.stderr if log else None, ready=ready))
    except (UnknownPolicy, BadSettings, Exposed, ScalingError) as error:
        raise click.UsageError(_with_options(str(error))) from error


_SETTING = re.compile(r"`(\w+)`")
_PARAMETERS = {"upstream_key": "api_key", "api_keys": "client_keys", "forward_xargs": "forward_tags"}


def _with_options(message: str) -> str:
    """A message about settings, with the options that they are here."""
    options = {one.name: one.opts[0] for one in click.get_current_context().command.params}
    return _SETTING.sub(lambda found: options.get(_PARAMETERS.get(found[1], found[1]), found[0]), message)


def _from_environment(name: str) -> bool:
    return click.get_current_context().get_parameter_source(name) is ParameterSource.ENVIRONMENT


def _replicas(text: str) -> tuple[int, int]:
    """The least and the most replicas. Raises UsageError."""
    least, found, most = text.partition(":")
    try:
        return int(least), int(most if found else least)
    except ValueError:
        raise click.UsageError(f"--replicas {text!r} is not LEAST:MOST, such as 1:4") from None


def _option(text: str) -> tuple[str, OptionValue]:
    """A name and its value: JSON, else text. Raises UsageError."""
    name, found, value = text.partition("=")
    if not found or not name:
        raise click.UsageError(f"--policy-option {text!r} is not NAME=VALUE")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value
