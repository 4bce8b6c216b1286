"""Worlds for OpenEnv: a provider that runs an environment's server in a world, and an environment that is a world.

env = await MyEnv.from_docker_image("my-env:latest", provider=WorldProvider())

app = create_app(lambda: WorldEnvironment(folder="."), CommandAction, CommandObservation)
"""

from __future__ import annotations

import shlex
import time
import uuid
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any, ClassVar

import httpx

from ramify.fork_engine.types import Snapshot
from ramify.integrations.world_access import NotStarted
from ramify.worlds.blocking import SyncWorld
from ramify.worlds.blocking_home import SyncWorldHome, shared_home
from ramify.worlds.errors import PathRefused

try:
    import yaml
    from openenv.core.containers.runtime.providers import ContainerProvider
    from openenv.core.env_server.interfaces import Environment
    from openenv.core.env_server.types import Action, Observation, State
except ImportError as error:
    raise ImportError("ramify.integrations.openenv needs openenv: pip install 'ramify[openenv]'") from error

PORT = 8000
"""Where an environment's server listens inside its world, as in OpenEnv's own images."""

_LOG = "/tmp/openenv-server.log"
_POLL_S = 0.05
_NOT_STARTED = 126


class WorldProvider(ContainerProvider):
    """Runs an environment's server in a world, over an image or a folder. A context manager, which stops it."""

    def __init__(
        self,
        *,
        image: str | None = None,
        folder: str | None = None,
        snapshot: str | None = None,
        command: str | None = None,
        env_vars: dict[str, str] | None = None,
        egress: Sequence[str] | None = None,
        sandbox: str | None = None,
        home: str | None = None,
    ) -> None:
        """image, folder, snapshot, egress, sandbox, home: as `ramify.World.create`; `start_container` may name
        another image. command: what starts the server, by default the image's own command, else the `app` of the
        folder's `openenv.yaml`. A world has no network without `egress`."""
        self._image, self._folder, self._snapshot, self._command = image, folder, snapshot, command
        self._env = dict(env_vars or {})
        self._egress = None if egress is None else list(egress)
        self._sandbox, self._home = sandbox, home
        self._world: SyncWorld | None = None
        self._held = ExitStack()
        self._base_url: str | None = None

    @property
    def world(self) -> SyncWorld:
        """Raises `NotStarted`."""
        if self._world is None:
            raise NotStarted("the provider has no world yet: call start_container")
        return self._world

    @property
    def base_url(self) -> str:
        """Where the server is reached. Raises `NotStarted`."""
        if self._base_url is None:
            raise NotStarted("the provider has no server yet: call start_container")
        return self._base_url

    def start_container(
        self,
        image: str | None = None,
        port: int | None = None,
        env_vars: dict[str, str] | None = None,
        **kwargs: Any,
    ) -> str:
        """port: of this machine; by default a free one. Raises `RuntimeError` without a command for the server, and
        as `ramify.World.create` and `expose` do."""
        if kwargs:
            unknown = ", ".join(sorted(kwargs))
            raise ValueError(f"WorldProvider knows no {unknown} here: give its options to its constructor")
        if self._world is not None:
            raise RuntimeError("the provider has a world already: call stop_container, or use another provider")
        chosen = image or self._image
        with ExitStack() as held:
            home = held.enter_context(shared_home(self._home, self._sandbox))
            world = SyncWorld.create(
                self._folder,
                snapshot=self._snapshot,
                image=chosen,
                env={**self._env, **(env_vars or {})},
                egress=self._egress,
                home=home,
            )
            held.callback(world.close)
            if self._snapshot is None:  # a snapshot starts the server itself
                command = self._command or _command_of(home, chosen) or _command_in(world)
                world.call(lambda: world.world.keep_running(command))
            return self._serve(world, held, port or 0)

    def _serve(self, world: SyncWorld, held: ExitStack, port: int = 0) -> str:
        world.exec(["true"])  # the first use of a world starts what it keeps running
        exposed = held.enter_context(world.expose(PORT, host_port=port))
        self._world, self._base_url = world, exposed.url
        self._held = held.pop_all()
        return exposed.url

    def wait_for_ready(self, base_url: str, timeout_s: float = 60.0) -> None:
        """Raises `TimeoutError`, with the end of what the server wrote."""
        last = time.monotonic() + timeout_s
        while time.monotonic() < last:
            try:
                if httpx.get(f"{base_url}/health", timeout=2.0, trust_env=False).status_code == 200:
                    return
            except httpx.TransportError:
                pass
            time.sleep(_POLL_S)
        said = self.world.exec(["tail", "-c", "2000", _LOG]).stdout.strip()
        raise TimeoutError(f"the server at {base_url} was not ready after {timeout_s} seconds. It wrote: {said}")

    def stop_container(self) -> None:
        """End the world. May be called twice; the provider can be started again."""
        self._world = self._base_url = None
        self._held.close()

    def close(self) -> None:
        self.stop_container()

    # Beyond OpenEnv's interface

    def snapshot(self, tag: str | None = None) -> str:
        """Keep the world's files as they are now. Returns the id, for `restore` and `WorldProvider(snapshot=…)`. The
        server starts again from them: what it held in memory alone is not kept."""
        return self.world.snapshot(tag).id

    def fork(self, n: int = 1) -> list[WorldProvider]:
        """Make `n` providers at the state of now, each with its own server, which is ready. Stop each by itself."""
        made: list[WorldProvider] = []
        with ExitStack() as undo:
            worlds = self.world.fork(n)
            for world in worlds:
                undo.callback(world.close)
            for world in worlds:
                beside = WorldProvider(egress=self._egress, sandbox=self._sandbox, home=self._home)
                with ExitStack() as held:
                    held.enter_context(shared_home(self._home, self._sandbox))
                    held.callback(world.close)
                    beside._serve(world, held)
                undo.callback(beside.stop_container)
                made.append(beside)
            for beside in made:
                beside.wait_for_ready(beside.base_url)
            undo.pop_all()
        return made

    def restore(self, snapshot: str) -> None:
        """Go back to a snapshot: its id or its tag. The server starts again, at the same address."""
        self.world.restore(snapshot)
        self.world.exec(["true"])
        self.wait_for_ready(self.base_url)


