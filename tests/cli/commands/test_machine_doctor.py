from __future__ import annotations

from typing import Any

import pytest

from ramify import __version__

pytestmark = pytest.mark.usefixtures("no_weights")


def test_the_verdict_is_the_exit_status(ramify: Any, tmp_path: Any) -> None:
    said = ramify("doctor", "--json")
    told = said.json
    backends = {one["name"]: one for one in told["sandboxes"]}
    assert set(backends) == {"namespaces", "docker", "copy"}
    assert told["ok"] is backends["namespaces"]["available"]
    assert said.status == (0 if told["ok"] else 1)
    assert bool(backends["namespaces"]["reason"]) is not told["ok"]
    assert (told["home"], told["versions"]["ramify"]) == (str(tmp_path / "home"), __version__)
    assert backends["copy"]["features"]["file_isolation"]["yes"] is False
    for one in backends.values():
        assert all(bool(flag["reason"]) is not flag["yes"] for flag in one["features"].values())
    assert told["models"] == {"smollm2-135m": None}


def test_doctor_output(ramify: Any, tmp_path: Any) -> None:
    said = ramify("doctor")
    head, works, *_ = said.out.splitlines()
    assert head.split() == ["SANDBOX", "namespaces", "docker", "copy"]
    assert works.startswith("works here")
    assert "copy, isolates files: no. commands run as you" in said.out
    assert f"home      {tmp_path}/home (no runs yet)" in said.out.splitlines()
    assert f"ramify --home {tmp_path}/home models pull" in said.out


def test_a_home_that_others_may_read(ramify: Any, tmp_path: Any) -> None:
    home = tmp_path / "home"
    home.mkdir()
    home.chmod(0o755)
    assert ramify("doctor", "--json").json["exposed"] == [str(home)]
    assert f"other users may read {home}: chmod go= {home}" in ramify("doctor").out
    home.chmod(0o700)
    assert ramify("doctor", "--json").json["exposed"] == []


def test_a_machine_without_namespaces(ramify: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr("ramify.sandboxes.doctor.namespaces", lambda scratch: _broken())
    said = ramify("doctor")
    assert said.status == 1
    assert "namespaces: no user namespaces here" in said.out
    assert "--sandbox copy" in said.out


def _broken() -> Any:
    from ramify.sandboxes.capabilities import Capabilities, flags

    return Capabilities("namespaces", flags({}), reason="no user namespaces here")
