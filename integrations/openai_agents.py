"""A world as a sandbox of the OpenAI Agents SDK (`agents.sandbox`).

    client = WorldSandboxClient()
    config = RunConfig(sandbox=SandboxRunConfig(client=client, options=WorldSandboxOptions(folder=".")))
    await Runner.run(SandboxAgent(name="Fixer", instructions=…), "Fix the failing test", run_config=config)

Each session has a named world, so that a session's serialised state resumes it with its files. `delete` removes it.
"""

from __future__ import annotations

import asyncio
import io
import tarfile
import tempfile
import uuid
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any, Literal

from ramify.integrations.world_access import FileAccessFailed, NotStarted, pack, read_file, unpack, write_file
from ramify.worlds.errors import WorldNotFound
from ramify.worlds.home import WorldHome
from ramify.worlds.references import Kind
from ramify.worlds.world import World
from ramify.worlds.world_network import ExposedPort

try:
    from agents.sandbox import Manifest, SnapshotSpec, resolve_snapshot
    from agents.sandbox.errors import (
        ExecTimeoutError,
        ExecTransportError,
        WorkspaceArchiveReadError,
        WorkspaceArchiveWriteError,
        WorkspaceReadNotFoundError,
    )
    from agents.sandbox.session import SandboxSession, SandboxSessionState
    from agents.sandbox.session.base_sandbox_session import BaseSandboxSession
    from agents.sandbox.session.manager import Instrumentation
    from agents.sandbox.session.sandbox_client import BaseSandboxClient, BaseSandboxClientOptions
    from agents.sandbox.session.workspace_payloads import coerce_write_payload
    from agents.sandbox.snapshot import SnapshotBase
    from agents.sandbox.types import ExecResult, ExposedPortEndpoint, User
    from agents.sandbox.util.tar_utils import UnsafeTarMemberError, validate_tarfile
except ImportError as error:
    raise ImportError(
        "ramify.integrations.openai_agents needs openai-agents: pip install 'ramify[openai-agents]'"
    ) from error

_DEFAULT_ROOT = Manifest.model_fields["root"].default
_ROOT = "/tmp/workspace"
_IN_MEMORY = 8 << 20  # bytes of an archive before it goes to a temporary file


class WorldSandboxOptions(BaseSandboxClientOptions):
    """Where a session's world comes from. `folder`, `snapshot`, `image`, `sandbox`, `home`: as
    `ramify.World.create`. exposed_ports: ports inside that `resolve_exposed_port` may be asked for."""

    type: Literal["ramify"] = "ramify"
    folder: str | None = None
    snapshot: str | None = None
    image: str | None = None
    exposed_ports: tuple[int, ...] = ()
    sandbox: str | None = None
    home: str | None = None


class WorldSessionState(SandboxSessionState):
    type: Literal["ramify"] = "ramify"
    world: str
    options: WorldSandboxOptions


