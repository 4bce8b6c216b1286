"""`ramify world connections` and `allow`, and credentials on the command line."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import click
import pytest

from ramify.cli.commands.world_connections import read_credentials
from ramify.sandboxes import doctor
from ramify.sandboxes.egress.errors import BadCredential
from tests.warm_process import WarmInterpreter

Call = Callable[..., subprocess.CompletedProcess[str]]
FORMATS = Path(__file__).parents[3] / "docs" / "reference" / "formats.md"


@pytest.fixture
def call(tmp_path: Path, warm: WarmInterpreter) -> Call:
    env = {**os.environ, "RAMIFY_HOME": str(tmp_path / "home"), "RAMIFY_SANDBOX": "namespaces", "KEY": "sk-12345"}

    def call(*words: str) -> subprocess.CompletedProcess[str]:
        return warm.run(["world", *words], cwd=tmp_path, env=env)

    return call


@pytest.mark.linux_ns
def test_allow_list_of_a_world(call: Call, tmp_path: Path) -> None:
    able = doctor.namespaces(tmp_path)
    if not able.available:
        pytest.skip(able.reason)
    made = call("new", "--name", "one", "--allow", "pypi.org", "--allow", "127.0.0.1:8000")
    assert made.stdout == "one\n", made.stderr
    assert call("allow", "one").stdout == "pypi.org\n127.0.0.1:8000\n"
    assert call("connections", "one").stdout == "the world one made no connections\n"
    key = ("--credential", "api.example.org=authorization: Bearer $KEY")
    assert "add api.example.org:443" in call("exec", *key, "one", "--", "true").stderr
    assert call("allow", "one", "api.example.org").returncode == 0
    told = call("exec", *key, "one", "--", "bash", "-c", "env; curl -sS https://no.test/")
    assert "403" in told.stderr
    assert "sk-12345" not in told.stdout
    assert "no.test:443" in call("connections", "one", "--refused").stdout
    (one,) = json.loads(call("connections", "one", "--json").stdout)
    (keys,) = re.findall(r"^\| `world connections` \| a list.* \| (.+) \|$", FORMATS.read_text(), re.MULTILINE)
    assert list(one) == keys.split(", ")
    assert call("allow", "one", "--none").returncode == 0
    assert call("allow", "one").stdout == ""
    refused = call("allow", "one", "https://pypi.org")
    assert refused.returncode == 1
    assert "the egress entry 'https://pypi.org' cannot be read" in refused.stderr
    assert call("connections", "none").returncode == 1


def test_credentials_are_read_from_variables() -> None:
    variables = {"KEY": "sk-12345", "USER": "u"}
    found = read_credentials(("a.test=authorization: Bearer $KEY", "http://b.test:80=X-Key:${USER}:$KEY"), variables)
    assert {host: (one.name, one.value) for host, one in found.items()} == {
        "a.test": ("authorization", "Bearer sk-12345"),
        "http://b.test:80": ("X-Key", "u:sk-12345"),
    }
    for bad in (
        "a.test",
        "a.test=authorization",
        "a.test=authorization: Bearer sk-12345",
        "=a: $KEY",
        "a.test=a: $NONE",
    ):
        with pytest.raises(click.BadParameter) as refused:
            read_credentials((bad,), variables)
        assert "sk-12345" not in str(refused.value)
    with pytest.raises(BadCredential):
        read_credentials(("a.test=host: $KEY",), variables)
