from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest


def test_serve_prints_its_address_and_stops_at_ctrl_c(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "ramify.cli.main", "--home", str(tmp_path), "serve", "--port", "0"]
    process = subprocess.Popen([*command, "--base-url", "http://127.0.0.1:9/v1"], stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    line = process.stderr.readline()
    assert line.startswith("serving http://127.0.0.1:9/v1 at http://127.0.0.1:")
    assert httpx.get(line.rsplit(" ", 1)[1].strip() + "/nothing-here", trust_env=False).status_code == 404
    process.send_signal(signal.SIGINT)
    _, rest = process.communicate(timeout=60)
    assert (process.returncode, "Traceback" in rest) == (0, False)


@pytest.mark.usefixtures("no_weights")
def test_without_weights_it_says_how_to_get_them(ramify: Any) -> None:
    said = ramify("serve", "--port", "0")
    assert (said.status, said.out) == (1, "")
    assert "ramify models pull" in said.err


def test_every_option_is_a_setting(ramify: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from ramify.serving.engine.contract import EngineSpec
    from ramify.serving.gateway import server
    from ramify.serving.gateway.settings import GatewaySettings, Placement
    from ramify.serving.protocol.agent_hints import HintDialect

    seen: list[GatewaySettings] = []

    async def serve(settings: GatewaySettings, **_: object) -> None:
        seen.append(settings)

    monkeypatch.setattr(server, "serve", serve)
    flags = {
        "--engine": "vllm", "--host": "::1", "--port": "8001", "--api-key": "theirs", "--client-key": "ours",
        "--allow-host": "Box.lan:80",
        "--model": "m", "--slots": "3", "--policy": "concord",
        "--policy-option": "best_effort_s=7.5", "--placement": "power-of-k", "--placement-k": "3",
        "--hang": "7", "--hang-whole": "70", "--hang-restart": "45", "--drain": "5",
        "--engine-log": str(tmp_path / "e.log"), "--vllm-arg": "--x=1", "--trace": str(tmp_path / "t.jsonl"),
    }  # fmt: skip
    words = [word for pair in flags.items() for word in pair]
    more = ("--engine", "local", "--engine", "http://127.0.0.1:9/v1", "--engine-hints", "dynamo")
    assert (
        ramify(
            "serve",
            *words,
            *more,
            "--forward-tags",
            "--resume",
            "--prompt-cache",
            "--no-analyzer",
        ).status
        == 0
    )
    (settings,) = seen
    assert settings == GatewaySettings(
        home=settings.home,
        engines=tuple(map(EngineSpec.parse, ("vllm", "local", "http://127.0.0.1:9/v1"))),
        engine_hints=HintDialect.DYNAMO,
        upstream_key="theirs",
        model="m",
        slots=3,
        host="::1",
        port=8001,
        api_keys=("ours",),
        allow_hosts=("Box.lan:80",),
        forward_xargs=True,
        can_resume=True,
        prompt_cache=True,
        policy="concord",
        policy_options={"best_effort_s": 7.5},
        placement=Placement.POWER_OF_K,
        placement_k=3,
        hang_s=7.0,
        whole_s=70.0,
        restart_s=45.0,
        drain_s=5.0,
        engine_log=tmp_path / "e.log",
        analyzer=False,
        vllm_args=("--x=1",),
        trace=tmp_path / "t.jsonl",
    )
    ramify("serve")
    whole = (seen[-1].hang_s, seen[-1].whole_s, seen[-1].restart_s, seen[-1].drain_s, seen[-1].analyzer)
    assert whole == (120.0, None, None, 30.0, True)
    assert (seen[-1].placed, seen[-1].placement_k) == (Placement.ONE_QUEUE, None)
    assert ramify("serve", "--host", "0.0.0.0", "--insecure-no-keys").status == 0 and seen[-1].insecure_no_keys
    assert ramify("serve", "--engine", "vllm", "--allow-field", "vllm_xargs.x").status == 0
    assert seen[-1].allow_fields == ("vllm_xargs.x",)
    assert seen[-1].replicas is None
    for said, means in (("1:4", (1, 4)), ("2", (2, 2))):
        assert ramify("serve", "--replicas", said).status == 0 and seen[-1].replicas == means
    ramify("serve", "--policy", "calm-thesis")
    assert seen[-1].placed is Placement.POWER_OF_K, "as the thesis has it"
    assert ramify("serve", "--policy", "calm-thesis", "--placement", "one-queue").status == 0
    assert seen[-1].placed is Placement.ONE_QUEUE
    assert "--placement power-of-k" in ramify("serve", "--placement-k", "3").err


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("--api-key", "k"), "engines at URLs"),
        (("--forward-tags",), "engines at URLs"),
        (("--engine-hints", "vllm"), "engines at URLs"),
        (("--allow-field", "priority"), "engines at URLs or vllm"),
        (("--vllm-arg=--x",), "vllm"),
        (("--trace", "t.jsonl"), "vllm"),
        (("--engine", "vllm", "--prompt-cache"), "local"),
        (("--base-url", "http://127.0.0.1:9/v1", "--model", "m"), "local or vllm"),
        (("--base-url", "http://127.0.0.1:9/v1", "--engine-log", "l"), "local or vllm"),
        (("--base-url", "http://127.0.0.1:9/v1", "--hang-restart", "9"), "local or vllm"),
        (("--placement", "power-of-k"), "several engines"),
        (("--engine", "vllm", "--resume"), "engines at URLs or local"),
    ],
)
def test_an_option_that_no_engine_reads_is_refused(ramify: Any, words: tuple[str, ...], named: str) -> None:
    said = ramify("serve", "--port", "0", *words)
    assert said.status == 2 and f"is for {named}, and there is" in said.err


