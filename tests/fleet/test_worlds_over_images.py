"""Worlds over OCI images on nodes that have no image: it travels with the state. The processes of two nodes are in
this one, without Ray."""

from __future__ import annotations

import io
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

sys.path.insert(0, str(Path(__file__).parents[2]))
from ramify import Runtime
from ramify.fleet.fleet import Fleet, _shared
from ramify.fleet.placement import Member
from ramify.fleet.run_host import RunHost
from ramify.fleet.types import HostFacts, Node, NodeId
from ramify.sandboxes.backends.docker import RootFs
from ramify.worlds.errors import WorldError
from tests.images.image_builder import BuiltImage, layer_tar, write_layout
from tests.machine import why_no_namespaces

pytest.importorskip("obstore", reason="needs obstore (ramify[remote])")
pytestmark = [pytest.mark.linux_ns, pytest.mark.ray]  # they need no Ray: `make test` takes long enough

FACTS = HostFacts("0.2.0", "3.11.7", "m", 7, "boot", "/home", 8 << 30, {"namespaces": ""}, "no CRIU")
SETTINGS = {"Env": ["PATH=/usr/bin:/bin:/opt/bin", "GREETING=hello"], "WorkingDir": "/app"}
TELL = "echo $GREETING $MORE $PATH $PWD; cat /app/main; ls /etc/os"


@pytest.fixture
def layout(tmp_path: Path) -> Path:
    root = io.BytesIO()
    RootFs.of_host(python=False).write(root)
    upper = layer_tar({"app": None, "app/main": "one\n", "etc/os": "two\n"})
    return write_layout(tmp_path / "layout", BuiltImage([root.getvalue(), upper], SETTINGS, compress=bytes))


@pytest_asyncio.fixture
async def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Fleet]:
    if why := why_no_namespaces():
        pytest.skip(why)
    async with Runtime(home=tmp_path / "home", sandbox="namespaces", remote=tmp_path / "bucket") as runtime:
        made, hosts = Fleet(runtime), list[RunHost]()
        for name in ("a", "b"):
            monkeypatch.setenv("RAMIFY_HOME", str(tmp_path / name))
            hosts.append(host := RunHost())
            assert await host.open(_shared(runtime), "namespaces", name) is None
            node = Node(NodeId(name), name, {"CPU": 1.0})
            made._nodes.queue.add(Member(node, FACTS, host, 1))  # type: ignore[arg-type]
        made._is_open = True
        yield made
        for host in hosts:
            assert await host.close() is None


async def test_a_world_over_an_image_that_only_the_program_has_goes_on_elsewhere(fleet: Fleet, layout: Path) -> None:
    async with fleet.world(image=str(layout), env={"MORE": "more"}) as world:
        told = (await world.exec(TELL, check=True)).stdout.splitlines()
        assert told == ["hello more /usr/bin:/bin:/opt/bin /app", "one", "/etc/os"]
        await world.exec("echo changed >> main; rm /etc/os", check=True)
        await world.run("cd /etc; export GREETING=own")
        first = fleet._nodes.queue.members[0]
        assert world.node == first.node.name
        fleet._nodes.queue.remove(first)
        told = (await world.exec(TELL)).stdout.splitlines()
        assert told == ["hello more /usr/bin:/bin:/opt/bin /app", "one", "changed"]
        assert (await world.run("echo $GREETING $PWD")).stdout == "own /etc\n"
        state = await world.fetch()
    async with fleet.world(snapshot=state.id) as again:
        assert (await again.exec("cat /app/main")).stdout == "one\nchanged\n"


async def test_what_is_no_image_is_refused(fleet: Fleet, tmp_path: Path) -> None:
    with pytest.raises(WorldError, match="is none: name an image"):
        await fleet.world(image=tmp_path).__aenter__()
