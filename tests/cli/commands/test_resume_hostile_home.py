"""A home that somebody else wrote: what looks at it runs nothing, and what would run its code asks first."""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import ormsgpack
import pytest
from story import STARTED

from ramify import paths
from ramify.browse.web.responses import NotThere
from ramify.browse.web.search import search
from ramify.browse.web.views import call_view, moment_view
from ramify.cli import trust
from ramify.cli.commands import mcp
from ramify.compiler.plan import OpKind
from ramify.inspect.history import History
from ramify.inspect.model_calls import call_times
from ramify.runtime.codec import codec
from ramify.runtime.errors import NotSerialisable
from ramify.runtime.journal.inbox import question_id
from ramify.runtime.langgraph.checkpointer.serializers import PLAIN_SERIALIZER
from ramify.runtime.records import ROOT, AnswerRecord, EffectRecord, EffectStatus, OpStatus, RunStatus, RunUpdate
from ramify.runtime.store import RunStore
from tests.cli.commands.test_thread_resume import GRAPH, KEPT, Program

LOOKS = (
    *("ls", "ls --json", "tree", "log", "log --json", "show", "show --json", "show @~1", "diff @", "effects"),
    *("inbox", "inbox --json"),
)
MORE = ("fsck", "gc --dry-run")


@pytest.fixture
def mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Made where a module that rows name is imported, or a class of it is built."""
    found = tmp_path / "mark"
    lines = [
        "from dataclasses import dataclass",
        "from pathlib import Path",
        "import pydantic",
        f"MARK = Path({str(found)!r})",
        "MARK.touch()",
        "@dataclass",
        "class Point:",
        "    x: int",
        "class Model(pydantic.BaseModel):",
        "    x: int",
        "class Error(Exception):",
        "    pass",
    ]
    (tmp_path / "ramify_hostile.py").write_text("\n".join(lines))
    monkeypatch.syspath_prepend(str(tmp_path))
    yield found
    sys.modules.pop("ramify_hostile", None)


HOSTILE = [
    {"$": "dataclass", "t": "ramify_hostile:Point", "v": {"x": 1}},
    {"$": "model", "t": "ramify_hostile:Model", "v": {"x": 1}},
    {"$": "pydantic", "t": "ramify_hostile:Model", "v": {"x": 1}},
    {"$": "error", "t": "ramify_hostile:Error", "v": [{"$": "tuple", "v": []}, {}]},
    {"$": "dataclass", "t": "os:system", "v": "touch"},
]


OTHER = {"$": "dataclass", "t": "ramify.serving.types:Message", "v": {"role": "user", "content": "x"}}
"""Ramify's own, and not an answer."""


def record_hostile(home: Any) -> None:
    """Rows of every kind that name the module."""
    text = json.dumps(HOSTILE)
    run = home.story.run

    async def write() -> None:
        async with RunStore(paths.database(home.path), clock=lambda: STARTED + 30) as store:
            planted = [
                replace(one, key=f"{one.key}!", seq=one.seq + 100, result_json=text, attrs={"raised": text})
                for one in home.story.ops
                if one.step is not None
            ]
            calls = [replace(one, key=f"{one.key}!", seq=one.seq + 200, request_json=text) for one in home.story.llm]
            first = planted[0]
            asking = {"kind": OpKind.INTERRUPT, "status": OpStatus.ASKED, "step": None}
            planted += [
                replace(first, key=key, seq=first.seq + at, **asking) for at, key in ((300, "open"), (301, "closed"))
            ]
            await store.put_answers(run.id, [AnswerRecord(run.id, "closed", text, STARTED, "them")])
            effect = EffectRecord(run.id, "k", "post", ROOT, EffectStatus.IN_DOUBT, "i", text, text, STARTED)
            await store.commit(run.id, ops=planted, llm=calls, effects=[effect])

    asyncio.run(write())


def test_reading_commands_import_no_user_types(home: Any, ramify: Any, mark: Path, set_status: Any) -> None:
    record_hostile(home)
    inboxes = [words for words in LOOKS if "inbox" in words]
    for words in [*(each for each in (*LOOKS, *MORE) if each not in inboxes), *inboxes]:
        if words == inboxes[0]:
            set_status(RunStatus.WAITING)  # what is done asks nothing
        said = ramify(*words.split())
        assert "Traceback" not in said.err, words
        assert (said.status, mark.exists(), "ramify_hostile" in sys.modules) == (0, False, False), (words, said.err)
    assert [item["kind"] for item in json.loads(said.out)].count("question") == 1


