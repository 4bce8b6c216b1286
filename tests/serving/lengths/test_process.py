"""The analyzer's process: killed, restarted, restored; its clients hardly notice."""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import json
import os
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.serving_costs.synthetic_lengths import SALT, research, traffic
from ramify.serving.errors import AnalyzerDown, CheckpointCorrupt
from ramify.serving.lengths import checkpoint, frames
from ramify.serving.lengths.client import AnalyzerClient
from ramify.serving.lengths.learner import Models
from ramify.serving.lengths.length_model import LengthModel
from ramify.serving.lengths.pattern_graph import Kind, Node
from ramify.serving.lengths.process import Server, load
from ramify.serving.lengths.service import Service, estimates_to_json, stages_to_json, stats_to_json
from ramify.serving.lengths.supervisor import AnalyzerSupervisor
from ramify.serving.lengths.types import Ask, Basis, Ended, Estimates, Forecast
from ramify.serving.policy.types import StageEstimate
from ramify.serving.protocol.length_sketch import LEVELS, LengthSketch

ASK = Ask(model="small", prompt="Write a long story about river and stone.", limit=4_096, app="tests", call="c1")
STAGES = ((Node(Kind.LLM, "m", 0, 100, 50, 1.0),), (Node(Kind.LLM, "m", 1, 200, 80, 2.0),))


@pytest.fixture
def folder() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="ra-", dir="/tmp"))  # short: it holds a Unix socket
    yield path
    shutil.rmtree(path)


@pytest.fixture
async def analyzer(folder: Path) -> AsyncIterator[AnalyzerSupervisor]:
    async with AnalyzerSupervisor(folder, save_every_s=0.1) as running:
        yield running


@pytest.fixture
async def client(analyzer: AnalyzerSupervisor) -> AsyncIterator[AnalyzerClient]:
    client = AnalyzerClient(lambda: analyzer.socket, patience_s=60.0, retry_s=0.02)
    yield client
    await client.aclose()


def _learnt(model: LengthModel) -> Service:
    """A service as it is after some traffic, without the seconds that a fit takes."""
    service = Service()
    service.learner.salt = SALT  # the model's own: with another one its trees look at other words
    for ask, length in traffic(40, seed=3):
        service.learner.observe(Ended(replace(ask, app="tests"), length))
    known = replace(model, seen={"tests\x1fsmall": 500}, corrections={"tests\x1fsmall": model.corrections["small"]})
    service.learner.models = Models(known, None, 4)
    service.learner.fitted_at = 40
    for seed in range(5):
        service._library("tests").add(research(seed), now=0.0)
    return service


async def _until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(100):
        while not holds():  # noqa: ASYNC110  # another process sets no event here
            await asyncio.sleep(0.01)


async def test_forecast_names_its_basis(client: AnalyzerClient) -> None:
    (forecast,) = await client.predict([ASK])
    assert forecast.basis is Basis.COLD
    assert forecast.sketch.quantile(0.95) == pytest.approx(4_096)
    assert forecast.fresh
    assert await client.predict([]) == []
    assert await client.match("run", "tests", STAGES[:1]) is None


async def test_concurrent_asks_get_their_own_answers(client: AnalyzerClient) -> None:
    limits = range(100, 160)
    found = await asyncio.gather(*(client.predict([replace(ASK, limit=limit)]) for limit in limits))
    assert [f.sketch.quantile(1) for (f,) in found] == pytest.approx(list(limits))


async def test_learnt_state_is_used_and_saved(client: AnalyzerClient, analyzer: AnalyzerSupervisor) -> None:
    for i in range(3):
        client.record(f"run{i}", "tests", STAGES)
        (forecast,) = await client.predict([replace(ASK, call=f"c{i}")])
        client.observe(Ended(replace(ASK, call=f"c{i}"), 120, bound=forecast.sketch))
    estimates = await client.match("run9", "tests", STAGES[:1])
    assert estimates is not None
    assert estimates.rest[0].output_median == pytest.approx(80, rel=0.06)
    stats = await client.stats()
    assert (stats.observations, stats.patterns) == (3, 3)
    assert [b.generated for b in stats.coverage] == [0, 50, 100]
    assert [(a.app, a.answers, a.covered) for a in stats.apps] == [("tests", 3, 1.0)]
    assert stats.app_patterns == {"tests": 3}
    await _until(analyzer.checkpoint.exists)