def _command_of(home: SyncWorldHome, image: str | None) -> str | None:
    """The image's own command, with what it writes in a log."""
    if image is None:
        return None
    found = home.portal.call(home.home.image, image)
    words = () if found is None else (*found.config.entrypoint, *found.config.cmd)
    return _logged(words) if words else None


def _command_in(world: SyncWorld) -> str:
    """What serves the tree's `openenv.yaml`. Raises `RuntimeError`."""
    try:
        said = yaml.safe_load(world.read("openenv.yaml"))
    except (PathRefused, yaml.YAMLError) as error:
        raise RuntimeError(f"no command starts a server: pass command= to WorldProvider ({error})") from error
    app = said.get("app") if isinstance(said, dict) else None
    if not isinstance(app, str):
        raise RuntimeError("openenv.yaml names no app: pass command= to WorldProvider")
    return _logged(("python3", "-m", "uvicorn", app, "--host", "127.0.0.1", "--port", str(PORT)))


def _logged(words: Sequence[str]) -> str:
    return f"exec {shlex.join(words)} > {_LOG} 2>&1"


class CommandAction(Action):
    """A command for bash. `cd`, variables and functions last until `reset`. keep: keep the state after it."""

    command: str
    keep: bool = False


class CommandObservation(Observation):
    """output: both streams, in the order of writing. exit_code: 124 after a timeout. snapshot: the state that was
    kept, for `reset(snapshot=…)` in any session."""

    output: str = ""
    exit_code: int = 0
    snapshot: str = ""


MOST_KEPT = 10_000
_kept: dict[str, Snapshot] = {}
"""The snapshots that environments of this process have given out, the last used at the end: a client names no others.
To hold them keeps them from `ramify gc`. Of more than `MOST_KEPT`, the first are forgotten."""


def _keep(snapshot: Snapshot) -> None:
    _kept.pop(snapshot.id, None)
    _kept[snapshot.id] = snapshot
    while len(_kept) > MOST_KEPT:
        _kept.pop(next(iter(_kept)), None)


