"""What many tests need: a home of their own, a scripted model, a runtime on plain copies."""

from __future__ import annotations

import asyncio
import compileall
import gc
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator, Generator, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from sqlalchemy import Engine

from ramify import Runtime
from ramify.paths import home as ramify_home
from ramify.runtime.store import address as addresses
from ramify.runtime.store import engines, migrate, run_store
from ramify.runtime.store.address import Address
from ramify.sandboxes.host import fork_server_client
from ramify.serving.client import LLMClient
from ramify.serving.engine import models
from ramify.serving.errors import ModelMissing
from ramify.serving.testing import ScriptedModel
from ramify.serving.types import ChatRequest
from tests import flushes
from tests.changed import PACKAGES
from tests.samples import sample
from tests.warm_helpers import WarmHelpers
from tests.warm_process import WarmInterpreter

HERE = Path(__file__).parent
LONG = (
    *("crash/test_matrix.py", "docs/test_pages.py", "edits", "examples", "worlds", "sandboxes"),
    *("serving/gateway/engines", "serving/gateway/http", "serving/policy/test_overload.py"),  # else among the last
)
STARTING_HELPERS = (  # whose tests start helper processes as users do
    *("crash", "docs", "fleet", "worlds/test_world.py", "worlds/test_dumpable_worlds.py"),
    *(f"sandboxes/{name}" for name in ("agent", "checkpointing", "host", "linux", "test_doctor.py")),
    *(
        f"sandboxes/backends/{name}"
        for name in ("docker", "test_opening.py", "namespaces/test_backend_namespaces.py")
    ),
    *(f"sandboxes/{name}" for name in ("attacks", "backends/test_secrets.py", "backends/test_hidden_paths.py")),
    "sandboxes/backends/namespaces/test_leaks.py",
)
sys.path[:0] = [str(HERE / "apps"), str(HERE)]  # what tests of several packages share
sys.dont_write_bytecode = False  # pytest keeps the asserts that it rewrote: half of the time of collecting all tests


# Examples are the same in each run, so a commit that passes here passes elsewhere; RAMIFY_TEST_EXPLORE=1 draws new
# ones. No deadline: machines are shared, and that an example took long says nothing. A test that names health checks
# of its own must name too_slow as well.
settings.register_profile(
    "shared",
    max_examples=sample(15, 100),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=os.environ.get("RAMIFY_TEST_EXPLORE") != "1",
)
settings.load_profile("shared")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell's background job; what tests start would inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--loop",
        choices=("asyncio", "uvloop"),
        default=os.environ.get("RAMIFY_TEST_LOOP", "asyncio"),
        help="the event loop that every test and every asyncio.run of this process gets",
    )


def pytest_configure(config: pytest.Config) -> None:
    """By the policy: so do the loops that the product makes itself, in threads and by `asyncio.run`. Programs that
    tests start get it by tests/loops."""
    gc.disable()  # until all is collected: modules are loaded, and nothing is garbage
    if config.getoption("--loop") == "uvloop":
        import uvloop

        asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
        os.environ["RAMIFY_TEST_LOOP"] = "uvloop"
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(HERE / "loops"), os.environ.get("PYTHONPATH"))))
    if not hasattr(config, "workerinput"):  # once, before xdist's workers start
        compile_all()


def compile_all() -> None:
    """Compile what the processes that tests start import: each of them took 2 s for it. pytest keeps the code of the
    tests themselves."""
    folders = [HERE.parent / name for name in (*PACKAGES, "benchmarks", "examples", "tests")]
    files = [path for folder in folders for path in folder.rglob("*.py") if not path.name.startswith("test_")]
    with ProcessPoolExecutor() as pool:
        for _ in pool.map(partial(compileall.compile_file, quiet=2), files, chunksize=32):
            pass


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the long files: one that is begun last would keep one process busy while the others have ended."""
    first = {path: any(path.is_relative_to(HERE / name) for name in LONG) for path in {item.path for item in items}}
    items.sort(key=lambda item: not first[item.path])


def pytest_collection_finish() -> None:
    """The collector ignores the tests themselves from now on, and their modules: hundreds of megabytes."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000)  # tests make many objects, and few cycles
    gc.enable()


def pytest_report_header(config: pytest.Config) -> str:
    return f"event loop: {config.getoption('--loop')}"


@pytest.hookimpl(wrapper=True, optionalhook=True)
def pytest_xdist_auto_num_workers() -> Generator[None, int, int]:
    """One more than there are cores: of a process's time a good part is waiting, for the disk, a kill, a clock."""
    return (yield) + 1


@pytest.fixture(scope="session", autouse=True)
def no_waiting_for_the_disk() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for owner, name, value in flushes.left_out():
            patch.setattr(owner, name, value)
        yield


