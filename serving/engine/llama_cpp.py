"""The embedded engine: llama.cpp's OpenAI-compatible server (`xllamacpp`) in a child process on a loopback port.

A process of its own keeps its threads, its crashes and its output out of the workflow's process.

What the defaults cost, measured with SmolLM2-135M on 2 idle cores: equal requests get bit-equal log-probabilities
only with one slot and without the prompt cache, because both change how a prompt is cut into batches (up to 0.3 nats
on a letter). More slots do not make prompts faster (about 340 tokens/s in all), only generation (1.6 times with 8).
With the prompt cache, a prompt costs only what follows the longest prefix that it shares with the one before."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import os
import secrets
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Self

from ramify.serving.engine.contract import ended_early, log_tail
from ramify.serving.errors import EngineFailed
from ramify.serving.stall_clock import StallAwareClock

CONTEXT = 4096  # tokens of a call's prompt and answer
MAX_THREADS = 8  # a model this small gains nothing from more
_START_TIMEOUT_S = 60.0
_STOP_S = 5.0


class LocalEngine:
    """Serves one GGUF file at `base_url`. An async context manager; entering raises EngineFailed if it does not
    start.

    slots: requests at once. context: tokens of prompt and answer for each of them.
    threads: by default the cores that this process may use, at most 8.
    prompt_cache: keep the prefix of the last prompt (see above).
    log: the file for llama.cpp's output; a temporary file by default.
    key: what clients must show, random by default: every page in the user's browser can reach a loopback port.
    """

    def __init__(
        self,
        model: Path,
        *,
        alias: str | None = None,
        slots: int = 1,
        context: int = CONTEXT,
        threads: int | None = None,
        prompt_cache: bool = False,
        log: Path | None = None,
        key: str | None = None,
    ) -> None:
        self.model = model
        self.alias = alias or model.stem
        self.slots = slots
        self.base_url = ""
        self.key = key or secrets.token_urlsafe(24)
        self._context = context
        self._threads = threads or min(len(os.sched_getaffinity(0)), MAX_THREADS)
        self._prompt_cache = prompt_cache
        self._log = log
        self._process: asyncio.subprocess.Process | None = None
        self._stack = contextlib.AsyncExitStack()

    @property
    def pid(self) -> int | None:
        """The engine's process id; None if it does not run."""
        return None if self._process is None or self._process.returncode is not None else self._process.pid

    async def __aenter__(self) -> Self:
        if importlib.util.find_spec("xllamacpp") is None:
            raise EngineFailed(
                "the local engine needs the package xllamacpp, which is not installed: "
                "run pip install 'ramify[local]', or use a server by --base-url"
            )
        if not self.model.is_file():
            raise EngineFailed(f"no weights at {self.model}: run ramify models pull, or use a server by --base-url")
        async with contextlib.AsyncExitStack() as stack:
            if self._log is None:
                self._log = Path(stack.enter_context(TemporaryDirectory(prefix="ramify-engine-"))) / "engine.log"
            stack.push_async_callback(self._stop)
            await self._start(self._log)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def ended(self) -> int:
        """Returns the exit status once the engine's process has ended."""
        if self._process is None:
            raise EngineFailed("the local engine was not started")
        return await self._process.wait()

    async def _start(self, log: Path) -> None:
        settings = {
            "parent": os.getpid(),
            "model": str(self.model),
            "alias": self.alias,
            "slots": self.slots,
            "context": self._context,
            "threads": self._threads,
            "prompt_cache": self._prompt_cache,
        }
        with log.open("ab") as output:  # append: after a restart, its last words before it died are still wanted
            self._process = process = await asyncio.create_subprocess_exec(
                sys.executable,
                *("-P", "-m", "ramify.serving.engine.llama_cpp_process", json.dumps(settings)),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=output,
                start_new_session=True,  # Ctrl-C goes to the workflow, which then stops its engine
            )
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(self.key.encode() + b"\n")  # other users can read a command line
        try:
            async with StallAwareClock().timeout(_START_TIMEOUT_S):
                address = (await process.stdout.readline()).decode().strip()
        except TimeoutError:
            raise EngineFailed(
                f"the local engine was not ready after {_START_TIMEOUT_S:g} s; it said last:\n{log_tail(log)}"
            ) from None
        if not address:
            status = await process.wait()
            raise EngineFailed(ended_early("the local engine", status, log))
        self.base_url = f"{address}/v1"

    async def _stop(self) -> None:
        process = self._process
        if process is None or process.returncode is not None:
            return
        assert process.stdin is not None
        process.stdin.close()
        try:
            async with asyncio.timeout(_STOP_S):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()
