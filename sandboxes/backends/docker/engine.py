"""The Docker Engine of this machine, through its SDK: find it, and make the few calls that worlds need. All block.

Every container gets the labels `ramify.scratch` and `ramify.session`, so that the next session in the same place
finds what a crash left behind. Errors of the SDK become `BackendUnavailable` or `WorldStartFailed`.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Collection, Container, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from ramify.sandboxes.contract import Limits
from ramify.sandboxes.errors import BackendUnavailable, SandboxError, WorldStartFailed
from ramify.sandboxes.linux.resource_limits import NO_CORE

if TYPE_CHECKING:
    import docker

DEFAULT_HOST = "unix:///var/run/docker.sock"
PATIENCE_S = 60  # for one call
PING_TIMEOUT_S = 5  # for the first reply


def connect() -> docker.DockerClient:
    """Connect to the engine. Raises `BackendUnavailable` with what is missing and what to do about it."""
    try:
        import docker
    except ImportError:
        raise BackendUnavailable("the Docker SDK for Python is not installed: pip install 'ramify[docker]'") from None
    where = os.environ.get("DOCKER_HOST") or DEFAULT_HOST
    check_engine_answers(where)
    try:
        client = docker.DockerClient(base_url=where, version="auto", timeout=PATIENCE_S)
    except docker.errors.DockerException as error:
        raise BackendUnavailable(f"the Docker Engine at {where} cannot be used: {error}") from None
    try:
        _check_users(client)
    except BaseException:
        client.close()
        raise
    return client


def _check_users(client: docker.DockerClient) -> None:
    """Check that users are the same inside and outside: mounted folders need that."""
    with translated_errors("telling about itself"):
        security = client.info().get("SecurityOptions") or []
    for option in ("name=rootless", "name=userns"):
        if any(option in one for one in security):
            raise BackendUnavailable(
                f"the Docker Engine maps users ({option}): files that a world writes would belong to another user. "
                "Use one that does not"
            )


@contextmanager
def translated_errors(doing: str) -> Iterator[None]:
    """Translate the SDK's errors to ours. `NotFound` passes through: callers know what it means."""
    import docker
    import requests

    try:
        yield
    except docker.errors.NotFound:
        raise
    except (docker.errors.DockerException, requests.exceptions.RequestException) as error:
        raise WorldStartFailed(f"the Docker Engine failed at {doing}: {error}") from error


def check_engine_answers(where: str) -> None:
    """Raise `BackendUnavailable` if no engine on this machine answers."""
    scheme, _, path = where.partition("://")
    if scheme != "unix":
        raise BackendUnavailable(
            f"the Docker Engine at {where} may be on another machine, but worlds mount folders of this one: "
            f"unset DOCKER_HOST, or set it to a socket, as {DEFAULT_HOST}"
        )
    try:
        with socket.socket(socket.AF_UNIX) as sock:
            sock.settimeout(PING_TIMEOUT_S)
            sock.connect(path)
            sock.sendall(b"GET /_ping HTTP/1.0\r\n\r\n")  # one that hangs would hold us much longer later
            sock.recv(1)
    except FileNotFoundError:
        raise BackendUnavailable(
            f"no Docker Engine listens on {path}: install one (apt-get install docker.io) and start dockerd"
        ) from None
    except ConnectionRefusedError:
        raise BackendUnavailable(f"no Docker Engine answers on {path}: start dockerd") from None
    except PermissionError:
        raise BackendUnavailable(
            f"you may not use {path}: have an administrator add you to the group docker"
        ) from None
    except OSError as error:
        raise BackendUnavailable(f"no Docker Engine can be reached on {path}: {error}") from None


SCRATCH, SESSION = "ramify.scratch", "ramify.session"
# processes and bytes beyond the limit: for the agent, and for it to name the culprit
ROOM, MEMORY_ROOM = 64, 64 << 20
LOG = {"max-size": "256k", "max-file": "1"}
REMOVED = 2  # the engine's number for this kind of change
ENGINES_OWN = ("/.dockerenv", "/dev", "/proc", "/sys", "/etc/hosts", "/etc/hostname", "/etc/resolv.conf", "/ramify")
ROOT_KEEPS = ("CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID", "NET_BIND_SERVICE", "SETFCAP")


@dataclass(frozen=True, slots=True)
class Plan:
    """How to run one container."""

    image: str
    name: str
    command: list[str]
    mounts: Mapping[str, Path]  # by place inside: the host's folder, read-only
    writable: Mapping[str, Path]
    network: bool
    limits: Limits


@dataclass(frozen=True, slots=True)
class End:
    """How a container ended, and the last line of its log."""

    exit_code: int
    out_of_memory: bool
    last_words: str


@dataclass(frozen=True, slots=True)
class Changes:
    """Changed and removed absolute paths. A removed path that exists nevertheless is a folder that was made anew."""

    changed: tuple[str, ...]
    removed: tuple[str, ...]

    def __bool__(self) -> bool:
        return bool(self.changed or self.removed)