def test_a_key_in_the_environment_is_for_other_commands_too(ramify: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from ramify.serving.gateway import server

    async def serve(settings: object, **_: object) -> None:
        pass

    monkeypatch.setattr(server, "serve", serve)
    monkeypatch.setenv("RAMIFY_API_KEY", "theirs")
    assert ramify("serve").status == 0


@pytest.mark.parametrize("name", ["prioritty", "request_id", "vllm_xargs", "vllm_xargs.", "vllm_xargs.slo_ttft_s"])
def test_a_field_that_cannot_be_allowed_is_refused(ramify: Any, name: str) -> None:
    said = ramify("serve", "--port", "0", "--allow-field", name)
    assert said.status == 2 and repr(name) in said.err and "vllm_xargs.NAME" in said.err


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("--hang-whole", "1"), "--hang-whole is 1 and --hang is 120"),
        (("--client-key", "a", "--client-key", "b", "--prompt-cache"), "a single key (--client-key)"),
        (("--client-key", "a", "--insecure-no-keys"), "--insecure-no-keys has no effect beside"),
        (("--base-url", "local"), "'local' is not a base URL"),
        (("--base-url", ""), "is not a base URL"),
        (("--api-key", "", "--base-url", "http://127.0.0.1:9/v1"), "--api-key is empty"),
    ],
)
def test_messages_about_settings_name_the_options(ramify: Any, words: tuple[str, ...], named: str) -> None:
    said = ramify("serve", "--port", "0", *words)
    assert said.status == 2 and named in " ".join(said.err.split())


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("--replicas", "many"), "'many' is not LEAST:MOST"),
        (("--replicas", "3:1"), "3:1"),
        (("--replicas", "1:2", "--engine", "http://127.0.0.1:9/v1"), "not ours to start"),
        (("--replicas", "1:2", "--engine", "vllm"), "a device for each of 2 (--device)"),
        (("--device", "0"), "(--device) is for vllm"),
        (("--replicas", "1:2", "--placement", "power-of-k"), "one-queue"),
    ],
)
def test_replicas_that_cannot_change_are_refused(ramify: Any, words: tuple[str, ...], named: str) -> None:
    said = ramify("serve", "--port", "0", *words)
    assert said.status == 2 and named in said.err


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_without_keys_it_does_not_listen_beyond_this_machine(ramify: Any, host: str) -> None:
    said = ramify("serve", "--port", "0", "--base-url", "http://127.0.0.1:9/v1", "--host", host)
    assert said.status == 2 and "--client-key" in said.err and "--insecure-no-keys" in said.err


@pytest.mark.parametrize("key", ["", " ", "a b", "schlüssel", "a\n"])
def test_a_key_that_no_client_could_show_is_refused(ramify: Any, key: str) -> None:
    said = ramify("serve", "--client-key", "good", "--client-key", key)
    assert said.status == 2 and "--client-key" in said.err


def test_a_name_that_no_client_could_send_is_refused(ramify: Any) -> None:
    said = ramify("serve", "--port", "0", "--base-url", "http://127.0.0.1:9/v1", "--allow-host", "http://x/")
    assert said.status == 2 and "is not a host name" in said.err


def test_serve_warns_if_there_are_no_keys(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "ramify.cli.main", "--home", str(tmp_path), "serve", "--port", "0"]
    command += ["--base-url", "http://127.0.0.1:9/v1", "--host", "0.0.0.0", "--insecure-no-keys"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    assert process.stderr.readline().startswith("serving ")
    assert process.stderr.readline().startswith(
        "WARNING: no client keys are set: everybody who reaches http://0.0.0.0:"
    )
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 0


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("goodput", "'goodput' is not NAME=VALUE"),
        ("=token", "'=token'"),
        ("nothing=1", "no option nothing"),
        ("goodput=cake", "'cake'"),
    ],
)
def test_unknown_policy_option_is_refused(ramify: Any, text: str, named: str) -> None:
    said = ramify("serve", "--port", "0", "--base-url", "http://127.0.0.1:9/v1", "--policy-option", text)
    assert said.status == 2 and named in said.err


def test_a_port_that_is_taken(ramify: Any) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = ramify("serve", "--port", port, "--base-url", "http://127.0.0.1:9/v1")
    assert said.status == 1
    assert str(port) in said.err
    assert os.linesep not in said.err.strip()


def test_unusable_home_is_reported_with_a_remedy(ramify: Any, tmp_path: Path) -> None:
    pytest.importorskip("sklearn", reason="needs the extra ramify[serve]")
    (tmp_path / "file").touch()
    said = ramify("--home", tmp_path / "file" / "home", "serve", "--port", "0", "--engine", "http://127.0.0.1:9/v1")
    assert said.status == 1
    assert "analyzer cannot keep what it learns" in said.err and "--no-analyzer" in said.err
