"""Worlds as tools of the Model Context Protocol: `ramify mcp`.

A client makes worlds, runs commands in them, forks, restores and merges them. The server keeps each world open, so
that its shell and its processes live between calls, and stores named states when it ends. It reads only the folders
that its caller allows.

`WorldTools` holds the open worlds and does the work; `mcp_server` puts its methods into the protocol; `http_app` is
the same server over streamable HTTP, behind a key.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from ramify import paths
from ramify.fork_engine.errors import ForkEngineError
from ramify.fork_engine.types import Change, MergeStrategy
from ramify.integrations.world_access import (
    IntegrationError,
    UnknownWorld,
    merged_text,
    read_file,
    with_merged_output,
    write_file,
)
from ramify.sandboxes.errors import SandboxError
from ramify.serving.http_guard import AccessPolicy, AccessRefusal, App, Guard, Headers, Keys
from ramify.worlds.errors import WorldError
from ramify.worlds.home import WorldHome
from ramify.worlds.references import Kind
from ramify.worlds.world import World

if TYPE_CHECKING:
    from mcp.server import MCPServer

MOST_OUTPUT = 64 << 10
"""Characters of a command's output, and of a file, that a tool returns. The middle of what is longer is left out."""

INSTRUCTIONS = """Worlds are sandboxes that fork in milliseconds. Make one with world_create, work in it with \
world_exec, world_read and world_write. Before a risky step call world_snapshot, and world_restore to go back. To \
try alternatives, call world_fork and work in each fork; then world_merge the best one into its origin. world_diff \
shows what changed."""


class CommandOutput(TypedDict):
    """The outcome of a command. `exit_code` is 124 if the timeout ended it."""

    output: str
    exit_code: int
    timed_out: bool


class WorldTools:
    """The worlds that a server holds open, by name. An async context manager: leaving it closes them."""

    def __init__(self, home: WorldHome, folders: Sequence[Path]) -> None:
        """folders: the folders of this machine from which worlds may be made."""
        self._home = home
        self._folders = [folder.resolve() for folder in folders]
        self._worlds: dict[str, World] = {}
        self._locks: dict[str, asyncio.Lock] = {}

    async def __aenter__(self) -> WorldTools:
        return self

    async def __aexit__(self, *_: object) -> None:
        worlds, self._worlds = list(self._worlds.values()), {}
        await asyncio.gather(*(world.close() for world in worlds))

    async def world_create(
        self, folder: str | None = None, snapshot: str | None = None, name: str | None = None
    ) -> str:
        """Make a world from a folder of this machine, from a snapshot (an id, a tag or a world's name), or empty.
        The folder is never changed. Returns the world's name."""
        where = None if folder is None else self._allowed(folder)
        called = name or f"world-{secrets.token_hex(3)}"
        world = await World.create(where, snapshot=snapshot, name=called, home=self._home)
        self._worlds[called] = world
        return called

    async def world_exec(
        self, world: str, command: str, cwd: str | None = None, timeout_s: float = 600
    ) -> CommandOutput:
        """Run a bash command in a world. Standard output and error come together. A `cd` does not last: give `cwd`,
        relative to the world's tree."""
        one = await self._world(world)
        result = await one.exec(with_merged_output(command), cwd=cwd, timeout=timeout_s)
        return {
            "output": _shortened(merged_text(result)),
            "exit_code": result.exit_code,
            "timed_out": result.timed_out,
        }

    async def world_read(self, world: str, path: str) -> str:
        """Return a text file of a world. A relative path starts at the world's tree."""
        return _shortened((await read_file(await self._world(world), path)).decode("utf-8", "replace"))

    async def world_write(self, world: str, path: str, content: str) -> str:
        """Write a text file in a world, and the folders above it."""
        data = content.encode()
        await write_file(await self._world(world), path, data)
        return f"wrote {len(data)} bytes to {path}"

    async def world_fork(self, world: str, n: int = 1) -> list[str]:
        """Make `n` (1 to 64) copies of a world as it is now, with its files and its shell. Returns their names."""
        if not 1 <= n <= 64:
            raise IntegrationError(f"n must be between 1 and 64, not {n}")
        names = [f"{world[:40]}-{secrets.token_hex(3)}" for _ in range(n)]
        for fork in await (await self._world(world)).fork(n, names=names):
            assert fork.name is not None
            self._worlds[fork.name] = fork
        return names

    async def world_snapshot(self, world: str, tag: str | None = None) -> str:
        """Keep the state of a world as it is now, under a tag if one is given. Returns the snapshot's id."""
        return (await (await self._world(world)).snapshot(tag)).id

    async def world_restore(self, world: str, snapshot: str) -> str:
        """Drop everything that a world did since a snapshot (an id, a tag or a world's name), and go back to it."""
        one = await self._world(world)
        await one.restore(snapshot)
        return f"{world} is at {one.state.id[:12]}"

    async def world_diff(self, world: str, other: str | None = None) -> list[str]:
        """List the paths that differ between another state (a world, a tag or a snapshot) and this world. Without
        `other`: what changed since the world was made."""
        one = await self._world(world)
        against = self._worlds.get(other, other) if other is not None else None
        return [_line(change) for change in await one.diff(against)]

    async def world_merge(self, world: str, other: str, prefer: str | None = None) -> str:
        """Merge what another world changed into this one, three ways. If both changed a place, nothing is merged and
        the conflicts are listed; `prefer` ("ours" or "theirs") decides them."""
        if prefer not in (None, "ours", "theirs"):
            raise IntegrationError(f"prefer must be 'ours' or 'theirs', not {prefer!r}")
        strategy = MergeStrategy.FAIL if prefer is None else MergeStrategy(prefer)
        one = await self._world(world)
        merged = await one.merge(self._worlds.get(other, other), strategy=strategy)
        return f"{world} is at {merged.id[:12]}"

    async def world_log(self) -> list[str]:
        """List all worlds and tags, each with its snapshot."""
        named = {kind: await asyncio.to_thread(self._home.references.all, kind) for kind in Kind}
        lines = [(kind.value.removesuffix("s"), one) for kind, found in named.items() for one in found]
        return [f"{kind} {one.name} {one.snapshot[:12]}" for kind, one in lines]

    async def world_delete(self, world: str) -> str:
        """End a world and delete its name. Its tagged snapshots stay."""
        one = await self._world(world)
        self._worlds.pop(world, None)  # another call may delete it, too
        await one.delete()
        return f"deleted {world}"

    async def _world(self, name: str) -> World:
        """The open world of this name, opened if an earlier server left it."""
        async with self._locks.setdefault(name, asyncio.Lock()):
            if name not in self._worlds:
                try:
                    self._worlds[name] = await World.open(name, home=self._home)
                except WorldError as error:
                    raise UnknownWorld(f"{error}: world_log lists the worlds") from error
            return self._worlds[name]

    def _allowed(self, folder: str) -> Path:
        where = paths.expanded(folder).resolve()
        if not any(where.is_relative_to(allowed) for allowed in self._folders):
            allowed = ", ".join(str(one) for one in self._folders) or "none"
            raise IntegrationError(f"{folder} is not in a folder that this server may read (`--folder`): {allowed}")
        return where


