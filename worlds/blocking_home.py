"""`SyncWorldHome`: one open home, and one event loop in a thread, for many worlds of code without an event loop."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from anyio.from_thread import BlockingPortal, start_blocking_portal

from ramify import paths
from ramify.worlds.home import WorldHome
from ramify.worlds.references import Reference


class SyncWorldHome:
    """`WorldHome` for code without an event loop: a context manager that any thread may make worlds with.

        with SyncWorldHome() as home, SyncWorld.create("repo", home=home) as one:
            ...

    The backend starts once, and all worlds share its thread. Leaving it ends the worlds that are still open. `place`,
    `sandbox`: as for `WorldHome`.
    """

    def __init__(self, place: str | Path | None = None, sandbox: str | None = None) -> None:
        self.home = WorldHome(place, sandbox)
        self._stack = ExitStack()
        self._portal: BlockingPortal | None = None

    @property
    def portal(self) -> BlockingPortal:
        """The thread of the event loop. Raises `RuntimeError` unless the home is open."""
        if self._portal is None:
            raise RuntimeError("the home of these worlds is not open: enter it with `with SyncWorldHome() as home`")
        return self._portal

    def __enter__(self) -> SyncWorldHome:
        with ExitStack() as stack:
            portal = stack.enter_context(start_blocking_portal("asyncio"))
            stack.enter_context(portal.wrap_async_context_manager(self.home))
            self._portal, self._stack = portal, stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._portal = None
        self._stack.close()

    def worlds(self) -> list[Reference]:
        """As `WorldHome.worlds`."""
        return self.home.worlds()

    def tags(self) -> list[Reference]:
        """As `WorldHome.tags`."""
        return self.home.tags()

    def delete_worlds(self, *names: str) -> None:
        """As `WorldHome.delete_worlds`."""
        self.home.delete_worlds(*names)

    def delete_tags(self, *names: str) -> None:
        """As `WorldHome.delete_tags`."""
        self.home.delete_tags(*names)


@dataclass
class _Shared:
    home: SyncWorldHome
    users: int = 0


_shared: dict[tuple[int, Path, str], _Shared] = {}
_lock = threading.Lock()


@contextmanager
def shared_home(place: str | Path | None = None, sandbox: str | None = None) -> Iterator[SyncWorldHome]:
    """The open home at this place with this backend: the first user in this process opens it, the last closes it.

    For harnesses that make an environment for each rollout from a configuration alone: they share no object.
    """
    key = (os.getpid(), paths.home(place), sandbox or os.environ.get("RAMIFY_SANDBOX", ""))
    with _lock:
        if key not in _shared:
            _shared[key] = _Shared(SyncWorldHome(place, sandbox).__enter__())
        found = _shared[key]
        found.users += 1
    try:
        yield found.home
    finally:
        with _lock:
            found.users -= 1
            if not found.users:
                del _shared[key]
                found.home.__exit__(None, None, None)