class WorldSession(BaseSandboxSession):
    """One session: a world that is open between `start` and `shutdown`."""

    state: WorldSessionState

    def __init__(self, state: WorldSessionState) -> None:
        self.state = state
        self._world: World | None = None
        self._held = AsyncExitStack()
        self._exposed: dict[int, ExposedPort] = {}

    @property
    def world(self) -> World:
        """Raises `NotStarted`."""
        if self._world is None:
            raise NotStarted("the session's world is not open: enter the session, or call its start()")
        return self._world

    async def _prepare_backend_workspace(self) -> None:
        if self._world is not None:
            return
        options, root = self.state.options, self.state.manifest.root
        async with AsyncExitStack() as stack:
            home = await stack.enter_async_context(WorldHome(options.home, options.sandbox))
            try:
                self._world = await World.open(self.state.world, home=home)
            except WorldNotFound:
                self._world = await World.create(
                    options.folder,
                    snapshot=options.snapshot,
                    image=options.image,
                    name=self.state.world,
                    mount_at=root,
                    home=home,
                )
            self._held = stack.pop_all()

    async def _after_shutdown(self) -> None:
        world, self._world = self._world, None
        self._exposed.clear()
        if world is not None:
            await world.close()
        await self._held.aclose()

    async def running(self) -> bool:
        return self._world is not None

    async def _exec_internal(self, *command: str | Path, timeout: float | None = None) -> ExecResult:
        environment = await self.state.manifest.environment.resolve()
        words = [str(word) for word in command]
        try:
            result = await self.world.exec(words, env=environment, timeout=timeout)
        except Exception as error:
            raise ExecTransportError(command=command, cause=error) from error
        if result.timed_out:
            raise ExecTimeoutError(command=command, timeout_s=timeout, cause=None)
        return ExecResult(stdout=result.stdout_bytes, stderr=result.stderr_bytes, exit_code=result.exit_code)

    async def _resolve_exposed_port(self, port: int) -> ExposedPortEndpoint:
        """The address of this machine that reaches the port, until the session ends."""
        if port not in self._exposed:
            self._exposed[port] = await self._held.enter_async_context(self.world.expose(port))
        return ExposedPortEndpoint("127.0.0.1", self._exposed[port].port)

    async def read(self, path: Path, *, user: str | User | None = None) -> io.IOBase:
        if user is not None:
            await self._check_read_with_exec(path, user=user)
        inside = await self._validate_path_access(path)
        try:
            return io.BytesIO(await read_file(self.world, str(inside)))
        except FileAccessFailed as error:
            kind = WorkspaceReadNotFoundError if error.reason == "missing" else WorkspaceArchiveReadError
            raise kind(path=inside, cause=error) from error

    async def write(self, path: Path, data: io.IOBase, *, user: str | User | None = None) -> None:
        if user is not None:
            await self._check_write_with_exec(path, user=user)
        inside = await self._validate_path_access(path, for_write=True)
        payload = coerce_write_payload(path=inside, data=data)
        try:
            await write_file(self.world, str(inside), await asyncio.to_thread(payload.stream.read))
        except FileAccessFailed as error:
            raise WorkspaceArchiveWriteError(path=inside, cause=error) from error

    async def persist_workspace(self) -> io.IOBase:
        root = self.state.manifest.root
        leave_out = [path.as_posix() for path in self._persist_workspace_skip_relpaths()]
        archive = tempfile.SpooledTemporaryFile(_IN_MEMORY)  # noqa: SIM115  the caller closes it
        try:
            await pack(self.world, root, archive, leave_out)
        except FileAccessFailed as error:
            archive.close()
            raise WorkspaceArchiveReadError(path=Path(root), cause=error) from error
        except BaseException:
            archive.close()
            raise
        return archive

    async def hydrate_workspace(self, data: io.IOBase) -> None:
        root = self.state.manifest.root
        with tempfile.SpooledTemporaryFile(_IN_MEMORY) as archive:
            while chunk := data.read(1 << 16):
                archive.write(chunk)
            archive.seek(0)
            try:
                with tarfile.open(fileobj=archive, mode="r:*") as tar:
                    validate_tarfile(tar, allow_external_symlink_targets=False)
            except (UnsafeTarMemberError, tarfile.TarError) as error:
                raise WorkspaceArchiveWriteError(path=Path(root), cause=error) from error
            archive.seek(0)
            try:
                await unpack(self.world, root, archive)
            except FileAccessFailed as error:
                raise WorkspaceArchiveWriteError(path=Path(root), cause=error) from error

    # Beyond the SDK's interface

    async def snapshot(self, tag: str | None = None) -> str:
        """Keep the world as it is now. Returns the snapshot's id, for `WorldSandboxOptions(snapshot=…)`. A tag
        keeps it beyond this session."""
        return (await self.world.snapshot(tag)).id

    async def restore(self, snapshot: str) -> None:
        """Go back to a snapshot: its id or its tag."""
        await self.world.restore(snapshot)


class WorldSandboxClient(BaseSandboxClient[WorldSandboxOptions | None]):
    """Makes, resumes, forks and deletes sessions over worlds."""

    backend_id = "ramify"
    supports_default_options = True

    def __init__(self, *, instrumentation: Instrumentation | None = None) -> None:
        self._instrumentation = instrumentation or Instrumentation()

    async def create(
        self,
        *,
        snapshot: SnapshotSpec | SnapshotBase | None = None,
        manifest: Manifest | None = None,
        options: WorldSandboxOptions | None = None,
    ) -> SandboxSession:
        options = options or WorldSandboxOptions()
        manifest = self._validate_manifest_for_create(manifest or Manifest())
        if options.image is None and manifest.root == _DEFAULT_ROOT:
            manifest = manifest.model_copy(update={"root": _ROOT}, deep=True)
        session = uuid.uuid4()
        state = WorldSessionState(
            session_id=session,
            manifest=manifest,
            snapshot=resolve_snapshot(snapshot, str(session)),
            world=f"openai-agents-{session.hex[:12]}",
            options=options,
            exposed_ports=options.exposed_ports,
        )
        return self._wrap_session(WorldSession(state), instrumentation=self._instrumentation)

    async def resume(self, state: SandboxSessionState) -> SandboxSession:
        if not isinstance(state, WorldSessionState):
            raise TypeError(f"WorldSandboxClient resumes a WorldSessionState, not a {type(state).__name__}")
        return self._wrap_session(WorldSession(state), instrumentation=self._instrumentation)

    async def fork(self, session: SandboxSession, n: int = 1) -> list[SandboxSession]:
        """Make `n` sessions whose worlds start at the state of now of a running session."""
        inner = _inner(session)
        options = inner.state.options.model_copy(update={"folder": None, "image": None, "snapshot": None})
        made = [await self.create(manifest=inner.state.manifest, options=options) for _ in range(n)]
        for world in await inner.world.fork(n, names=[_inner(one).state.world for one in made]):
            await world.close()  # its name keeps its state until the session opens it, or is deleted
        return made

    async def delete(self, session: SandboxSession) -> SandboxSession:
        inner = _inner(session)
        await inner._after_shutdown()
        async with WorldHome(inner.state.options.home, inner.state.options.sandbox) as home:
            with suppress(WorldNotFound):  # it was never started, or was deleted
                await asyncio.to_thread(home.references.delete, Kind.WORLD, inner.state.world)
        return session

    def deserialize_session_state(self, payload: dict[str, Any]) -> SandboxSessionState:
        return self._deserialize_session_state_payload(payload, WorldSessionState)


def _inner(session: SandboxSession) -> WorldSession:
    inner = session._inner
    if not isinstance(inner, WorldSession):
        raise TypeError(f"the session is of another client: {type(inner).__name__}")
    return inner
