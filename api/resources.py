"""What runs borrow while a `Runtime` is open: sandbox backends and model clients, started when first needed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from pathlib import Path

from ramify import paths
from ramify.fork_engine.store import SnapshotStore
from ramify.runtime.errors import RunError
from ramify.runtime.records import Settings
from ramify.sandboxes.contract import Backend
from ramify.sandboxes.select import NAMES, open_backend
from ramify.serving.client import LLMClient

GivenBackend = Backend | Callable[[SnapshotStore, Path], Backend]


class Resources:
    """An async context manager. One backend a name and one model a (server, model) pair, shared by all runs."""

    def __init__(
        self, home: Path, *, backend: GivenBackend | None, llm: LLMClient | None, api_key: str | None
    ) -> None:
        self._home = home
        self._given_backend = backend
        self._given_llm = llm
        self._api_key = api_key
        self._stack = AsyncExitStack()
        self._backends: dict[str, Backend] = {}
        self._lock = asyncio.Lock()
        self._models: dict[tuple[str | None, str | None], asyncio.Task[LLMClient]] = {}

    async def close(self) -> None:
        for starting in self._models.values():
            starting.cancel()
        # whoever asked for a model that did not start has seen its error
        await asyncio.gather(*self._models.values(), return_exceptions=True)
        await self._stack.aclose()

    async def backend(self, name: str, snapshots: SnapshotStore) -> Backend:
        """The backend of that name. Raises `BackendUnavailable` where it cannot run here."""
        async with self._lock:
            if name not in self._backends:
                self._backends[name] = await self._stack.enter_async_context(await self._make(name, snapshots))
            return self._backends[name]

    async def _make(self, name: str, snapshots: SnapshotStore) -> Backend:
        scratch = paths.worlds(self._home)
        if name in NAMES:
            return await asyncio.to_thread(open_backend, name, snapshots, scratch)
        if self._given_backend is None:
            raise RunError(
                f"no sandbox backend is called {name!r}: choose one of {', '.join(NAMES)}, "
                "or hand your own to Runtime(sandbox=…)"
            )
        return self._given_backend(snapshots, scratch) if callable(self._given_backend) else self._given_backend

    def warm(self, settings: Settings) -> None:
        """Begin to start the model; the first call waits for it."""
        key = (settings.base_url, settings.model)
        if key not in self._models:
            self._models[key] = asyncio.get_running_loop().create_task(self._start(settings))

    async def llm(self, settings: Settings) -> LLMClient:
        """The client of that server. Raises `ModelMissing` or `EngineFailed` where the embedded one cannot start."""
        key = (settings.base_url, settings.model)
        starting = self._models.get(key)
        if starting is not None and starting.done() and (starting.cancelled() or starting.exception() is not None):
            del self._models[key]  # it failed before: try again
        self.warm(settings)
        return await asyncio.shield(self._models[key])

    async def _start(self, settings: Settings) -> LLMClient:
        if self._given_llm is not None:
            return self._given_llm
        from ramify.serving.gateway.server import LocalGateway

        gateway = await self._stack.enter_async_context(
            LocalGateway(
                home=self._home, upstream=settings.base_url, upstream_key=self._api_key, model=settings.model
            )
        )
        return await self._stack.enter_async_context(LLMClient(gateway.base_url, model=settings.model))


def environment(values: Mapping[str, str]) -> tuple[str | None, str | None, str | None]:
    """What $RAMIFY_SANDBOX, $RAMIFY_BASE_URL and $RAMIFY_API_KEY say, None for what they do not."""
    names = ("RAMIFY_SANDBOX", "RAMIFY_BASE_URL", "RAMIFY_API_KEY")
    sandbox, base_url, api_key = (values.get(name) or None for name in names)
    return sandbox, base_url, api_key