def test_inbox_passes_over_rows_of_a_run_that_it_does_not_know(
    home: Any, ramify: Any, mark: Path, set_status: Any
) -> None:
    """Planted, or of a run that began after the runs were read."""
    record_hostile(home)
    set_status(RunStatus.WAITING)
    with closing(sqlite3.connect(paths.database(home.path))) as connection, connection:
        connection.execute("UPDATE effects SET run_id = 'gone'")
    said = ramify("inbox", "--json")
    assert (said.status, [item["kind"] for item in said.json]) == (0, ["question"]), said.err


def test_answering_imports_no_user_types(
    home: Any, ramify: Any, mark: Path, set_status: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the question that takes it, nor the answer that a question has, not even of a class that is loaded."""
    record_hostile(home)
    set_status(RunStatus.WAITING)

    def decode(text: str) -> object:
        raise AssertionError(f"{text} was built")

    monkeypatch.setattr(codec, "decode", decode)
    run = home.story.run.id
    late = ramify("answer", question_id(run, "closed"), "true")
    assert (late.status, "answered already" in late.err, "ramify_hostile" in late.err) == (1, True, True), late.err
    said = ramify("answer", question_id(run, "open"), "true")
    assert (said.status, mark.exists(), "ramify_hostile" in sys.modules) == (0, False, False), said.err


def test_page_imports_no_user_types(home: Any, mark: Path) -> None:
    record_hostile(home)

    async def read() -> History:
        async with RunStore(paths.database(home.path), clock=lambda: STARTED + 30) as store:
            run = home.story.run.id
            return History(
                await store.run(run),
                await store.ops(run),
                await store.llm(run),
                await store.checkpoints(run),
                await store.effects(run),
            )

    history = asyncio.run(read())
    assert search(history, "ramify_hostile") == []
    for moment in history.moments:
        try:
            call_view(moment) if moment.llm is not None else moment_view(moment, history)
        except NotThere:
            assert moment.llm is not None, "the story's calls were not asked in our form"
    assert not mark.exists()


@pytest.mark.parametrize("row", [*HOSTILE, "text", OTHER])
def test_a_model_calls_row_that_is_no_answer_is_told(home: Any, mark: Path, row: Any) -> None:
    with pytest.raises(NotSerialisable, match=r"recorded there|Ramify records"):
        call_times(replace(home.story.llm[0], result_json=json.dumps(row)))
    assert not mark.exists()


@pytest.fixture
def thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Program]:
    monkeypatch.setenv("RAMIFY_HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    path = tmp_path / "thread_program.py"
    path.write_text(KEPT + GRAPH)
    monkeypatch.delitem(sys.modules, "thread_program", raising=False)
    made = Program(path)
    yield made
    made.close()
    monkeypatch.delitem(sys.modules, "thread_program", raising=False)


def plant_in_thread(database: Path, mark: Path) -> None:
    """Extensions that name callables: in the value of a channel and in the metadata of each checkpoint."""
    calls = [
        ormsgpack.Ext(0, ormsgpack.packb(("os", "system", f"touch {mark}"))),
        ormsgpack.Ext(5, ormsgpack.packb(("ramify_hostile", "Model", {"x": 1}, "model_validate_json"))),
        ormsgpack.Ext(3, ormsgpack.packb(("pathlib", "Path", str(mark), "touch"))),
    ]
    with closing(sqlite3.connect(database)) as connection, connection:
        rows = connection.execute("SELECT id, channels, kind, body, compressed FROM ramify_checkpoints").fetchall()
        logs = {json.loads(channels)["log"] for _, channels, *_ in rows if "log" in json.loads(channels)}
        for id in logs:
            connection.execute(
                "UPDATE ramify_values SET head = x'', base = NULL, keep = 0, compressed = 0, words = '', tail = ? "
                "WHERE id = ?",
                (ormsgpack.packb(calls), id),
            )
        newest = max(rows)
        whole = [{"versions_seen": {}, "id": newest[0], "v": 4, "ts": "", "channel_versions": {}}, {"evil": calls}]
        assert PLAIN_SERIALIZER.loads_typed(("msgpack", ormsgpack.packb(whole)))[1]["evil"][0] == f"touch {mark}"
        connection.execute(
            "UPDATE ramify_checkpoints SET body = ?, word = NULL, compressed = 0 WHERE id = ?",
            (ormsgpack.packb(whole), newest[0]),
        )


def test_reading_a_thread_imports_no_user_types(thread: Program, ramify: Any, mark: Path, tmp_path: Path) -> None:
    ran = thread.invoke("t")
    thread.close()
    database = tmp_path / "home" / "ramify.db"
    plant_in_thread(database, mark)

    async def killed() -> None:  # so that `ls` asks whether the thread had ended
        async with RunStore(database, clock=lambda: STARTED) as store:
            await store.commit(store_run := (await store.run(ran)).id, update=RunUpdate(status=RunStatus.RUNNING))
            assert store_run == ran

    asyncio.run(killed())
    for words in (*LOOKS, "fsck", "explain"):
        said = ramify(*words.split())
        assert "Traceback" not in said.err, words
        assert (said.status, mark.exists(), "ramify_hostile" in sys.modules) == (0, False, False), (words, said.err)


DAMAGED = [
    ormsgpack.Ext(0, ormsgpack.packb(5)),  # an extension that is no triple
    ormsgpack.Ext(64, b"no JSON"),
    {"run": 1},  # no world of a thread's
    "text",
]


@pytest.mark.parametrize("value", DAMAGED)
def test_a_threads_damaged_row_is_told(thread: Program, ramify: Any, tmp_path: Path, value: Any) -> None:
    thread.invoke("t")
    thread.close()
    with closing(sqlite3.connect(tmp_path / "home" / "ramify.db")) as connection, connection:
        connection.execute(
            "UPDATE ramify_values SET head = x'', base = NULL, keep = 0, compressed = 0, words = '', tail = ?",
            (ormsgpack.packb(value),),
        )
    for words in LOOKS:
        said = ramify(*words.split())  # raises what no command tells
        assert said.status == 0 or "cannot be read" in said.err, (words, said.err)


def test_resuming_a_damaged_thread_is_refused(thread: Program, ramify: Any, mark: Path, tmp_path: Path) -> None:
    ran = thread.invoke("t")
    thread.close()
    plant_in_thread(tmp_path / "home" / "ramify.db", mark)
    thread.change("app", "app")  # another process reads it anew
    said = ramify("resume", ran, "--app", thread.target, "--quiet")
    assert (said.status, mark.exists(), "ramify_hostile" in sys.modules) == (1, False, False)
    assert "not a data class of a module that this program has loaded" in said.err


# Going on runs code


def test_resume_refuses_a_home_that_others_may_write_to(home: Any, ramify: Any, tmp_path: Path) -> None:
    database = paths.database(home.path)
    for place, mode in ((home.path, 0o777), (home.path, 0o1777), (database, 0o666)):
        before = Path(place).stat().st_mode & 0o7777
        Path(place).parent.chmod(0o755)
        Path(place).chmod(mode)
        said = ramify("resume", home.story.run.id)
        assert (said.status, "--trust-home" in said.err, str(place) in said.err) == (1, True, True), said.err
        assert ramify("show").status == 0, "looking is no matter of trust"
        trusted = ramify("resume", home.story.run.id, "--trust-home")
        assert "--trust-home" not in trusted.err
        Path(place).chmod(before)
    assert "--trust-home" not in ramify("resume", home.story.run.id).err


def test_explain_executes_code_of_the_users_own_home_alone(
    thread: Program, ramify: Any, mark: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It compares a run with the code as it is now, and a row names where that is."""
    ran = thread.invoke("t")
    thread.close()
    with closing(sqlite3.connect(tmp_path / "home" / "ramify.db")) as connection, connection:
        connection.execute("UPDATE runs SET workflow = 'ramify_hostile:app'")
    mine = os.geteuid()
    monkeypatch.setattr(trust.os, "geteuid", lambda: mine + 1)
    said = ramify("explain", ran)
    assert (said.status, mark.exists(), "ramify_hostile" in sys.modules) == (0, False, False), said.err
    assert "it is unknown whether the code has changed" in said.out and "--trust-home" in said.out
    assert (ramify("explain", ran, "--trust-home").status, mark.exists()) == (0, True)


def test_a_world_of_another_users_home_is_asked_for(ramify: Any, tmp_path: Path, monkeypatch: Any) -> None:
    """Its home says that the world runs on a backend that isolates nothing."""
    home = ("--home", str(tmp_path / "home"))
    assert ramify(*home, "world", "new", "--name", "one", "--sandbox", "copy").status == 0
    mine = os.geteuid()
    monkeypatch.setattr(trust.os, "geteuid", lambda: mine + 1)
    mark = tmp_path / "ran"
    said = ramify(*home, "world", "exec", "one", "--", "touch", str(mark))
    assert (said.status, mark.exists(), "--trust-home" in said.err) == (1, False, True), said.err
    assert ramify(*home, "world", "exec", "--trust-home", "one", "--", "touch", str(mark)).status == 0
    assert mark.exists()


def test_mcp_asks_for_another_users_home(ramify: Any, tmp_path: Path, monkeypatch: Any) -> None:
    """A client opens worlds by their names, and the home says over which folder of this machine they stand."""
    served = []

    async def serve(*given: object) -> None:
        served.append(given)

    monkeypatch.setattr(mcp, "_serve", serve)
    (tmp_path / "home").mkdir()
    words = ("--home", str(tmp_path / "home"), "mcp", "--folder", str(tmp_path))
    assert (ramify(*words).status, len(served)) == (0, 1)
    mine = os.geteuid()
    monkeypatch.setattr(trust.os, "geteuid", lambda: mine + 1)
    said = ramify(*words)
    assert (said.status, "--trust-home" in said.err, len(served)) == (1, True, 1), said.err
    assert (ramify(*words, "--trust-home").status, len(served)) == (0, 2)


@pytest.mark.parametrize("end", ["-wal", "-journal"])
def test_what_sqlite_reads_beside_a_database_is_asked_for_too(
    home: Any, ramify: Any, tmp_path: Path, end: str
) -> None:
    """Beside the database itself, not beside a link to it: it plays both back into the database."""
    database = Path(paths.database(home.path))
    real = tmp_path / "elsewhere" / "real.db"
    real.parent.mkdir()
    real.parent.chmod(0o755)
    database.rename(real)
    database.symlink_to(real)
    planted = real.with_name(real.name + end)
    planted.touch()
    planted.chmod(0o666)
    said = ramify("resume", home.story.run.id)
    assert (said.status, str(planted) in said.err, "--trust-home" in said.err) == (1, True, True), said.err


def test_resume_refuses_another_users_home(home: Any, ramify: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = os.geteuid()
    monkeypatch.setattr(trust.os, "geteuid", lambda: mine + 1)
    said = ramify("resume", home.story.run.id)
    assert (said.status, "belongs to" in said.err, "--trust-home" in said.err) == (1, True, True)


def test_a_private_group_is_the_users_own(home: Any, ramify: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    home.path.chmod(0o770)
    home.path.parent.chmod(0o755)
    monkeypatch.setattr(trust, "_is_private", lambda group: True)
    assert "--trust-home" not in ramify("resume", home.story.run.id).err
    monkeypatch.setattr(trust, "_is_private", lambda group: False)
    assert "by its group" in ramify("resume", home.story.run.id).err


def test_a_row_imports_only_what_the_workflow_imports(tmp_path: Path, mark: Path) -> None:
    """A resumed run reads its own values, and no module of anybody else's choosing."""
    from ramify.runtime.user_code.workflow_loader import load_target

    for one in HOSTILE[:4]:
        with pytest.raises(NotSerialisable, match="does not import"):
            codec.decode(json.dumps(one))
    assert not mark.exists()
    app = tmp_path / "ramify_hostile_app.py"
    app.write_text("def flow():\n    from ramify_hostile import Point\n    return Point(1)\n")
    load_target(f"{app}:flow")
    assert not mark.exists()
    assert codec.decode(json.dumps(HOSTILE[0])).x == 1, "which its code names, if late"
    with pytest.raises(NotSerialisable):
        codec.decode(json.dumps(HOSTILE[4]))
