"""Worlds as a sandbox provider of NeMo Gym (`nemo_gym.sandbox`), which finds it by an entry point as `ramify`.

    with Sandbox({"ramify": {}}, SandboxSpec(image="python:3.12")) as sandbox:
        sandbox.start()
        sandbox.exec("python3 --version")

`SandboxSpec(provider_options={"snapshot_id": …})` starts at a snapshot, `{"folder": …}` at a copy of a folder.
"""

from __future__ import annotations

import asyncio
import shlex
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ramify.fork_engine.errors import ForkEngineError
from ramify.fork_engine.types import Snapshot
from ramify.images.errors import ImagesError
from ramify.integrations.world_access import os_errors, read_file, upload, write_to_host
from ramify.sandboxes.contract import Limits
from ramify.sandboxes.errors import CommandRefused, SandboxError, WorldDied
from ramify.worlds.errors import WorldClosed, WorldError
from ramify.worlds.world import World

try:
    from nemo_gym.sandbox.providers import (
        SandboxCreateError,
        SandboxExecResult,
        SandboxHandle,
        SandboxResources,
        SandboxSpec,
        SandboxStatus,
    )
except ImportError as error:
    raise ImportError(
        "ramify.integrations.nemo_gym needs nemo-gym, which needs Python 3.12: pip install 'ramify[nemo-gym]'"
    ) from error

NOT_RUN = 125
"""The return code of a command that the sandbox did not run to its end; `error_type` says why."""

_OPTIONS = {"snapshot_id", "folder", "egress"}
_GIB, _MIB = 1 << 30, 1 << 20


@dataclass(eq=False, slots=True)
class _Held:
    """A handle's own state. workdir: where commands start, if the spec named a place."""

    world: World
    workdir: str | None
    expiry: asyncio.TimerHandle | None = None