async def test_killed_analyzer_restarts_with_its_state(folder: Path, model: LengthModel) -> None:
    checkpoint.write(folder / "analyzer.state", checkpoint.snapshot(_learnt(model)))
    async with AnalyzerSupervisor(folder) as analyzer:
        client = AnalyzerClient(lambda: analyzer.socket, patience_s=60.0, retry_s=0.02)
        (before,) = await client.predict([ASK])
        assert before.basis is Basis.LEARNT
        assert analyzer.pid is not None
        os.kill(analyzer.pid, signal.SIGKILL)
        await _until(lambda: not client.connected)
        (gone,) = await client.predict([replace(ASK, generated=10)])
        assert gone.basis is Basis.LAST
        assert not gone.fresh
        assert gone.sketch.quantile(0.95) == pytest.approx(before.sketch.condition(10).quantile(0.95))
        client.observe(Ended(ASK, 700))  # told while it is away
        async with asyncio.timeout(100):
            while not (again := (await client.predict([ASK]))[0]).fresh:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert again.basis is Basis.LEARNT
        assert again.sketch.quantile(0.95) == pytest.approx(before.sketch.quantile(0.95), rel=0.3)
        stats = await client.stats()
        assert stats.version == 4
        assert stats.observations == 41
        assert stats.restored_at > 0
        await _until(lambda: analyzer.restarts == 1)  # it answers us before its supervisor
        await client.aclose()


async def test_without_an_analyzer_bounds_are_still_given(folder: Path) -> None:
    client = AnalyzerClient(lambda: folder / "nobody.sock")
    (forecast,) = await client.predict([ASK])
    assert forecast.basis is Basis.COLD
    assert not forecast.fresh
    assert forecast.sketch.quantile(0.95) == pytest.approx(4_096)
    assert await client.match("run", "tests", STAGES) is None
    with pytest.raises(AnalyzerDown):
        await client.expected("tests")
    with pytest.raises(AnalyzerDown):
        await client.stats()
    await client.aclose()


async def test_history_request_waits_longer_than_a_call(analyzer: AnalyzerSupervisor) -> None:
    client = AnalyzerClient(lambda: analyzer.socket, patience_s=0.0, retry_s=0.0)
    with pytest.raises(AnalyzerDown):
        await client.stats()
    assert await client.expected("nobody's") is None
    await client.aclose()


@pytest.mark.parametrize("greets", [False, True])
async def test_silent_analyzer_is_not_awaited(folder: Path, greets: bool) -> None:
    over = asyncio.Event()

    async def swallow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if greets:
            await frames.read(reader)
            writer.write(frames.pack({"id": 0, "protocol": frames.PROTOCOL}))
        await reader.read()
        writer.close()
        await writer.wait_closed()
        over.set()

    server = await asyncio.start_unix_server(swallow, folder / "deaf.sock")
    client = AnalyzerClient(lambda: folder / "deaf.sock", patience_s=0.05)
    (forecast,) = await client.predict([ASK])
    assert forecast.basis is Basis.COLD
    await client.aclose()
    await over.wait()
    server.close()
    await server.wait_closed()


async def test_invalid_client_at_the_socket_harms_nobody(
    client: AnalyzerClient, analyzer: AnalyzerSupervisor
) -> None:
    for nonsense in (b"GET / HTTP/1.1\r\n\r\n", frames.pack({"op": "format"}), frames.pack({"op": "predict"})):
        reader, writer = await asyncio.open_unix_connection(analyzer.socket)
        writer.write(nonsense)
        said = await frames.read(reader)
        assert said is not None
        assert "error" in said
        assert await reader.read() == b""
        writer.close()
        await writer.wait_closed()
    assert (await client.predict([ASK]))[0].fresh
    assert (await client.stats()).version == 0


async def test_socket_is_private_to_its_owner(analyzer: AnalyzerSupervisor) -> None:
    assert analyzer.socket.stat().st_mode & 0o777 == 0o600


def test_checkpoint_holds_no_text(folder: Path, model: LengthModel) -> None:
    service = _learnt(model)
    service.learner.observe(Ended(replace(ASK, prompt="the password is correct horse battery staple"), 10))
    arrays = checkpoint.snapshot(service)
    texts = {str(t) for array in arrays.values() if array.dtype.kind == "U" for t in np.atleast_1d(array)}
    assert texts == {"tests\x1fsmall", "tests", "planner", "search", "drafter", "writer"}


def test_checkpoint_survives_a_round_trip(folder: Path, model: LengthModel) -> None:
    service = _learnt(model)
    checkpoint.write(folder / "state", checkpoint.snapshot(service))
    again = checkpoint.read(folder / "state")
    assert again is not None
    asks = [replace(ask, app="tests") for ask, _ in traffic(20, seed=4)]
    for ours, theirs in zip(service.predict(asks), again.predict(asks), strict=True):
        assert theirs.sketch.values == pytest.approx(ours.sketch.values)
    assert again.learner.apps.counts() == service.learner.apps.counts() != {}
    assert again.libraries["tests"].dump() == service.libraries["tests"].dump()
    assert checkpoint.read(folder / "none") is None


