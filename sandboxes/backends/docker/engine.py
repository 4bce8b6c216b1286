"""The few calls of the Docker Engine that worlds need, through its SDK. All block.

Every container gets the labels `ramify.scratch` and `ramify.session`, and a name that begins with its session's, so
that the next session in the same place finds what a crash left behind. Errors of the SDK become `WorldStartFailed`.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Container, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from ramify.sandboxes.backends.docker.connection import translated_errors
from ramify.sandboxes.contract import Limits
from ramify.sandboxes.errors import SandboxError, WorldStartFailed
from ramify.sandboxes.linux.resource_limits import NO_CORE

if TYPE_CHECKING:
    import docker

SCRATCH, SESSION = "ramify.scratch", "ramify.session"
PREFIX = "ramify-"  # of a container's name; its session and its world follow
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
            with translated_errors(f"looking for the image {name}", may_be_missing=True):
                self._client.images.get(name)
        except docker.errors.NotFound:  # of an image, or of the page itself, for a name that is none
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

    def _variables_and_volumes(self, image: str) -> tuple[list[str], list[str]]:
        """What an image's author has set: names of variables, and folders that are to be volumes."""
        with translated_errors(f"looking at the image {image}"):
            config = self._client.api.inspect_image(image).get("Config") or {}
        names = (str(one).partition("=")[0] for one in config.get("Env") or ())
        return [name for name in names if name], sorted(config.get("Volumes") or ())

    # Containers

    def start(self, plan: Plan) -> None:
        """Run a container, known by its name from now on. Raises `WorldStartFailed` and leaves nothing behind."""
        variables, volumes = self._variables_and_volumes(plan.image)
        if volumes := [place for place in volumes if place not in {**plan.mounts, **plan.writable}]:
            raise WorldStartFailed(
                f"the image {plan.image} has volumes ({', '.join(volumes)}): what commands write there would be in "
                "no snapshot. Use its files without its settings: docker export $(docker create IMAGE) > root.tar, "
                "and image=root.tar"
            )
        with translated_errors("creating a container"):
            container = self._client.containers.create(
                plan.image,
                plan.command,
                name=plan.name,
                entrypoint=[],
                environment=variables,  # a name alone removes it: LD_PRELOAD would be for the agent, too
                healthcheck={"test": ["NONE"]},  # a program of the image, beside the agent and the commands
                use_config_proxy=False,  # it may hold a password
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
            with translated_errors("looking at a container", may_be_missing=True):
                return int(self._client.api.inspect_container(container)["State"]["Pid"])
        except docker.errors.NotFound:
            return 0

    def end(self, container: str, patience_s: float) -> End:
        """Wait this long for its end, else kill it; then remove it and report how it ended."""
        import docker

        try:
            with translated_errors("ending a container", may_be_missing=True):
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
            why = said.decode(errors="replace").strip().rpartition("\n")[2][:500]
            raise SandboxError(f"{' '.join(command)} in a container ended with {code}: {why}")

    def remove(self, container: str) -> None:
        """Kill and remove it, if it exists."""
        import docker

        try:
            with translated_errors("removing a container", may_be_missing=True):
                self._client.api.remove_container(container, force=True, v=True)
        except docker.errors.NotFound:
            pass  # as wanted
        except WorldStartFailed as error:
            if "already in progress" not in str(error):
                raise

    def sweep(self, scratch: Path, living: Container[str]) -> int:
        """Remove containers that nobody else will; return how many there were.

        These are containers of `scratch` whose session is not among the `living`, and ended containers whose own
        scratch folder is gone. Labels alone do not tell: images made of our containers hand them on.
        """

        def abandoned(names: Collection[str], labels: Mapping[str, str], state: str) -> bool:
            if not any(name.startswith(f"/{PREFIX}{labels.get(SESSION)}-") for name in names):
                return False
            if labels[SCRATCH] == str(scratch):
                return labels.get(SESSION) not in living
            return state == "exited" and _is_gone(Path(labels[SCRATCH]))

        with translated_errors("listing containers"):
            found = self._client.containers.list(all=True, filters={"label": SCRATCH}, sparse=True)
        told = ((one.id, one.attrs) for one in found)
        gone = [id for id, one in told if abandoned(one["Names"] or (), one["Labels"], one["State"])]
        for container in gone:
            self.remove(container)
        return len(gone)


def _is_gone(folder: Path) -> bool:
    """Whether a folder certainly does not exist: that of another user may be out of sight."""
    try:
        folder.stat()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return False


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
