"""A program outside the cluster (ray://): everything it places goes to nodes, through a server on the head."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import branches_app
import fleet_app
import pytest

from tests.ports import free_port

pytestmark = [
    pytest.mark.ray,
    pytest.mark.filterwarnings("ignore"),  # Ray leaves files open and uses what is deprecated
    pytest.mark.timeout(600),  # its processes take seconds to start on slow machines
]
LONGEST_S = 240.0

PROGRAM = """
import asyncio, json, sys
from contextlib import AsyncExitStack
from pathlib import Path

import branches_app, fleet_app, ray
from ramify import Fleet, Runtime
from ramify.compiler.plan import OpKind

where, address, bucket, folder, name, *more = sys.argv[1:]
told = []

async def works(fleet):
    told.append(sorted(node.split(" ")[0] for node in fleet.nodes))
    told.append(fleet._nodes.here)
    pids = await asyncio.gather(*(fleet.run(fleet_app.where, folder) for _ in range(4)))
    told.append(set(pids) == {facts.pid for facts in fleet.nodes.values()})
    try:
        await fleet.run(fleet_app.refuses, "no")
    except Exception as error:
        told.append(f"{type(error).__name__}: {error.__cause__}")
    async with fleet.world() as world:
        await world.exec("echo one > words")
        told.append((await world.read("words")).decode())
        forks = await world.fork(3)
        outputs = await asyncio.gather(*(one.exec(f"cat words; echo {n}") for n, one in enumerate(forks)))
        told.append([one.stdout for one in outputs])
        told.append(len({one.node for one in forks}))
    (Path(folder) / branches_app.GATE).touch()
    result = await fleet.runtime.run(branches_app.takes_last, folder)
    rows = await fleet.runtime.store.ops(fleet.runtime.last_run_id)
    told.append(all(row.attrs.get("node") for row in rows if row.step == "write" and row.kind is OpKind.RUN))
    cancelled = asyncio.create_task(fleet.run(fleet_app.words, folder, "a"))
    while not (Path(folder) / fleet_app.SENT).exists():
        await asyncio.sleep(0.05)
    cancelled.cancel()
    await asyncio.wait({cancelled})
    told.append(cancelled.cancelled())
    told.append([run.status.value for run in await fleet.runtime.store.runs() if run.name == "words"])

async def waits(fleet):
    told.append(fleet._nodes._cluster.silence_s)
    run = await fleet.runtime.create(fleet_app.words, (folder, "a"), {})
    told.append(run.id)
    async with fleet.world() as world:
        await world.exec("echo one > words")
        for call in (fleet.resume(run.id), world.exec("sleep 1; echo two > words")):
            try:
                await call
            except Exception as error:
                told.append(f"{type(error).__name__}: {error}")
        await world.checkout(where + "/out")

async def shares(fleet):
    async with AsyncExitStack() as stack:
        others = [await stack.enter_async_context(Fleet(fleet.runtime, address)) for _ in range(2)]
        told.append([len(one.nodes) for one in others])
    told.append(await fleet.run(fleet_app.where, folder) > 0)
    try:
        async with Fleet(fleet.runtime, "ray://127.0.0.1:1"):
            told.append("it used another cluster")
    except Exception as error:
        told.append(f"{type(error).__name__}: {error}")

async def loses(fleet):
    await waits(fleet)
    told.append(ray.is_initialized())
    async with Fleet(fleet.runtime, more[0]) as another:
        told.append(await another.run(fleet_app.where, folder) > 0)

async def main():
    async with Runtime(
        home=where + "/program", database=where + "/shared.db", remote=bucket, sandbox="copy"
    ) as runtime:
        async with Fleet(runtime, address) as fleet:
            await {"works": works, "waits": waits, "shares": shares, "loses": loses}[name](fleet)
    print(json.dumps(told))

