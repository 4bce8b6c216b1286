"""What this machine can do is found out, and what stands in the way of worlds is named with its mend."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from ramify.fork_engine.store import SnapshotStore
from ramify.sandboxes import doctor, selection
from ramify.sandboxes.capabilities import Capabilities, Feature
from ramify.sandboxes.doctor import Surroundings, capabilities, copy, docker, namespaces, obstacles
from ramify.sandboxes.errors import BackendUnavailable
from ramify.sandboxes.selection import open_backend
from ramify.worlds.home import WorldHome
from ramify.worlds.world import World

FORBIDDEN = """
import json, sys
from pathlib import Path
Path("/proc/sys/user/max_user_namespaces").write_text("0")
from ramify.sandboxes import doctor
from ramify.sandboxes.selection import open_backend
from ramify.sandboxes.errors import BackendUnavailable
able, _, copy = doctor.capabilities(Path(sys.argv[1]))
try:
    open_backend("namespaces", None, Path(sys.argv[1]))
except BackendUnavailable as error:
    print(json.dumps([able.available, copy.available, able.reason, str(error)]))
"""


@pytest.mark.linux_ns
def test_a_capable_machine_is_reported(tmp_path: Path) -> None:
    namespaces, _, copy = capabilities(tmp_path / "new")
    assert (namespaces.backend, namespaces.available, namespaces.reason) == ("namespaces", True, "")
    assert namespaces.can(Feature.FILE_ISOLATION)
    assert namespaces.can(Feature.NETWORK_ISOLATION)
    assert (copy.backend, copy.available, copy.can(Feature.FILE_ISOLATION)) == ("copy", True, False)
    assert list((tmp_path / "new").iterdir()) == []


@pytest.mark.linux_ns
def test_a_machine_that_forbids_namespaces_gets_a_reason_and_a_remedy(tmp_path: Path) -> None:
    # a user namespace of our own has its own switch, which we may turn off
    command = ["unshare", "--user", "--map-root-user", "--mount", sys.executable, "-c", FORBIDDEN, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    available, copy, reason, error = json.loads(done.stdout)
    assert (available, copy) == (False, True)
    assert "unshare(user" in reason
    assert "user.max_user_namespaces is 0: run `sysctl user.max_user_namespaces=10000` as root" in reason
    assert "--sandbox copy" in error
    assert reason in error


@pytest.mark.linux_ns
def test_a_process_tries_namespaces_once_on_a_file_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[Path] = []

    def trying(scratch: Path) -> Capabilities:
        tried.append(scratch)
        return namespaces(scratch)

    monkeypatch.setattr(doctor, "namespaces", trying)
    monkeypatch.setattr(selection, "_places_of_worlds", set())
    store = SnapshotStore(tmp_path / "store")
    for scratch in (tmp_path / "a", tmp_path / "b" / "c"):
        open_backend("namespaces", store, scratch)
    assert tried == [tmp_path / "a"]


@pytest.mark.linux_ns
def test_a_failure_is_not_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selection, "_places_of_worlds", set())
    store = SnapshotStore(tmp_path / "store")
    with monkeypatch.context() as without, pytest.raises(BackendUnavailable, match="bash is not installed"):
        without.setenv("PATH", str(tmp_path))
        without.setattr("os.defpath", str(tmp_path))
        open_backend("namespaces", store, tmp_path / "scratch")
    open_backend("namespaces", store, tmp_path / "scratch")


def test_an_impossible_scratch_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    namespaces, *_ = capabilities(tmp_path / "file" / "below")
    assert not namespaces.available
    assert str(tmp_path / "file" / "below") in namespaces.reason


def test_missing_bash_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("os.defpath", str(tmp_path))
    for able in (namespaces(tmp_path), copy()):
        assert not able.available
        assert "bash is not installed" in able.reason


def test_an_unknown_backend_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BackendUnavailable, match="namespaces, docker, copy"):
        open_backend("magic", None, tmp_path)  # type: ignore[arg-type]
    assert not issubclass(BackendUnavailable, ValueError)


def test_a_missing_engine_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("docker", reason="the docker extra is not installed")
    deaf = tmp_path / "deaf.sock"
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(deaf))
    for where, said in (
        ("unix:///nowhere/docker.sock", "no Docker Engine listens on /nowhere/docker.sock: install one"),
        (f"unix://{deaf}", f"no Docker Engine answers on {deaf}: start dockerd"),
        ("tcp://127.0.0.1:1", "tcp://127.0.0.1:1 may be on another machine"),
    ):
        monkeypatch.setenv("DOCKER_HOST", where)
        assert said in docker().reason
        with pytest.raises(BackendUnavailable, match="worlds in containers cannot be made here"):
            open_backend("docker", None, tmp_path)  # type: ignore[arg-type]


def test_a_missing_sdk_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "docker", None)
    assert "pip install 'ramify[docker]'" in docker().reason


def test_every_missing_feature_has_a_reason_and_no_other_has(tmp_path: Path) -> None:
    for able in capabilities(tmp_path):
        assert [flag.feature for flag in able.flags] == list(Feature)
        for flag in able.flags:
            assert able.can(flag.feature) is not bool(able.why_not(flag.feature))


IMPORTS = "from pathlib import Path\n"
ASK = f"{IMPORTS}from ramify.sandboxes.doctor import Surroundings\nprint(Surroundings.read(Path('/tmp')).in_world)\n"
NOW = "6.8.0"
APPARMOR = "kernel/apparmor_restrict_unprivileged_userns"
DOCKER = "this container (docker) forbids namespaces or mounts: start it with "


@pytest.mark.parametrize(
    ("around", "named"),
    [
        (Surroundings("5.10.0-8"), ["Linux 5.10.0-8 is too old"]),
        (Surroundings(NOW, {"user/max_user_namespaces": "0"}), ["user.max_user_namespaces is 0: run `sysctl"]),
        (Surroundings(NOW, {APPARMOR: "1"}), ["is 1: give this Python an AppArmor profile with `userns,`"]),
        (Surroundings(NOW, {APPARMOR: "0"}), ["a container or a security module may"]),
        (
            Surroundings(NOW, container="docker", filtered=True, hides_proc=True, profile="docker-default"),
            [
                f"{DOCKER}`--security-opt seccomp=unconfined --security-opt apparmor=unconfined --security-opt "
                "systempaths=unconfined`"
            ],
        ),
        (
            Surroundings(NOW, container="docker", hides_proc=True),
            [f"{DOCKER}`--security-opt systempaths=unconfined`"],
        ),
        (Surroundings(NOW, container="podman", hides_proc=True), ["`--security-opt unmask=ALL`"]),
        (
            Surroundings(NOW, container="docker", file_system="overlay"),
            ["/w is on overlay", "a volume of the container"],
        ),
        (Surroundings(NOW, file_system="nfs4"), ["/w is on nfs4"]),
        (Surroundings(NOW, filtered=True), ["a seccomp filter of a parent process", "RestrictNamespaces=no"]),
        (Surroundings(NOW, in_world=True, filtered=True, file_system="overlay"), ["this process runs in a world"]),
    ],
)
def test_each_case_has_its_own_mend(around: Surroundings, named: list[str]) -> None:
    (told,) = obstacles(around, "/w")
    assert all(words in told for words in named), told


def test_several_obstacles_are_all_named() -> None:
    around = Surroundings(NOW, {APPARMOR: "1"}, container="docker", filtered=True, file_system="overlay")
    assert len(obstacles(around, "/w")) == 3


@pytest.mark.linux_ns
def test_the_doctor_names_a_switch(tmp_path: Path) -> None:
    """In a user namespace whose own limit is 0, so that nothing else on this machine is touched."""
    program = (
        f"{IMPORTS}from ramify.sandboxes import doctor\nprint(doctor.namespaces(Path({str(tmp_path)!r})).reason)"
    )
    able = doctor.namespaces(tmp_path)
    if not able.available or shutil.which("unshare") is None:
        pytest.skip(able.reason or "unshare is not installed")
    limited = 'echo 0 > /proc/sys/user/max_user_namespaces && exec "$@"'
    words = ["unshare", "-Ur", "sh", "-c", limited, "sh", sys.executable, "-c", program]
    told = subprocess.run(words, capture_output=True, text=True, check=False)
    assert "user.max_user_namespaces is 0: run `sysctl user.max_user_namespaces=10000` as root" in told.stdout


@pytest.mark.linux_ns
async def test_the_doctor_knows_a_world_from_inside(tmp_path: Path) -> None:
    able = doctor.namespaces(tmp_path)
    if not able.available:
        pytest.skip(able.reason)
    if Path(doctor.__file__).resolve().is_relative_to("/tmp"):
        pytest.skip("Ramify lies in /tmp, and a world has a /tmp of its own")
    async with WorldHome(tmp_path / "home", "namespaces") as home, World.create(home=home) as world:
        await world.write("ask.py", ASK)
        told = await world.exec([sys.executable, "ask.py"])
        assert told.stdout == "True\n", told.stderr
