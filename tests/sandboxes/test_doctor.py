from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from ramify.fork_engine.store import SnapshotStore
from ramify.sandboxes import doctor, selection
from ramify.sandboxes.capabilities import Capabilities, Feature
from ramify.sandboxes.doctor import capabilities, copy, docker, namespaces
from ramify.sandboxes.errors import BackendUnavailable
from ramify.sandboxes.selection import open_backend

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
