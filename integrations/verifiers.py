"""Worlds as a runtime of verifiers (`verifiers.v1.runtimes.base.Runtime`).

    async with Agent(config) as agent, provision(WorldConfig(folder="."), task) as runtime:
        trace = await agent.run(task, runtime=runtime)

verifiers makes only the runtimes that it knows itself, so a world is a box that a run borrows. For its command line,
a taskset's module exports `WorldEnv`.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import ClassVar, Literal
from urllib.parse import urlsplit

from ramify.fork_engine.errors import ForkEngineError
from ramify.images.errors import ImagesError
from ramify.sandboxes.contract import Limits
from ramify.sandboxes.errors import InputClosed
from ramify.sandboxes.errors import SandboxError as RamifySandboxError
from ramify.sandboxes.process_contract import Process
from ramify.worlds.errors import WorldError
from ramify.worlds.world import World

try:
    from verifiers.v1 import AgentConfig, Agents, ApptainerConfig, Env, EnvConfig, ProgramResult, Runtime, Task
    from verifiers.v1.configs.runtime import NetworkPolicyConfig, parse_network_rule
    from verifiers.v1.errors import SandboxError
    from verifiers.v1.runtimes import DockerRuntimeInfo, RuntimeProcess
    from verifiers.v1.utils.compile import resolve_runtime_config
except ImportError as error:
    raise ImportError("ramify.integrations.verifiers needs verifiers: pip install 'ramify[verifiers]'") from error

_EVERYWHERE = "*:*"
_LOCAL = ("127.0.0.1", "localhost")
_GB = 1_000_000_000
_WRITE = 'mkdir -p -- "$(dirname -- "$1")" && exec cat > "$1"'
_BACKGROUND = 'log=$1; shift; "$@" > "$log" 2>&1 < /dev/null &'


class WorldConfig(NetworkPolicyConfig):
    """What a world is made of. `folder`, `snapshot`, `image`, `sandbox`, `home`: as `ramify.World.create`; a task's
    own image comes first.

    workdir: where commands start, made if it is missing. memory, disk: in GB, enforced unless
    `apply_resource_limits` is off. allow: hosts that the agent may reach (`allow=[]`: none). network: the host's own
    network, which no policy bounds.
    """

    type: Literal["ramify"] = "ramify"
    folder: str | None = None
    snapshot: str | None = None
    image: str | None = None
    workdir: str | None = None
    memory: float | None = None
    disk: float | None = None
    apply_resource_limits: bool = True
    network: bool = False
    sandbox: str | None = None
    home: str | None = None


@asynccontextmanager
async def provision(config: WorldConfig, task: Task | None = None) -> AsyncIterator[WorldRuntime]:
    """A started runtime for `Agent.run(task, runtime=…)`, with what the task asks for: its image, directory,
    resources, network policy and variables. Raises verifiers' `SandboxError`, and `ValueError` as verifiers does for
    a policy that does not fit the task's."""
    runtime = WorldRuntime(config if task is None else resolve_runtime_config(config, task))
    runtime.env = {} if task is None else dict(task.runtime_env())
    try:
        await runtime.start()
        yield runtime
    finally:
        await runtime.stop()