class WorldEnvironment(Environment[CommandAction, CommandObservation, State]):
    """An environment whose actions are commands in a world of its own. Rewards come from a rubric, or from a subclass
    that overrides `step`."""

    SUPPORTS_CONCURRENT_SESSIONS: ClassVar[bool] = True

    def __init__(
        self,
        *,
        timeout_s: float = 60.0,
        sandbox: str | None = None,
        home: str | None = None,
        transform: Any = None,
        rubric: Any = None,
        **options: Any,
    ) -> None:
        """timeout_s: of one command. sandbox, home, options: as `ramify.World.create`, such as `folder` and `image`.
        Raises as it does."""
        super().__init__(transform, rubric)
        self._timeout_s, self._sandbox, self._home = timeout_s, sandbox, home
        with ExitStack() as held:
            shared = held.enter_context(shared_home(home, sandbox))
            self._own(SyncWorld.create(options.pop("folder", None), home=shared, **options), held)
        with ExitStack() as failed:
            failed.callback(self.close)
            self._start = self.world.snapshot()  # `reset` goes back to it; holding it keeps it from `ramify gc`
            failed.pop_all()

    def _own(self, world: SyncWorld, held: ExitStack) -> None:
        held.callback(world.close)
        self.world, self._held = world, held.pop_all()
        self._state = State(episode_id=str(uuid.uuid4()))

    def reset(
        self, seed: int | None = None, episode_id: str | None = None, snapshot: str | None = None, **kwargs: Any
    ) -> CommandObservation:
        """Begin an episode where the world began, or at a snapshot that an observation named. A world has no
        chance in it, so `seed` changes nothing. Raises `ValueError` for another snapshot."""
        if snapshot is not None:
            if (known := _kept.get(snapshot)) is None:
                raise ValueError(
                    f"this server keeps no snapshot {snapshot!r}: pass one of the last {MOST_KEPT:,} that its "
                    "observations named"
                )
            _keep(known)
        self.world.restore(snapshot or self.__dict__.get("_start", ""))  # without one it was closed, which is told
        self._state = State(episode_id=episode_id or str(uuid.uuid4()))
        self._reset_rubric()
        return self._seen(CommandObservation())

    def step(self, action: CommandAction, timeout_s: float | None = None, **kwargs: Any) -> CommandObservation:
        self._state.step_count += 1
        limit = timeout_s or self._timeout_s
        try:
            result = self.world.run(f"eval {shlex.quote(action.command)} 2>&1", timeout=limit)
        except ValueError as error:  # a command that no shell can be given: the client reads it
            observation = CommandObservation(output=str(error), exit_code=_NOT_STARTED)
        else:
            told = f"\nthe command was stopped after {limit} seconds" if result.timed_out else ""
            observation = CommandObservation(output=result.stdout + told, exit_code=result.exit_code)
        if action.keep:
            observation.snapshot = self.snapshot()
        observation.reward = self._apply_rubric(action, observation)
        return self._seen(observation)

    def _seen(self, observation: CommandObservation) -> CommandObservation:
        changed: CommandObservation = self._apply_transform(observation)
        return changed

    @property
    def state(self) -> State:
        return self._state

    def close(self) -> None:
        """End the world. May be called twice."""
        self._held.close()
        self.__dict__.pop("_start", None)  # so that `ramify gc` may have it

    # Beyond OpenEnv's interface

    def snapshot(self, tag: str | None = None) -> str:
        """Keep the world and its shell as they are now. Returns the id, for `restore` and `reset`."""
        kept = self.world.snapshot(tag)
        _keep(kept)
        return kept.id

    def fork(self, n: int = 1) -> list[WorldEnvironment]:
        """Make `n` environments at the state and the step of now. Close each by itself."""
        made: list[WorldEnvironment] = []
        for world in self.world.fork(n):
            beside = type(self).__new__(type(self))
            beside.__dict__.update(self.__dict__)
            with ExitStack() as held:
                held.enter_context(shared_home(self._home, self._sandbox))
                beside._own(world, held)
            beside._state = self._state.model_copy()
            made.append(beside)
        return made

    def restore(self, snapshot: str) -> None:
        """Go back to a snapshot: its id or its tag. The episode goes on."""
        self.world.restore(snapshot)
