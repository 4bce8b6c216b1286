"""Sandbox backends and model clients that the runs of a `Runtime` share, each started when it is first needed; and
which of them a `Runtime` names, and with which a run is resumed (`ChosenSettings`)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit
from urllib.request import getproxies, proxy_bypass

from ramify import paths
from ramify.fork_engine.store import SnapshotStore
from ramify.fork_engine.types import Snapshot, SnapshotId
from ramify.open_bucket import OpenBucket
from ramify.runtime.durations import shown
from ramify.runtime.errors import RunError
from ramify.runtime.records import Settings
from ramify.runtime.worlds.recovery import Fetch
from ramify.sandboxes.contract import Backend, Hiding
from ramify.sandboxes.selection import NAMES, open_backend
from ramify.serving.client import LLMClient
from ramify.serving.errors import LLMUnavailable

_REACH_S = 3.0

BackendChoice = Backend | Callable[[SnapshotStore, Path], Backend]


_HIDDEN = "***@"


def without_secrets(address: str) -> str:
    """A model's address as runs store it: `***` in place of user and password, no query.

    Raises `RunError` for an address whose secret parts cannot be identified.
    """
    try:
        parts = urlsplit(address)
        _ = parts.port
    except ValueError:
        raise RunError(
            "the model's address (base_url, --base-url, $RAMIFY_BASE_URL) has no readable host or port: in a user "
            "or password, write / as %2F, ? as %3F, # as %23, and other letters than ASCII as their UTF-8 bytes"
        ) from None  # the message shows no part of the address: it may hold a password
    if "@" in address and not parts.netloc:
        raise RunError(
            "the model's address (base_url, --base-url, $RAMIFY_BASE_URL) does not begin with http:// or https://"
        )
    _, at, host = parts.netloc.rpartition("@")
    if not (at or parts.query or parts.fragment):
        return address
    return urlunsplit((parts.scheme, f"{_HIDDEN}{host}" if at else host, parts.path, "", ""))


class Resources:
    """An async context manager: one backend per name, one model client per (server, model), shared by all runs.

    `address`: the model server's address as given, secrets included; settings hold it `without_secrets`.
    """

    def __init__(
        self,
        home: Path,
        *,
        backend: BackendChoice | None,
        llm: LLMClient | None,
        address: str | None,
        api_key: str | None,
        private: Sequence[Path] = (),
    ) -> None:
        self._home = home
        self._private = private or (home,)  # hidden from sandboxes
        self._given_backend = backend
        self._given_llm = llm
        self._address = address
        self._api_key = api_key
        self._stack = AsyncExitStack()
        self._backends: dict[str, Backend] = {}
        self._lock = asyncio.Lock()
        self.bucket: OpenBucket | None = None
        self._models: dict[tuple[str | None, str | None], asyncio.Task[LLMClient]] = {}

    async def close(self) -> None:
        for starting in self._models.values():
            starting.cancel()
        # an error at the start was raised to whoever asked for the model
        await asyncio.gather(*self._models.values(), return_exceptions=True)
        await self._stack.aclose()

    async def backend(self, name: str, snapshots: SnapshotStore) -> Backend:
        """The backend of that name. Raises `BackendUnavailable` if it cannot run here."""
        async with self._lock:
            if name not in self._backends:
                backend = await self._make(name, snapshots)
                if isinstance(backend, Hiding):
                    backend.hide(*self._private)
                self._backends[name] = await self._stack.enter_async_context(backend)
            return self._backends[name]

    async def _make(self, name: str, snapshots: SnapshotStore) -> Backend:
        scratch, given = paths.worlds(self._home), self._given_backend
        ours = given is None or getattr(given, "name", None) != name  # a subclass of ours may keep its name
        if ours and name in NAMES:
            return await asyncio.to_thread(open_backend, name, snapshots, scratch)
        self.require_backend(name)
        assert given is not None
        return given(snapshots, scratch) if callable(given) else given

    def require_backend(self, name: str) -> None:
        """Raise `RunError` if there is no backend of that name."""
        given = self._given_backend
        if given is not None and not callable(given) and not hasattr(given, "__aenter__"):
            raise TypeError(
                f"Runtime(sandbox={shown(given)}): give one of {', '.join(NAMES)}, or a backend of your own"
            )
        if given is None and name not in NAMES:
            raise RunError(
                f"there is no sandbox backend {name!r}: choose one of {', '.join(NAMES)} (--sandbox, "
                "$RAMIFY_SANDBOX), or pass your own to Runtime(sandbox=…)"
            )

    def fetch(self, snapshots: SnapshotStore) -> Fetch | None:
        """How to fetch a snapshot that this machine lacks; None if the home has no bucket (`ramify push`)."""
        if self.bucket is not None:
            return self.bucket.fetch
        folder = paths.remote(self._home)
        if not (folder / "config.json").exists():
            return None

        async def work(id: SnapshotId) -> Snapshot:
            return await asyncio.to_thread(_fetched, snapshots, folder, id)

        return work

    def warm(self, settings: Settings) -> None:
        """Start the model in the background; the first call waits for it."""
        key = (settings.server, settings.model)
        if key not in self._models:
            self._models[key] = asyncio.get_running_loop().create_task(self._start(settings))

    async def llm(self, settings: Settings) -> LLMClient:
        """The client of that server. Raises `ModelMissing` or `EngineFailed` if the embedded one cannot start."""
        key = (settings.server, settings.model)  # "": an unknown server, which is not the embedded one
        starting = self._models.get(key)
        if starting is not None and starting.done() and (starting.cancelled() or starting.exception() is not None):
            del self._models[key]  # the last attempt failed: try again
        self.warm(settings)
        return await asyncio.shield(self._models[key])

    async def _start(self, settings: Settings) -> LLMClient:
        if self._given_llm is not None:
            return self._given_llm
        if settings.server == "":
            raise LLMUnavailable(
                "the program that started this run passed a client of its own, whose server is not known: name "
                "the server (--base-url, Runtime(base_url=…)), or resume in that program, with Runtime(llm=…)"
            )
        upstream = None if settings.base_url is None else self._whole(settings.base_url)
        if upstream is not None:
            await _reach(upstream)
        from ramify.serving.gateway.server import LocalGateway

        gateway = await self._stack.enter_async_context(
            LocalGateway(home=self._home, model=settings.model or None)
            if upstream is None
            else LocalGateway(home=self._home, upstream=upstream, upstream_key=self._api_key or None)
        )
        return await self._stack.enter_async_context(
            LLMClient(gateway.base_url, model=settings.model, honours_seed=upstream is None)
        )

    def _whole(self, kept: str) -> str:
        """The whole address, with its secrets, for the address that a run's settings hold."""
        if self._address is not None and without_secrets(self._address) == kept:
            return self._address
        if urlsplit(kept).netloc.startswith(_HIDDEN):
            raise LLMUnavailable(
                f"the run was started with a user and a password in its model's address, {kept}, which are not "
                "stored: name the whole address again (--base-url, $RAMIFY_BASE_URL, Runtime(base_url=…))"
            )
        return kept