class Engine:
    """One engine, and the labels of what is made there."""

    def __init__(self, client: docker.DockerClient, labels: Mapping[str, str]) -> None:
        self._client = client
        self._labels = dict(labels)

    def close(self) -> None:
        self._client.close()

    @property
    def version(self) -> str:
        return str(self._client.version()["Version"])

    # Images

    def has_image(self, name: str) -> bool:
        import docker

        try:
            with translated_errors(f"looking for the image {name}"):
                self._client.images.get(name)
        except docker.errors.ImageNotFound:
            return False
        return True

    def import_tar(self, tar: BinaryIO, name: str) -> None:
        """Make the image `name` (repository:tag) from the tar of a root file system."""
        repository, _, tag = name.rpartition(":")
        with translated_errors(f"importing the image {name}"):
            # the engine answers with lines of progress, even if it fails
            answer: str = self._client.api.import_image(src=tar, repository=repository, tag=tag)
        if '"error"' in answer:
            raise WorldStartFailed(f"importing the image {name}: {answer.strip()}")

    # Containers

    def start(self, plan: Plan) -> None:
        """Run a container, known by its name from now on. Raises `WorldStartFailed` and leaves nothing behind."""
        with translated_errors("creating a container"):
            container = self._client.containers.create(
                plan.image,
                plan.command,
                name=plan.name,
                entrypoint=[],
                working_dir="/",
                user=_user(),
                labels=self._labels,
                hostname="world",
                network_mode="host" if plan.network else "none",
                mounts=_mounts(plan),
                cap_drop=["ALL"],
                cap_add=list(ROOT_KEEPS) if os.geteuid() == 0 else [],
                security_opt=["no-new-privileges"],
                ipc_mode="private",
                stop_signal="SIGKILL",
                log_config={"Type": "json-file", "Config": LOG},
                **_limits(plan.limits),
            )
        try:
            with translated_errors("starting a container"):
                container.start()
        except WorldStartFailed:
            self.remove(plan.name)
            raise

    def pid(self, container: str) -> int:
        """The host's pid of its first process; 0 if it does not run or does not exist."""
        import docker

        try:
            with translated_errors("looking at a container"):
                return int(self._client.api.inspect_container(container)["State"]["Pid"])
        except docker.errors.NotFound:
            return 0

    def end(self, container: str, patience_s: float) -> End:
        """Wait this long for its end, else kill it; then remove it and report how it ended."""
        import docker

        try:
            with translated_errors("ending a container"):
                self._wait(container, patience_s)
                found = self._client.containers.get(container)
                log = found.logs(tail=1).decode("utf-8", "replace").strip()
                state = found.attrs["State"]
        except docker.errors.NotFound:
            return End(-1, False, "somebody removed its container")
        self.remove(container)
        return End(int(state["ExitCode"]), bool(state["OOMKilled"]), log)

    def _wait(self, container: str, patience_s: float) -> None:
        import requests

        try:
            self._client.api.wait(container, timeout=patience_s)
        except (requests.exceptions.ReadTimeout, requests.exceptions.ConnectionError):
            return  # it still runs; the next call reports an engine that is gone

    def changes(self, container: str, apart: Collection[str]) -> Changes:
        """What differs from the container's image, except in the places `apart` and on the way to them."""
        with translated_errors("looking for what changed in a container"):
            found = self._client.api.diff(container) or []
        apart = (*ENGINES_OWN, *apart)
        changed: list[str] = []
        removed: list[str] = []
        for one in found:
            path, kind = str(one["Path"]), int(one["Kind"])
            if any(path == place or path.startswith(f"{place}/") or place.startswith(f"{path}/") for place in apart):
                continue
            if "\ufffd" in path:
                raise SandboxError(
                    f"{path}: the engine cannot handle names that are not UTF-8. Keep such files in the workspace"
                )
            (removed if kind == REMOVED else changed).append(path)
        return Changes(tuple(changed), tuple(removed))

    def execute(self, container: str, command: list[str]) -> None:
        """Run a program in the container as the container's user. Raises `SandboxError` if it fails."""
        with translated_errors("running a program in a container"):
            started = self._client.api.exec_create(container, command, user=_user())
            said: bytes = self._client.api.exec_start(started["Id"])
            code = self._client.api.exec_inspect(started["Id"])["ExitCode"]
        if code != 0:
            raise SandboxError(
                f"{' '.join(command)} in a container ended with {code}: {said.decode(errors='replace')}"
            )

    def remove(self, container: str) -> None:
        """Kill and remove it, if it exists."""
        import docker

        try:
            with translated_errors("removing a container"):
                self._client.api.remove_container(container, force=True, v=True)
        except docker.errors.NotFound:
            pass  # as wanted
        except WorldStartFailed as error:
            if "already in progress" not in str(error):
                raise

    def sweep(self, scratch: Path, living: Container[str]) -> int:
        """Remove containers that nobody else will; return how many there were.

        These are containers of `scratch` whose session is not among the `living`, and ended containers whose own
        scratch folder is gone.
        """

        def abandoned(labels: Mapping[str, str], state: str) -> bool:
            if labels[SCRATCH] == str(scratch):
                return labels.get(SESSION) not in living
            return state == "exited" and not Path(labels[SCRATCH]).exists()

        with translated_errors("listing containers"):
            found = self._client.containers.list(all=True, filters={"label": SCRATCH}, sparse=True)
        gone = [one.id for one in found if abandoned(one.attrs["Labels"], one.attrs["State"])]
        for container in gone:
            self.remove(container)
        return len(gone)


def _user() -> str:
    return f"{os.geteuid()}:{os.getegid()}"


def _mounts(plan: Plan) -> list[Any]:
    from docker.types import Mount

    fixed = [Mount(inside, str(host), type="bind", read_only=True) for inside, host in plan.mounts.items()]
    free = [Mount(inside, str(host), type="bind") for inside, host in plan.writable.items()]
    return [*fixed, *free]


def _limits(limits: Limits) -> dict[str, Any]:
    """The engine's hard limits. The agent watches the limits itself, and names the one that ended a command."""
    from docker.types import Ulimit

    flags: dict[str, Any] = {"ulimits": [Ulimit(name="core", soft=NO_CORE, hard=NO_CORE)]}
    if limits.memory_bytes is not None:
        memory = limits.memory_bytes + MEMORY_ROOM
        flags |= {"mem_limit": memory, "memswap_limit": memory}
    if limits.processes is not None:
        flags["pids_limit"] = limits.processes + ROOM
    return flags
