"""What stands in the way of worlds is named with its mend, each case apart from the others."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ramify.sandboxes import doctor
from ramify.sandboxes.doctor import Surroundings, obstacles
from ramify.worlds.home import WorldHome
from ramify.worlds.world import World

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