async def _reach(base_url: str) -> None:
    """Raises `LLMUnavailable` if nothing listens at that address.

    Calls in progress are retried for a long time; a run should not start with a wrong address.
    """
    url = urlsplit(base_url)
    host = url.hostname
    if url.scheme not in ("http", "https") or host is None:
        return  # the gateway reports what is wrong with it
    if url.scheme in getproxies() and not proxy_bypass(host):
        return  # a proxy leads there
    try:
        port = url.port or (443 if url.scheme == "https" else 80)
        _, writer = await asyncio.wait_for(asyncio.open_connection(host, port), _REACH_S)
    except TimeoutError:
        return  # it may be slow
    except OSError as error:
        raise LLMUnavailable(
            f"no server at {url.scheme}://{host}:{port}: {error.strerror or error}. Start it, or name another "
            "(--base-url, $RAMIFY_BASE_URL)"
        ) from error
    writer.close()


def environment(values: Mapping[str, str]) -> tuple[str | None, str | None, str | None]:
    """The values of $RAMIFY_SANDBOX, $RAMIFY_BASE_URL and $RAMIFY_API_KEY; None for a variable that is not set."""
    names = ("RAMIFY_SANDBOX", "RAMIFY_BASE_URL", "RAMIFY_API_KEY")
    sandbox, base_url, api_key = (values.get(name) or None for name in names)
    return sandbox, base_url, api_key