class WorldRuntime(Runtime):
    """One world between `start` and `stop`.

    Until `prepare_execution`, programs may reach every public host, as verifiers expects for a task's setup; from
    then on, what `allow` names and the model. A port of this machine's loopback that verifiers hands to the agent is
    at the same address inside.
    """

    is_local = True
    supports_user: ClassVar[bool] = True

    def __init__(self, config: WorldConfig, name: str | None = None) -> None:
        super().__init__(name)
        self.config = config
        self.info = _info(config)
        self._cwd = config.workdir  # None: where the world's commands start
        self._world: World | None = None
        self._held = AsyncExitStack()
        self._host_ports: set[int] = set()
        self._enforced: list[str] | None = None  # the framework's own hosts, once the policy is enforced
        self.egress: list[str] = [_EVERYWHERE]
        """What the world may reach now; with `network=True` it is everything."""
        self._changing = asyncio.Lock()

    @property
    def world(self) -> World:
        if self._world is None:
            raise SandboxError(f"the runtime {self.name} was not started, or was stopped")
        return self._world

    async def start(self) -> None:
        config = self.config
        if config.network and config.network_restricted:
            raise SandboxError("network=True is the host's own network, which no policy bounds: leave it out")
        _entries(config)  # raises before anything is made
        with _errors():
            world = await World.create(
                config.folder,
                snapshot=config.snapshot,
                image=config.image,
                network=config.network,
                egress=None if config.network else self.egress,
                limits=_limits(config),
                sandbox=config.sandbox,
                home=config.home,
            )
            self._held.push_async_callback(world.close)
            if config.workdir is not None:
                await world.exec(["mkdir", "-p", "--", config.workdir], check=True)
            await self._own(world)

    async def _own(self, world: World) -> None:
        self._world = world
        where = await world.exec("pwd", cwd=self._cwd, check=True)  # in a tree that is not mounted, not `workdir`
        self.config = self.config.model_copy(update={"workdir": where.stdout.rstrip("\n")})
        self.info = _info(self.config)
        self.info.id = f"ramify-{self.name}"

    async def teardown(self) -> None:
        self._world = None
        with _errors():
            await self._held.aclose()

    async def run(self, argv: list[str], env: dict[str, str]) -> ProgramResult:
        """Of each output, 16 MiB are kept."""
        with _errors():
            await self._apply_policy()
            given, where = self.process_env(env), self._cwd
            result = await self.world.exec(argv, env=given, cwd=where, user=self.user)
        return ProgramResult(result.exit_code, result.stdout, result.stderr)

    async def open_process(self, argv: list[str], env: dict[str, str]) -> RuntimeProcess:
        with _errors():
            await self._apply_policy()
            given, where = self.process_env(env), self._cwd
            started = self.world.start(argv, stdin=True, env=given, cwd=where, user=self.user)
            return WorldProcess(await self._held.enter_async_context(started))

    async def run_background(self, argv: list[str], env: dict[str, str], log: str) -> None:
        """It ends with the runtime. Forks and snapshots have its files, not its process."""
        result = await self.run(["sh", "-c", _BACKGROUND, "sh", log, *argv], env)
        if result.exit_code:
            raise SandboxError(f"{argv[0]} could not be started: {result.stderr.strip()[-500:]}")

    async def _read(self, path: str, max_bytes: int | None = None) -> bytes:
        words = ["cat", "--", path] if max_bytes is None else ["head", "-c", str(max_bytes), "--", path]
        with _errors():
            async with self.world.start(words, cwd=self._cwd, user=self.user) as process:
                process.stderr.collect(4096)
                data = b"".join([part async for part in process.stdout])
                code, said = await process.wait(), await process.stderr.collected()
        if code:
            raise SandboxError(f"read {path!r}: {said.decode('utf-8', 'replace').strip()}")
        return data

    async def write(self, path: str, data: bytes) -> None:
        words = ["sh", "-c", _WRITE, "sh", path]
        with _errors():
            result = await self.world.exec(words, stdin=data, cwd=self._cwd, user=self.user)
        if result.exit_code:
            raise SandboxError(f"write {path!r}: {result.stderr.strip()[-500:]}")

    async def expose(self, port: int) -> str:
        """Any port, and several; each until `stop`."""
        with _errors():
            return (await self._held.enter_async_context(self.world.expose(port))).url

    # The network

    def host_url(self, url: str) -> str:
        parts = urlsplit(url)
        if parts.hostname in _LOCAL and not self.config.network:
            self._host_ports.add(parts.port or (443 if parts.scheme in ("https", "wss") else 80))
        return url

    async def prepare_execution(self, routes: list[str] | None) -> None:
        self._enforced = None if routes is None else _framework(routes)
        with _errors():
            await self._apply_policy()

    async def _apply_policy(self) -> None:
        """Let the world reach what it may reach now: a `host_url` may be new since the last time."""
        if self.config.network:
            return
        async with self._changing:
            wanted = [f"127.0.0.1:{port}" for port in sorted(self._host_ports)]
            if self.network_restricted and self._enforced is not None:
                wanted += [*self._enforced, *_entries(self.config)]
            else:
                wanted.append(_EVERYWHERE)
            if wanted != self.egress:
                await self.world.set_egress(wanted)
                self.egress = wanted

    # Beyond verifiers' interface

    async def snapshot(self, tag: str | None = None) -> str:
        """Keep the world as it is now. Returns the id, for `restore` and for `WorldConfig(snapshot=…)`."""
        with _errors():
            return (await self.world.snapshot(tag)).id

    async def fork(self, n: int = 1) -> list[WorldRuntime]:
        """Make `n` started runtimes at the state of now. Stop each by itself."""
        with _errors():
            worlds = await self.world.fork(n)
            try:
                return [await self._fork_over(world) for world in worlds]
            except BaseException:
                for world in worlds:
                    await world.close()
                raise

    async def _fork_over(self, world: World) -> WorldRuntime:
        made = type(self)(self.config)
        made._held.push_async_callback(world.close)
        made._cwd = self._cwd
        await made._own(world)
        made.env, made.user, made.home = dict(self.env), self.user, self.home
        made._uv_interpreters, made._mcp_sources = dict(self._uv_interpreters), set(self._mcp_sources)
        made._setup_claimed, made._curl_ready = self._setup_claimed, self._curl_ready
        made._host_ports, made._enforced, made.egress = set(self._host_ports), self._enforced, self.egress
        return made

    async def restore(self, snapshot: str) -> None:
        """Go back to a snapshot: its id or its tag. Processes end."""
        with _errors():
            await self.world.restore(snapshot)
        self._uv_interpreters.clear()  # what verifiers installed may not be there then
        self._mcp_sources.clear()