@pytest.mark.parametrize("harm", ["cut", "flipped", "empty", "other version"])
def test_damaged_checkpoint_is_kept_aside(folder: Path, harm: str) -> None:
    path = folder / "analyzer.state"
    checkpoint.write(path, checkpoint.snapshot(Service()))
    data = path.read_bytes()
    middle = len(data) // 2
    path.write_bytes(
        {
            "cut": data[:-10],
            "flipped": data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :],
            "empty": b"",
            "other version": data.replace(b'"version": 2', b'"version": 9', 1),
        }[harm]
    )
    with pytest.raises(CheckpointCorrupt):
        checkpoint.read(path)
    service = load(path)
    assert service.learner.first.total == 0
    assert (folder / "analyzer.state.corrupt").exists()


async def test_the_state_that_was_kept_for_a_port_is_gone_on_from(folder: Path, model: LengthModel) -> None:
    earlier = folder / "8711" / "analyzer.state"
    earlier.parent.mkdir()
    checkpoint.write(earlier, checkpoint.snapshot(_learnt(model)))
    async with AnalyzerSupervisor(folder, earlier=earlier, save_every_s=0.1) as running:
        client = AnalyzerClient(lambda: running.socket, patience_s=60.0)
        assert (await client.predict([ASK]))[0].basis is Basis.LEARNT
        client.observe(Ended(ASK, 700))
        await _until(running.checkpoint.exists)
        await client.aclose()
    assert load(running.checkpoint, earlier).learner.first.total == 41, "then its own"


async def test_lock_that_cannot_be_opened_is_named(folder: Path) -> None:
    """Mostly because it is another user's; a folder in its place stops root, too."""
    (folder / "analyzer.lock").mkdir()
    with pytest.raises(AnalyzerDown, match=r"Is a directory.*--home"):
        async with AnalyzerSupervisor(folder):
            pass


async def test_too_long_socket_path_is_named(tmp_path: Path) -> None:
    with pytest.raises(AnalyzerDown, match="shorter path"):
        async with AnalyzerSupervisor(tmp_path / ("x" * 100)):
            pass


async def test_gateways_of_a_folder_share_one_process(folder: Path, model: LengthModel) -> None:
    """What one learns the other forecasts. The process ends with the gateway that runs it, and the other goes on."""
    checkpoint.write(folder / "analyzer.state", checkpoint.snapshot(_learnt(model)))
    restarted = asyncio.Event()
    first = await AnalyzerSupervisor(folder).__aenter__()
    async with AnalyzerSupervisor(folder, restarted=restarted.set) as second:
        client = AnalyzerClient(lambda: second.socket, patience_s=60.0, retry_s=0.02)
        assert first.pid is not None and second.pid is None
        (before,) = await client.predict([ASK])
        assert before.basis is Basis.LEARNT
        client.observe(Ended(ASK, 4_000))
        assert (await client.stats()).observations == 41
        (learnt,) = await client.predict([ASK])
        assert learnt.sketch.quantile(0.95) > before.sketch.quantile(0.95)
        await first.__aexit__(None, None, None)
        async with asyncio.timeout(100):
            await restarted.wait()
        assert second.pid is not None and second.restarts == 1
        async with asyncio.timeout(100):
            while not (again := (await client.predict([ASK]))[0]).fresh:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert again.sketch.values == pytest.approx(learnt.sketch.values)
        assert (await client.stats()).observations == 41, "the end of the first one saved it"
        await client.aclose()


async def test_gateway_that_leaves_does_not_end_the_process_of_another(
    client: AnalyzerClient, analyzer: AnalyzerSupervisor
) -> None:
    async with AnalyzerSupervisor(analyzer.folder) as second:
        assert second.pid is None
    assert (await client.predict([ASK]))[0].fresh
    assert analyzer.socket.exists() and analyzer.restarts == 0


async def test_other_gateways_follow_a_process_that_is_restarted(
    client: AnalyzerClient, analyzer: AnalyzerSupervisor
) -> None:
    async with AnalyzerSupervisor(analyzer.folder) as second:
        assert analyzer.pid is not None
        os.kill(analyzer.pid, signal.SIGKILL)
        await _until(lambda: analyzer.restarts == 1)
        async with asyncio.timeout(100):
            while not (await client.predict([ASK]))[0].fresh:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert second.pid is None and second.restarts == 0, "its own gateway restarts it"


