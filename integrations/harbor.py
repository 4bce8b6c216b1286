"""A world as an environment of Harbor (`harbor.environments.base.BaseEnvironment`), over the task's image.

    harbor run -p ./task -a oracle -e ramify.integrations.harbor:WorldEnvironment

The task's `docker_image` is pulled, or its Dockerfile is built by buildah, without a daemon. Each layer is stored
once for all tasks. What the task allows of the network is enforced by a broker outside the world.
"""

from __future__ import annotations

import asyncio
import codecs
import copy
import re
from collections.abc import AsyncIterable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, ClassVar

from ramify.images.errors import BuildFailed, ImageNotFound
from ramify.integrations.world_access import NotStarted, download, os_errors, read_file, upload, write_to_host
from ramify.sandboxes.contract import Limits
from ramify.sandboxes.errors import CommandRefused
from ramify.worlds.errors import NameTaken
from ramify.worlds.home import WorldHome
from ramify.worlds.world import World

try:
    from harbor.environments.base import BaseEnvironment, ExecResult, OutputCallback, SandboxBuildFailedError
    from harbor.environments.capabilities import EnvironmentCapabilities, EnvironmentResourceCapabilities
    from harbor.environments.definition import (
        COMPOSE_FILE_NAME,
        DOCKERFILE_NAME,
        require_agent_environment_definition,
        should_use_prebuilt_docker_image,
    )
    from harbor.environments.options import EnvironmentOptions
    from harbor.models.task.config import NetworkMode, NetworkPolicy
    from harbor.models.trial.config import ResourceMode
except ImportError as error:
    raise ImportError(
        "ramify.integrations.harbor needs harbor, which needs Python 3.12: pip install 'ramify[harbor]'"
    ) from error

_MIB = 1 << 20


class WorldOptions(EnvironmentOptions):
    """What `--environment-kwarg` (`--ek`) sets. image: instead of the task's, anything that `ramify.World.create`
    takes. sandbox, home: as there."""

    image: str | None = None
    sandbox: str | None = None
    home: str | None = None


