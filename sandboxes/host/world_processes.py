"""The part of a live world that starts processes beside its shell, in parallel."""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager

from ramify.fork_engine.types import Snapshot
from ramify.sandboxes.agent.messages import StartProcess
from ramify.sandboxes.contract import WorldSpec
from ramify.sandboxes.errors import NothingListens, SandboxError, explain_file_limit
from ramify.sandboxes.host.agent_link import AgentLink
from ramify.sandboxes.host.named_shell import SHELL_NAME, NamedShell, ShellPlace
from ramify.sandboxes.host.ports import LOOPBACK, begin_connection, connected
from ramify.sandboxes.host.started_process import LiveProcess, start_process
from ramify.sandboxes.host.world_lifecycle import WorldLifecycle, WorldResources
from ramify.sandboxes.process_contract import Command


class WorldProcesses(WorldLifecycle):
    """Starts processes. A start excludes a seal, a rollback and the end of the world, and nothing else."""

    def __init__(self, resources: WorldResources, snapshot: Snapshot, spec: WorldSpec) -> None:
        super().__init__(resources, snapshot, spec)
        self._processes: set[LiveProcess] = set()  # started and not closed
        self._shells: dict[str, NamedShell] = {}

    async def start(self, command: Command) -> LiveProcess:
        return await self._start_by(self._order(command), stdin=command.stdin)

    async def shell(self, name: str) -> NamedShell:
        if not SHELL_NAME.fullmatch(name):
            raise ValueError(f"not a name for a shell: {name!r}: use letters, digits, '.', '_' and '-'")
        self._require_link()
        if name not in self._shells:
            self._shells[name] = NamedShell(self, name)
        return self._shells[name]

    async def shell_states(self) -> dict[str, bytes]:
        found = {name: await shell.saved() for name, shell in list(self._shells.items())}
        return {name: state for name, state in found.items() if state}

    async def rest_shells(self) -> None:
        """End idle shells, so that a seal can move the tree. They come back with the next command."""
        for shell in list(self._shells.values()):
            await shell.rest()

    def restore_shells(self, states: Mapping[str, bytes]) -> None:
        self._shells = {name: NamedShell(self, name, state) for name, state in states.items()}

    async def start_bash(self, env: Mapping[str, str], cwd: str) -> LiveProcess:
        """A bash that is driven by its `shell_ends`."""
        return await self._start_by(StartProcess([], dict(env), cwd, control=True), stdin=True)

    def shell_place(self) -> ShellPlace:
        """What a named shell has to know of its world."""
        env = {**self._start_env(), **self._spec.command_env}
        tree, secrets, most = self._tree_inside(), self._spec.secrets, self._spec.max_output
        return ShellPlace(tree, self._spec.workdir or tree, str(self._folder), env, secrets, most)

    async def _start_by(self, message: StartProcess, *, stdin: bool) -> LiveProcess:
        await self._ensure_commands()
        async with self._standing.shared():
            link = self._require_link()
            self._inspection, self._only_shell = None, False
            with explain_file_limit(SandboxError):
                process = await start_process(
                    link,
                    message,
                    stdin=stdin,
                    killed_for_memory=await _kills_since_now(link),
                    forget=self._processes.discard,
                )
        self._processes.add(process)
        return process

    def steady(self) -> AbstractAsyncContextManager[None]:
        """While the block runs, the files stay where they are: no seal, no rollback and no end of the world begins,
        and none goes on."""
        return self._standing.shared()

    async def connect(self, port: int) -> socket.socket:
        if not 0 < port < 1 << 16:
            raise ValueError(f"{port} is not a port: a port is a number from 1 to 65535")
        await self._ensure_commands()
        for address in LOOPBACK:
            async with self._standing.shared():
                sock = await begin_connection(self._require_link(), address, port)
            if sock is not None and await connected(sock):
                return sock
        raise NothingListens(f"nothing listens on port {port} of the world's loopback: start the server first")

    async def _ensure_commands(self) -> None:
        """Start what the snapshot and the specification keep running, before the world is used."""

    def _order(self, command: Command) -> StartProcess:
        env = {**self._start_env(), **self._spec.command_env, **self._spec.secrets}
        if command.user:  # these are the user's own
            for name in ("HOME", "USER", "LOGNAME"):
                env.pop(name, None)
        size = command.terminal
        if size is not None and env.get("TERM", "dumb") == "dumb":
            env["TERM"] = "xterm-256color"
        return StartProcess(
            argv=list(command.words) if command.script is None else [command.script],
            env={**env, **command.env},
            cwd=command.cwd,
            script=command.script is not None,
            user=command.user,
            rows=0 if size is None else size.rows,
            columns=0 if size is None else size.columns,
        )

    async def _end_processes(self) -> None:
        try:
            await super()._end_processes()
        finally:
            self._abandon_processes()

    def _abandon_processes(self) -> None:
        """Give up what was started: the world's processes end."""
        shells, self._shells = self._shells, {}
        for shell in shells.values():
            shell.abandon()
        processes, self._processes = self._processes, set()
        for process in processes:
            process.abandon()


async def _kills_since_now(link: AgentLink) -> Callable[[], Awaitable[bool]]:
    """Tells later whether the kernel has killed for memory since now."""
    before = await link.out_of_memory() if link.kills_are_known else 0

    async def killed() -> bool:
        return await link.out_of_memory() > before

    return killed