def mcp_server(tools: WorldTools, *, version: str) -> MCPServer[Any]:
    """A server whose tools are the methods of `WorldTools`. Errors of worlds become errors of the tool's call. The
    worlds outlive a client's session: whoever opened `tools` closes them.

    Raises `ImportError` without the package mcp.
    """
    try:
        from mcp.server import MCPServer
        from mcp.server.mcpserver.exceptions import ToolError
    except ImportError as error:
        raise ImportError("`ramify mcp` needs the package mcp: pip install 'ramify[mcp]'") from error
    server: MCPServer[Any] = MCPServer("ramify", instructions=INSTRUCTIONS, version=version, log_level="WARNING")
    for tool in (
        tools.world_create, tools.world_exec, tools.world_read, tools.world_write, tools.world_fork,
        tools.world_snapshot, tools.world_restore, tools.world_diff, tools.world_merge, tools.world_log,
        tools.world_delete,
    ):  # fmt: skip
        server.tool()(_telling(tool, ToolError))
    return server


def http_app(server: MCPServer[Any], key: str, *, host: str, port: int) -> App:
    """The server over streamable HTTP at `/mcp`, for clients that send `Authorization: Bearer KEY`."""
    app: App = server.streamable_http_app(host=host)
    return _KeyGuard(app, AccessPolicy(port=port), Keys([key]))


class _KeyGuard(Guard):
    def __init__(self, app: App, policy: AccessPolicy, keys: Keys) -> None:
        super().__init__(app, policy)
        self._keys = keys

    def refusal(self, method: str, path: str, headers: Headers, http_version: str) -> AccessRefusal | None:
        shown = [value for name, value in headers if name.lower() == b"authorization"]
        if len(shown) != 1 or not self._keys.shown_in(shown[0]):
            why = "the key is missing or wrong: send Authorization: Bearer KEY, with the key of `ramify mcp --http`"
            return AccessRefusal(401, "invalid_api_key", why, "authorization")
        return super().refusal(method, path, headers, http_version)


def _telling(tool: Callable[..., Awaitable[Any]], failure: type[Exception]) -> Callable[..., Awaitable[Any]]:
    """The tool, with the errors of worlds as the protocol's errors, which the model reads."""

    @wraps(tool)
    async def told(*args: Any, **kwargs: Any) -> Any:
        try:
            return await tool(*args, **kwargs)
        except (WorldError, SandboxError, ForkEngineError, IntegrationError, ValueError) as error:
            raise failure(str(error)) from error

    return told


def _shortened(text: str) -> str:
    if len(text) <= MOST_OUTPUT:
        return text
    half = MOST_OUTPUT // 2
    return f"{text[:half]}\n[… {len(text) - MOST_OUTPUT} characters left out …]\n{text[-half:]}"


def _line(change: Change) -> str:
    return f"{change.kind.value} {change.path}"