class WorldEnvironment(BaseEnvironment):
    """A trial's environment: a world between `start` and `stop`."""

    options_model: ClassVar[type[EnvironmentOptions] | None] = WorldOptions
    options: WorldOptions

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """As `BaseEnvironment`, with the fields of `WorldOptions`."""
        super().__init__(*args, **kwargs)
        self._world: World | None = None
        self._held = AsyncExitStack()
        self._forks = 0

    @staticmethod
    def type() -> str:
        return "ramify"

    @property
    def capabilities(self) -> EnvironmentCapabilities:
        return EnvironmentCapabilities(
            disable_internet=True,
            network_allowlist=True,
            network_allowlist_hostnames=True,
            network_allowlist_wildcard_hostnames=True,
            network_allowlist_ipv4_addresses=True,
            network_allowlist_ipv6_addresses=True,
            network_allowlist_ipv4_cidrs=True,
            network_allowlist_ipv6_cidrs=True,
            dynamic_network_policy=True,
        )

    @classmethod
    def resource_capabilities(cls) -> EnvironmentResourceCapabilities:
        return EnvironmentResourceCapabilities(memory_limit=True)

    def _validate_definition(self) -> None:
        if self.options.image is not None:
            return
        image = self.task_env_config.docker_image
        require_agent_environment_definition(self.environment_dir, docker_image=image)
        if not image and not (self.environment_dir / DOCKERFILE_NAME).exists():
            raise ValueError(
                f"{self.environment_dir} has a {COMPOSE_FILE_NAME} alone, and a world is one container: use Harbor's "
                "docker environment for this task"
            )

    @property
    def world(self) -> World:
        """Raises `NotStarted`."""
        if self._world is None:
            raise NotStarted("the environment was not started, or was stopped")
        return self._world

    async def start(self, force_build: bool) -> None:
        """Raises `SandboxBuildFailedError` for a Dockerfile that does not build, and as `ramify.World.create`."""
        if self._world is not None:
            return
        memory = self._resource_limit_value("memory", auto_mode=ResourceMode.REQUEST)
        async with AsyncExitStack() as stack:
            home = await stack.enter_async_context(WorldHome(self.options.home, self.options.sandbox))
            self._world = await World.create(
                image=await self._image(home, force_build),
                egress=_egress(self._network_policy),
                limits=None if memory is None else Limits(memory_bytes=memory * _MIB),
                home=home,
            )
            self._held = stack.pop_all()
        workdir = self.task_env_config.workdir
        await self.ensure_dirs([*self._mount_targets(writable_only=True)])
        if workdir:
            await self.ensure_dirs([workdir], chmod=False)
        await self._upload_environment_dir_after_start()

    async def _image(self, home: WorldHome, force_build: bool) -> str:
        """The image's name for `World.create`: the task's, or of what its Dockerfile builds."""
        image = self.options.image or self.task_env_config.docker_image
        if self.options.image is not None or should_use_prebuilt_docker_image(
            self.environment_dir, docker_image=image, force_build=force_build
        ):
            assert image is not None
            return image
        name = f"localhost/harbor/{self.environment_id}:latest"
        try:
            if force_build:
                raise ImageNotFound(name)
            return home.images.catalogue.get(name).id
        except ImageNotFound:
            try:
                return (await home.images.build(self.environment_dir, name)).id
            except BuildFailed as error:
                raise SandboxBuildFailedError(str(error)) from error

    async def stop(self, delete: bool) -> None:
        """End the world. Without `delete`, its last state is kept under the tag `harbor-SESSION`, for
        `ramify world new --from`. May be called twice."""
        world, self._world = self._world, None
        try:
            if world is not None:
                try:
                    if not delete:
                        await self._keep(world)
                finally:
                    await world.close()
        finally:
            await self._held.aclose()

    async def _keep(self, world: World) -> None:
        tag = "harbor-" + re.sub(r"[^A-Za-z0-9._-]", "-", self.session_id)[:50]
        try:
            await world.snapshot(tag)
        except NameTaken:
            self.logger.warning(f"the tag {tag} is taken: the state of this environment was not kept")
            return
        self.logger.info(f"the environment's last state has the tag {tag}")

    async def exec(
        self,
        command: str,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout_sec: int | None = None,
        user: str | int | None = None,
    ) -> ExecResult:
        """Raises `RuntimeError` if the command takes too long, as Harbor's own environments do."""
        where, variables = cwd or self.task_env_config.workdir, self._merge_env(env)
        who, told = self._resolve_user(user), self._output_callback()
        try:
            if told is not None:
                return await self._streamed(command, where, variables, timeout_sec, who, told)
            result = await self.world.exec(command, cwd=where, env=variables, timeout=timeout_sec, user=who)
        except (CommandRefused, ValueError) as error:
            return ExecResult(stdout="", stderr=str(error), return_code=126)
        if result.timed_out:
            raise _too_late(timeout_sec)
        return ExecResult(stdout=result.stdout, stderr=result.stderr, return_code=result.exit_code)

    async def _streamed(
        self,
        command: str,
        cwd: str | None,
        env: dict[str, str] | None,
        timeout: float | None,
        user: str | int | None,
        told: OutputCallback,
    ) -> ExecResult:
        said: dict[str, list[str]] = {"stdout": [], "stderr": []}

        async def follow(stream: AsyncIterable[bytes], name: Any) -> None:
            decoder = codecs.getincrementaldecoder("utf-8")("replace")
            async for data in stream:
                if text := decoder.decode(data):
                    said[name].append(text)
                    await told(text, name)

        async with self.world.start(command, cwd=cwd, env=env, user=user) as process:
            try:
                async with asyncio.timeout(timeout), asyncio.TaskGroup() as group:
                    group.create_task(follow(process.stdout, "stdout"))
                    group.create_task(follow(process.stderr, "stderr"))
                    code = await process.wait()
            except TimeoutError:
                raise _too_late(timeout) from None
        return ExecResult(stdout="".join(said["stdout"]), stderr="".join(said["stderr"]), return_code=code)

    async def _apply_network_policy(self, network_policy: NetworkPolicy) -> None:
        await self.world.set_egress(_egress(network_policy))

    async def upload_file(self, source_path: Path | str, target_path: str) -> None:
        with os_errors():
            await upload(self.world, Path(source_path), target_path)

    async def upload_dir(self, source_dir: Path | str, target_dir: str) -> None:
        with os_errors():
            await upload(self.world, Path(source_dir), target_dir)

    async def download_file(self, source_path: str, target_path: Path | str) -> None:
        with os_errors():
            data = await read_file(self.world, source_path)
        target = Path(target_path)
        await asyncio.to_thread(write_to_host, target, data)

    async def download_dir(self, source_dir: str, target_dir: Path | str) -> None:
        with os_errors():
            await download(self.world, source_dir, Path(target_dir))

    # Beyond Harbor's interface

    async def snapshot(self, tag: str | None = None) -> str:
        """Keep the world as it is now. Returns the snapshot's id."""
        return (await self.world.snapshot(tag)).id

    async def fork(self, n: int = 1) -> list[WorldEnvironment]:
        """Make `n` started environments at the state of now. Stop each before this one."""
        made = []
        for world in await self.world.fork(n):
            self._forks += 1
            beside = copy.copy(self)
            beside.session_id = f"{self.session_id}-fork{self._forks}"
            beside._world, beside._held, beside._forks = world, AsyncExitStack(), 0
            made.append(beside)
        return made

    async def restore(self, snapshot: str) -> None:
        """Go back to a snapshot: its id or its tag."""
        await self.world.restore(snapshot)


def _egress(policy: NetworkPolicy) -> list[str]:
    """The allow-list that enforces a policy. Ports are not part of Harbor's policies."""
    if policy.network_mode is NetworkMode.PUBLIC:
        return ["*:*"]
    if policy.network_mode is NetworkMode.NO_NETWORK:
        return []
    return [f"[{host}]:*" if ":" in host else f"{host}:*" for host in policy.allowed_hosts]


def _too_late(timeout: float | None) -> RuntimeError:
    return RuntimeError(f"Command timed out after {timeout} seconds")