async def test_analyzer_that_does_not_answer_is_reported(folder: Path) -> None:
    held = os.open(folder / "analyzer.lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(held, fcntl.LOCK_EX)
    with pytest.raises(AnalyzerDown, match=r"another gateway's analyzer.*does not answer.*--home"):
        async with AnalyzerSupervisor(folder, join_s=0):
            pass
    os.close(held)


@asynccontextmanager
async def _of_another_version(folder: Path, answer: dict[str, object]) -> AsyncIterator[None]:
    """Another gateway's process, which answers `hello` like this."""
    held = os.open(folder / "analyzer.lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(held, fcntl.LOCK_EX)

    asked: list[asyncio.Task[None]] = []

    async def say(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await frames.read(reader) is not None:
            writer.write(frames.pack(answer))
        writer.close()
        await writer.wait_closed()

    def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(asyncio.create_task(say(reader, writer)))

    async with await asyncio.start_unix_server(connected, folder / "analyzer.sock"):
        yield
        await asyncio.gather(*asked)
    os.close(held)


async def test_process_of_another_version_is_not_spoken_to(folder: Path) -> None:
    async with _of_another_version(folder, {"id": 0, "protocol": frames.PROTOCOL + 1}):
        client = AnalyzerClient(lambda: folder / "analyzer.sock", patience_s=60.0)
        with pytest.raises(AnalyzerDown, match=f"protocol is {frames.PROTOCOL + 1}, and this gateway's is"):
            await client.stats()
        (forecast,) = await client.predict([ASK])
        assert not forecast.fresh
        await client.aclose()


async def test_gateway_beside_one_of_another_version_learns_by_itself(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("WARNING", logger="ramify.analyzer")
    async with (
        _of_another_version(folder, {"error": "no such op: 'hello'"}),
        AnalyzerSupervisor(folder) as own,
    ):
        assert own.pid is not None and own.folder == folder / f"protocol-{frames.PROTOCOL}"
        client = AnalyzerClient(lambda: own.socket, patience_s=60.0)
        assert (await client.stats()).observations == 0
        await client.aclose()
    (record,) = caplog.records
    assert record.getMessage() == "analyzer_apart" and "earlier Ramify" in record.__dict__["fields"]["problem"]
    assert not list(folder.glob("*.corrupt")), "the other one's state is left alone"


async def test_gateway_on_another_machine_learns_by_itself(folder: Path) -> None:
    """Locks hold in a network file system, but its Unix sockets lead nowhere from another machine."""
    held = os.open(folder / "analyzer.lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(held, fcntl.LOCK_EX)
    os.write(held, b"0a3f-another-boot")
    async with AnalyzerSupervisor(folder) as own:
        assert own.pid is not None and own.folder.parent == folder and own.folder.name.startswith("machine-")
    os.close(held)


def test_protocol_has_a_new_number_if_another_version_would_misread_it() -> None:
    """If this fails, raise `frames.PROTOCOL`, and put the new sum here."""
    sketch = LengthSketch.from_wire([float(at) for at in range(1, 1 + len(LEVELS))])
    sample = [
        frames.ask_to_json(replace(ASK, generated=50, text="so far")),
        frames.ended_to_json(Ended(ASK, 700, True, sketch)),
        frames.forecast_to_json(Forecast(sketch, Basis.COLD)),
        stages_to_json(STAGES),
        estimates_to_json(Estimates(1, (1.0,), (StageEstimate(1, 2, 3, 4),), 0.5)),
        stats_to_json(Service().stats()),
    ]
    text = json.dumps(sample, sort_keys=True)
    assert (frames.PROTOCOL, hashlib.sha256(text.encode()).hexdigest()[:16]) == (1, "bda662ab8753a98d")


async def test_next_gateway_waits_for_the_previous_analyzer(folder: Path) -> None:
    last = os.open(folder / "analyzer.lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(last, fcntl.LOCK_EX)
    entering = asyncio.create_task((next_ := AnalyzerSupervisor(folder)).__aenter__())
    for _ in range(10):
        await asyncio.sleep(0)
    assert next_.pid is None and not entering.done()
    os.close(last)
    await entering
    assert next_.pid is not None
    await next_.__aexit__(None, None, None)


async def test_learning_keeps_to_its_share_of_the_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fit that took 100 s of CPU is followed by no other for a thousand, whatever comes."""
    service, fits = Service(), 0

    def fit(_: Server) -> float:
        nonlocal fits
        fits += 1
        return 100.0

    monkeypatch.setattr(service.learner, "due", lambda: True)
    monkeypatch.setattr(Server, "_refit", fit)
    until = asyncio.Event()
    running = asyncio.create_task(
        Server(service, tmp_path / "state", save_every_s=0.001).serve(tmp_path / "s", until)
    )
    while not fits:  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    for _ in range(50):
        await asyncio.sleep(0.001)
    until.set()
    await running
    assert fits == 1