class WorldProcess(RuntimeProcess):
    """A program of `open_process`, with its streams. It ends with the runtime, at the latest."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self.stdout, self.stderr = aiter(process.stdout), aiter(process.stderr)

    async def write(self, data: bytes) -> None:
        with _errors():
            try:
                await self._process.write_stdin(data)
            except InputClosed as error:
                raise BrokenPipeError(str(error)) from error

    async def wait(self) -> int:
        with _errors():
            return await self._process.wait()

    async def poll(self) -> int | None:
        return self._process.returncode

    async def terminate(self) -> None:
        self._process.send_signal(signal.SIGTERM)

    async def kill(self) -> None:
        await self._process.kill()


class WorldEnvConfig(EnvConfig):
    """world: what each episode's world is made of (`--env.world.folder` …)."""

    # never made: a local kind, so that nothing is tunnelled
    agent: AgentConfig = AgentConfig(runtime=ApptainerConfig())
    world: WorldConfig = WorldConfig()


class WorldEnv(Env[WorldEnvConfig]):
    """verifiers' environment of a single agent, in a world. A taskset's module exports it beside its taskset."""

    async def run(self, task: Task, agents: Agents) -> None:
        async with provision(self.config.world, task) as runtime:
            await agents.agent.run(task, runtime=runtime)


def _info(config: WorldConfig) -> DockerRuntimeInfo:
    """How traces record the runtime. Their list of kinds is closed, and a reader refuses others: the local container
    is the nearest, and its id begins with `ramify-`."""
    made_of = config.image or config.snapshot or config.folder or "an empty world"
    policy = {"allow": config.allow, "block": config.block}
    return DockerRuntimeInfo(image=made_of, workdir=config.workdir, memory=config.memory, disk=config.disk, **policy)


def _limits(config: WorldConfig) -> Limits | None:
    if not config.apply_resource_limits or (config.memory is None and config.disk is None):
        return None
    usual = Limits()
    return Limits(
        memory_bytes=usual.memory_bytes if config.memory is None else int(config.memory * _GB),
        disk_bytes=usual.disk_bytes if config.disk is None else int(config.disk * _GB),
    )


def _entries(config: NetworkPolicyConfig) -> list[str]:
    """The allow-list of a policy. Raises verifiers' `SandboxError` for a list of what is blocked alone."""
    if config.block and config.allow:
        raise SandboxError("a world knows what it may reach, not what it may not: give allow instead of block")
    return [_entry(rule) for rule in config.allow if rule != "*"]


def _entry(rule: str) -> str:
    parts, host, port = parse_network_rule(rule)
    if parts.path and not parts.scheme:
        return f"{rule}:*"  # a network, such as 10.0.0.0/8
    return f"[{host}]:{port or '*'}" if ":" in host else f"{host}:{port or '*'}"


def _framework(routes: Sequence[str]) -> list[str]:
    """Entries for verifiers' own endpoints elsewhere; those on this machine come by `host_url`."""
    elsewhere = [url for url in map(urlsplit, routes) if url.hostname not in _LOCAL]
    return [_entry(f"{url.scheme}://{url.netloc}") for url in elsewhere]


@contextmanager
def _errors() -> Iterator[None]:
    try:
        yield
    except (WorldError, RamifySandboxError, ForkEngineError, ImagesError, ValueError) as error:
        raise SandboxError(str(error)) from error