asyncio.run(main())
"""


def add(cluster: Any, **how: Any) -> None:
    """Ray gives a node 30 seconds to start, which is not enough under much load: it is tried again."""
    for left in reversed(range(3)):
        try:
            cluster.add_node(**how)
        except Exception:  # Ray raises no other class
            if not left:
                raise
        else:
            return


@contextmanager
def cluster_for_clients(folder: Path) -> Iterator[Any]:
    """Two nodes, and a head that takes clients."""
    pytest.importorskip("ray", reason="needs Ray (ramify[ray]; .ci/run ray installs it)")
    pytest.importorskip("grpc", reason="needs Ray's client (ramify[ray]; .ci/run ray installs it)")
    from ray.cluster_utils import Cluster

    port = free_port()
    cluster = Cluster()
    try:
        for number, more in enumerate(({"ray_client_server_port": port}, {})):
            variables = {"RAMIFY_HOME": str(folder / f"home{number}")}
            memory = {"object_store_memory": 80 << 20, "include_dashboard": False}
            add(cluster, num_cpus=1, env_vars=variables, **memory, **more)
        cluster.client_address, cluster.bucket = f"ray://127.0.0.1:{port}", str(folder / "bucket")
        yield cluster
    finally:
        cluster.shutdown()


@pytest.fixture(scope="module")
def clients(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with cluster_for_clients(tmp_path_factory.mktemp("raylets")) as found:
        yield found


@pytest.fixture
def own_cluster(tmp_path: Path) -> Iterator[Any]:
    """For a test that breaks it."""
    with cluster_for_clients(tmp_path) as found:
        yield found


def begin(*arguments: str, **variables: str) -> subprocess.Popen[str]:
    folders = [str(Path(fleet_app.__file__).parent), *sys.path]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(folders), **variables}
    return subprocess.Popen(
        [sys.executable, *arguments], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
    )


def ended(program: subprocess.Popen[str]) -> tuple[str, str]:
    try:
        out, err = program.communicate(timeout=LONGEST_S)
    finally:
        program.kill()
    assert program.returncode == 0, err
    return out, err


def until(there: Callable[[], bool], program: subprocess.Popen[str]) -> None:
    end = time.monotonic() + LONGEST_S
    while not there():
        assert program.poll() is None, program.communicate()
        assert time.monotonic() < end
        time.sleep(0.1)


def test_a_program_outside_places_everything_on_nodes(clients: Any, tmp_path: Path, folder: Path) -> None:
    out, _ = ended(begin("-c", PROGRAM, str(tmp_path), clients.client_address, clients.bucket, str(folder), "works"))
    hostname = socket.gethostname()
    assert json.loads(out) == [
        [hostname, hostname],
        None,
        True,
        "StepFailed: no",
        "one\n",
        [f"one\n{n}\n" for n in range(3)],
        2,
        True,
        True,
        ["cancelled"],
    ]
    assert branches_app.told(folder, "begun")


def test_the_command_line_from_outside_prints_only_the_result(clients: Any, tmp_path: Path, folder: Path) -> None:
    command = ["-c", "from ramify.cli.start import main; main()", "--home", str(tmp_path / "home")]
    command += ["run", f"{fleet_app.__file__}:where"]
    where = ["--remote", clients.bucket, "--sandbox", "copy", "--fleet"]
    out, err = ended(begin(*command, str(folder), *where, clients.client_address))
    assert out.strip().isdecimal()
    assert "goes on on node" in err
    by_variable = begin(*command, str(folder), *where, "auto", RAY_ADDRESS=clients.client_address)
    assert ended(by_variable)[0].strip().isdecimal()


def test_a_head_that_is_gone_ends_what_waits_and_the_work_is_kept(
    own_cluster: Any, tmp_path: Path, folder: Path
) -> None:
    asked = ["-c", PROGRAM, str(tmp_path), own_cluster.client_address, own_cluster.bucket, str(folder), "waits"]
    program = begin(*asked, RAY_CLIENT_RECONNECT_GRACE_PERIOD="6")
    until((folder / fleet_app.SENT).exists, program)
    for process in own_cluster.head_node.all_processes["gcs_server"]:
        os.kill(process.process.pid, signal.SIGKILL)
    silence, run, of_run, of_world = json.loads(ended(program)[0])
    assert silence == 6.0
    assert of_run.startswith(f"ClusterUnreachable: no node can take run {run}.")
    assert of_world.startswith("ClusterUnreachable: no node can take this world.")
    assert "has not answered for 6 s" in of_run
    assert (tmp_path / "out" / "words").read_text() == "one\n"


class Wire:
    """Connections to a port of this machine, which can be cut. `port`: its own."""

    def __init__(self, to: int) -> None:
        self._to, self._sockets = to, list[socket.socket]()
        self._listens = socket.create_server(("127.0.0.1", 0))
        self.port = self._listens.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """Close the connections, and take no more."""
        for one in (self._listens, *self._sockets):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _accept(self) -> None:
        with suppress(OSError):  # it was cut
            while True:
                one, _ = self._listens.accept()
                other = socket.create_connection(("127.0.0.1", self._to))
                self._sockets += [one, other]
                for ends in ((one, other), (other, one)):
                    threading.Thread(target=self._carry, args=ends, daemon=True).start()

    def _carry(self, one: socket.socket, other: socket.socket) -> None:
        with suppress(OSError):
            while data := one.recv(1 << 16):
                other.sendall(data)
            other.shutdown(socket.SHUT_WR)


def test_fleets_of_a_program_share_its_connection(clients: Any, tmp_path: Path, folder: Path) -> None:
    out, _ = ended(begin("-c", PROGRAM, str(tmp_path), clients.client_address, clients.bucket, str(folder), "shares"))
    nodes, works, refused = json.loads(out)
    assert (nodes, works) == ([2, 2], True)
    assert refused.startswith("ClusterUnreachable: this program is connected to the Ray cluster 'ray://")


def test_a_connection_that_is_lost_is_not_replaced_by_one_to_another_cluster(
    clients: Any, tmp_path: Path, folder: Path
) -> None:
    wire = Wire(int(clients.client_address.rpartition(":")[2]))
    through = f"ray://127.0.0.1:{wire.port}"
    asked = ["-c", PROGRAM, str(tmp_path), through, clients.bucket, str(folder), "loses", clients.client_address]
    program = begin(*asked, RAY_CLIENT_RECONNECT_GRACE_PERIOD="6")
    until((folder / fleet_app.SENT).exists, program)
    wire.cut()
    _, run, of_run, of_world, is_connected, works = json.loads(ended(program)[0])
    assert of_run.startswith(f"ClusterUnreachable: no node can take run {run}.")
    assert of_world.startswith("ClusterUnreachable: no node can take this world.")
    assert (is_connected, works) == (False, True)
    assert (tmp_path / "out" / "words").read_text() == "one\n"


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("ray://127.0.0.1:1", "listens at 127.0.0.1:1"),
        ("ray://", "is not an address: ray://HOST:10001"),
        ("ray://h:none", "is not an address"),
        ("http://127.0.0.1:8265", 'name "auto", HOST:PORT of its head, or ray://HOST:10001'),
    ],
)
def test_addresses_that_are_no_cluster(tmp_path: Path, folder: Path, address: str, why: str) -> None:
    pytest.importorskip("ray", reason="needs Ray (ramify[ray]; .ci/run ray installs it)")
    program = begin("-c", PROGRAM, str(tmp_path), address, str(tmp_path / "bucket"), str(folder), "works")
    try:
        _, err = program.communicate(timeout=LONGEST_S)
    finally:
        program.kill()
    assert program.returncode
    assert why in err
    assert "ClusterUnreachable" in err