def reuse_check_share(values: Mapping[str, str]) -> float:
    """The value of $RAMIFY_CHECK_REUSE: the share of reused results that is computed again. Raises `RunError`."""
    text = values.get("RAMIFY_CHECK_REUSE") or "0"
    try:
        share = float(text)
    except ValueError:
        share = -1.0
    return checked_share("RAMIFY_CHECK_REUSE", share, text)


def check_arguments(
    *,
    texts: Mapping[str, object],
    places: Mapping[str, object],
    calls: Mapping[str, object],
    switches: Mapping[str, object],
) -> None:
    """Raises `TypeError`, which names the argument of `Runtime` that is of another type. None is of every type."""
    for kinds, what, given in (
        ((str,), "give a text", texts),
        ((str, Path), "give a path as a str or a pathlib.Path", places),
        ((bool,), "write True or False", switches),
    ):
        for name, value in given.items():
            if value is not None and not isinstance(value, kinds):
                raise TypeError(f"Runtime({name}={shown(value)}): {what}")
    for name, value in calls.items():
        if value is not None and not callable(value):
            raise TypeError(f"Runtime({name}={shown(value)}): give a function")


def checked_share(name: str, share: float, text: object) -> float:
    """Raises `RunError`, which names the argument or variable and shows its `text`."""
    if not isinstance(share, int | float) or not 0 <= share <= 1:
        raise RunError(f"{name}={text!r} is not a share: write a number from 0 (none) to 1 (all)")
    return share


def _fetched(snapshots: SnapshotStore, folder: Path, id: SnapshotId) -> Snapshot:
    from ramify.fork_engine.remote.pull import pull
    from ramify.fork_engine.remote.remote_store import RemoteStore

    with RemoteStore(snapshots, folder) as remote:
        return pull(remote, [id]).snapshots[0]


@dataclass(frozen=True, slots=True)
class ChosenSettings:
    """`new`: the settings of new runs. `sandbox`: as named, None if none was. `named_url`: the server's address as
    named by an argument, and not by the environment, without secrets."""

    new: Settings
    sandbox: str | None
    named_url: str | None

    @classmethod
    def of(
        cls, sandbox: str | None, base_url: str | None, env_url: str | None, model: str | None, llm: LLMClient | None
    ) -> ChosenSettings:
        """Choose from a Runtime's arguments and the environment's address."""
        address = base_url or env_url
        whom = (None, None) if llm is None else getattr(llm, "whom", ("", None))
        kept = None if address is None else without_secrets(address)
        named = None if base_url is None else without_secrets(base_url)
        return cls(Settings(sandbox or "namespaces", kept, model, *whom), sandbox, named)

    def to_resume(self, began: Settings) -> Settings:
        """The settings to resume a run with: those it was started with, unless this runtime names others.

        A run that was started with a client of its program, and is resumed without it, asks the same model of the
        same server. The address in the environment is used only by runs that named none.
        """
        here = self.new
        sandbox = self.sandbox or began.sandbox
        if began.client_url is None or here.client_url is not None:
            base_url, model = here.base_url or began.base_url, here.model or began.model
            return replace(here, sandbox=sandbox, base_url=base_url, model=model)
        base_url = self.named_url or began.client_url or None
        model = here.model or began.client_model
        return Settings(sandbox, base_url, model, client_url="" if base_url is None else None)