@pytest.fixture
def flushed_databases(monkeypatch: pytest.MonkeyPatch) -> None:
    """Databases that are opened from now on are flushed as users' are."""
    monkeypatch.setattr(engines, "PRAGMAS", engines.PRAGMAS[:-1])


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """What all migrations leave in a new file."""
    address = addresses.parse(tmp_path_factory.mktemp("empty") / "ramify.db")
    assert address.file is not None
    engine = engines.writer(address)
    migrate.bring_up_to_date(engine, address)
    engine.dispose()
    return address.file.read_bytes()


@pytest.fixture(scope="module", autouse=True)
def new_databases_are_copies(request: pytest.FixtureRequest, empty_database: bytes) -> Iterator[None]:
    """Migrate once, and not for each home: that is two thirds of the time of opening one. Tests of the store
    itself migrate."""
    lock = threading.Lock()

    def bring_up_to_date(engine: Engine, address: Address) -> None:
        with lock:
            if address.file is not None and address.file.stat().st_size == 0:
                address.file.write_bytes(empty_database)
        migrate.bring_up_to_date(engine, address)

    with pytest.MonkeyPatch.context() as patch:
        if not request.path.is_relative_to(HERE / "runtime" / "store"):
            patch.setattr(run_store, "bring_up_to_date", bring_up_to_date)
        yield


@pytest.fixture(scope="session")
def warm_helpers() -> Iterator[WarmHelpers]:
    helpers = WarmHelpers()
    yield helpers
    helpers.close()


@pytest.fixture(scope="module", autouse=True)
def helpers_are_forked(request: pytest.FixtureRequest, warm_helpers: WarmHelpers) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        if not any(request.path.is_relative_to(HERE / name) for name in STARTING_HELPERS):
            patch.setattr(fork_server_client, "launch", warm_helpers.launch)
        yield


def script(request: ChatRequest) -> str:
    """The scripted model: prefers B where it is to choose, else says its sample's number."""
    return "B" if request.max_tokens == 1 else f"w{request.seed}"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "workspace"
    folder.mkdir()
    (folder / "hello.txt").write_text("hello\n")
    return folder


@pytest.fixture
async def model() -> AsyncIterator[LLMClient]:
    async with LLMClient("http://model.test/v1", transport=ScriptedModel(script)) as client:
        yield client


@pytest.fixture
async def runtime(home: Path, model: LLMClient) -> AsyncIterator[Runtime]:
    async with Runtime(home=home, sandbox="copy", llm=model) as opened:
        yield opened


WARM = (
    "aiosqlite",
    "alembic.operations",
    "alembic.runtime.migration",
    "alembic.script",
    "ramify.cli.commands.decisions",
    "ramify.cli.commands.diff",
    "ramify.cli.commands.explain",
    "ramify.cli.commands.listings",
    "ramify.cli.commands.resume",
    "ramify.cli.commands.run",
    "ramify.cli.commands.storage",
    "ramify.cli.commands.world",
    "ramify.cli.main",
    "ramify.cli.progress",
    "ramify.cli.targets",
    "ramify.code_changes",
    "ramify.compiler.change_impact",
    "ramify.compiler.frontend.python.workflow_reader",
    "ramify.compiler.kept_plans",
    "ramify.compiler.pipeline",
    "ramify.compiler.plan_matching",
    "ramify.home_collection",
    "ramify.inspect.inbox",
    "ramify.run_functions",
    "ramify.runtime.execution.fork_arguments",
    "ramify.runtime.execution.merges",
    "ramify.runtime.langgraph.thread.portal",
    "ramify.runtime.langgraph.value_summary",
    "ramify.runtime.store.reader",
    "ramify.sandboxes.backends.copying",
    "ramify.session",
    "ramify.worlds.world",
)


@pytest.fixture(scope="session")
def warm() -> Iterator[WarmInterpreter]:
    """For command lines as processes of their own, without the second that their imports take."""
    with WarmInterpreter(*WARM) as opened:
        yield opened


@pytest.fixture(scope="session")
def warm_langgraph() -> Iterator[WarmInterpreter]:
    """The same with LangGraph and the adapter."""
    more = ("compiler.frontend.langgraph.graph_reader", "graph", "runtime.langgraph.thread.stored_thread")
    with WarmInterpreter(*WARM, *(f"ramify.{name}" for name in more)) as opened:
        yield opened


@pytest.fixture(scope="session")
def weights() -> Path:
    """The file of the small model. Skips the test if it was not downloaded."""
    try:
        return models.locate(ramify_home(None))
    except ModelMissing as missing:
        pytest.skip(str(missing))