class WorldProvider:
    """NeMo Gym's provider. It closes the worlds that it made, at the latest in `aclose`."""

    name = "ramify"

    def __init__(
        self,
        *,
        sandbox: str | None = None,
        home: str | None = None,
        egress: Sequence[str] | None = None,
        apply_resource_limits: bool = True,
    ) -> None:
        """sandbox, home, egress: as `ramify.World.create`; without `egress` sandboxes have no network.
        apply_resource_limits: enforce the memory and the disk that a spec names; a machine that cannot refuses."""
        self._sandbox, self._home = sandbox, home
        self._egress = None if egress is None else list(egress)
        self._limits = apply_resource_limits
        self._open: dict[str, _Held] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._given: dict[str, Snapshot] = {}  # to hold them keeps them from `ramify gc`

    async def create(self, spec: SandboxSpec) -> SandboxHandle:
        """Raises `SandboxCreateError`."""
        options = dict(spec.provider_options)
        if unknown := options.keys() - _OPTIONS:
            known = ", ".join(sorted(_OPTIONS))
            raise SandboxCreateError(f"unknown provider_options: {', '.join(sorted(unknown))}; ramify knows {known}")
        try:
            async with asyncio.timeout(spec.ready_timeout_s):
                world = await World.create(
                    options.get("folder"),
                    snapshot=options.get("snapshot_id"),
                    image=None if spec.image is None else spec.image.removeprefix("docker://"),
                    env=spec.env,
                    egress=options.get("egress", self._egress),
                    limits=self._limits_of(spec.resources),
                    sandbox=self._sandbox,
                    home=self._home,
                )
                try:
                    if spec.workdir is not None:
                        await world.exec(["mkdir", "-p", "--", spec.workdir], check=True)
                    if spec.entrypoint is not None:
                        await world.keep_running(shlex.join(spec.entrypoint))
                except BaseException:
                    await world.close()
                    raise
        except TimeoutError:
            raise SandboxCreateError(f"the sandbox was not ready after {spec.ready_timeout_s} seconds") from None
        except (WorldError, SandboxError, ForkEngineError, ImagesError, ValueError, TypeError) as error:
            raise SandboxCreateError(str(error)) from error
        return self._handle(_Held(world, spec.workdir), spec.ttl_s)

    async def exec(
        self,
        handle: SandboxHandle,
        command: str,
        *,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout_s: int | float | None = None,
        user: str | int | None = None,
    ) -> SandboxExecResult:
        held = _held(handle)
        try:
            where = cwd or held.workdir
            result = await held.world.exec(command, cwd=where, env=env, timeout=timeout_s, user=user)
        except (WorldClosed, WorldDied, CommandRefused, ValueError) as error:
            return SandboxExecResult(None, str(error), NOT_RUN, error_type="sandbox")
        if result.timed_out:
            told = f"{result.stderr}\nthe command was stopped after {timeout_s} seconds".lstrip()
            return SandboxExecResult(result.stdout, told, NOT_RUN, error_type="timeout")
        return SandboxExecResult(result.stdout, result.stderr, result.exit_code)

    async def upload_file(self, handle: SandboxHandle, source_path: Path, target_path: str) -> None:
        with os_errors():
            await upload(_held(handle).world, Path(source_path), target_path)

    async def download_file(self, handle: SandboxHandle, source_path: str, target_path: Path) -> None:
        with os_errors():
            data = await read_file(_held(handle).world, source_path)
        await asyncio.to_thread(write_to_host, Path(target_path), data)

    async def status(self, handle: SandboxHandle) -> SandboxStatus:
        try:
            result = await _held(handle).world.exec(["true"])
        except WorldClosed:
            return SandboxStatus.STOPPED
        except SandboxError:
            return SandboxStatus.ERROR
        return SandboxStatus.RUNNING if result.ok else SandboxStatus.ERROR

    async def close(self, handle: SandboxHandle) -> None:
        """May be called twice."""
        held = _held(handle)
        self._open.pop(handle.sandbox_id, None)
        if held.expiry is not None:
            held.expiry.cancel()
        await held.world.close()

    async def aclose(self) -> None:
        """Close what is open. The provider can be used again."""
        for name, held in list(self._open.items()):
            await self.close(SandboxHandle(name, self.name, held))
        self._given.clear()
        if self._ending:
            await asyncio.wait(set(self._ending))

    # Beyond NeMo Gym's interface

    async def snapshot(self, handle: SandboxHandle, tag: str | None = None) -> str:
        """Keep a sandbox as it is now. Returns the snapshot's id, for `restore` and for `snapshot_id`: without
        a tag, `ramify gc` keeps it until `aclose`."""
        given = await _held(handle).world.snapshot(tag)
        self._given[given.id] = given
        return given.id

    async def fork(self, handle: SandboxHandle, n: int = 1) -> list[SandboxHandle]:
        """Make `n` sandboxes at the state of now."""
        held = _held(handle)
        return [self._handle(_Held(world, held.workdir), None) for world in await held.world.fork(n)]

    async def restore(self, handle: SandboxHandle, snapshot: str) -> None:
        """Go back to a snapshot: its id or its tag."""
        await _held(handle).world.restore(snapshot)

    def _handle(self, held: _Held, ttl_s: float | None) -> SandboxHandle:
        made = SandboxHandle(f"ramify-{uuid.uuid4().hex[:12]}", self.name, held)
        self._open[made.sandbox_id] = held
        if ttl_s is not None:
            held.expiry = asyncio.get_running_loop().call_later(ttl_s, self._expire, made)
        return made

    def _expire(self, handle: SandboxHandle) -> None:
        task = asyncio.ensure_future(self.close(handle))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    def _limits_of(self, asked: Any) -> Limits | None:
        assert isinstance(asked, SandboxResources)
        if asked.gpu:
            raise SandboxCreateError("a world has no GPU of its own: choose another provider for this task")
        if not self._limits or (asked.memory_mib is None and asked.disk_gib is None):
            return None
        usual = Limits()
        return Limits(
            memory_bytes=usual.memory_bytes if asked.memory_mib is None else asked.memory_mib * _MIB,
            disk_bytes=usual.disk_bytes if asked.disk_gib is None else asked.disk_gib * _GIB,
        )


def _held(handle: SandboxHandle) -> _Held:
    if not isinstance(handle.raw, _Held):
        raise TypeError(f"the sandbox {handle.sandbox_id!r} is of another provider: {handle.provider_name!r}")
    return handle.raw
