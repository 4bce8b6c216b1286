"""Runs one program's test suite inside a world and prints what happened as one line of JSON.

It is sent into the world as text (`python -S -c RUNNER REQUEST`), so it needs nothing there but pytest on PYTHONPATH.
There are two uses:

survey   the whole suite twice, each time in its own process: once plainly (outcomes, errors, compared values), once
         traced (lines covered by each test, types of locals, simple predicates over arguments at each call).
check    the suite once, until a test breaks that passed before, or until all that failed before still fails.

Nothing in the output depends on time, memory addresses or temporary paths. A test that does not end is stopped by
CPU time. Memory is limited, so that an endless loop in a mutated program harms nothing.
"""

import json
import os
import random
import re
import resource
import signal
import sys
import threading

import pytest

MEMORY = 2 << 30  # bytes of address space
TRACED_HANGS = 3  # tests that do not end and are traced nevertheless, for a moment each
CALLS_SEEN = 60  # calls of one function in one test whose arguments are recorded
SCALARS = (int, float, str, bytes, bool)
SIZED = (str, bytes, list, tuple, dict, set, frozenset)
PLAIN = (*SCALARS, *SIZED, type(None))


class TestTimedOut(BaseException):
    """Not an Exception, so that the program's own `except Exception` does not catch it."""

    __test__ = False


def clean(text, size=300):
    """Remove memory addresses and cut to a length, so that equal runs give equal text."""
    return re.sub(r"0x[0-9a-fA-F]{6,}", "0x", text)[:size]


def show(value):
    try:
        return clean(repr(value))
    except Exception:
        return f"<{type(value).__name__}>"


class Suite:
    """A pytest plug-in: stops tests that do not end, and records outcomes instead of formatting them."""

    def __init__(self, request, tracer=None):
        self.cwd = request["cwd"]
        self.limit = request["limit"]
        self.before = set(request.get("failing", ()))  # what failed before
        self.hangs = set(request.get("hangs", ()))
        self.check = request["mode"] == "check"
        self.tracer = tracer
        self.outcomes = {}  # test id -> [status, error, message, where, frames, compared]
        self.slowest = 0.0
        self.hung = 0
        self.compared = None
        self.session = None

    # What runs, and when to stop. The suite keeps its own order, since tests may depend on it.

    def pytest_collection_modifyitems(self, session):
        self.session = session

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item):
        name = item.nodeid
        if self.tracer and name in self.hangs:
            self.tracer.hangs += 1
            if self.tracer.hangs > TRACED_HANGS:
                return True
        if self.check and name in self.hangs and self.hung:
            self.outcomes[name] = ["timeout", "", "", "", [], None]
            return True
        random.seed(0)
        self.compared = None
        return None

    def hopeless(self, report):
        """Return True if the candidate breaks a test, or if all that failed before has run and still fails."""
        if report.failed and report.nodeid not in self.before:
            return "broke a test"
        seen = [self.outcomes[name][0] for name in self.before if name in self.outcomes]
        if len(seen) == len(self.before) and "passed" not in seen:
            return "fixed nothing"
        return ""

    # Time

    def budget(self, item):
        if self.tracer:
            return 0.3 if item.nodeid in self.hangs else 30 * self.limit
        return self.limit if not self.hung else min(self.limit, max(0.3, 10 * self.slowest))

    def timed(self, item):
        budget = self.budget(item)
        before = os.times()
        signal.setitimer(signal.ITIMER_PROF, budget, 0.2)
        signal.setitimer(signal.ITIMER_REAL, 8 * budget + 2, 0.2)
        try:
            if self.tracer:
                self.tracer.start(item.nodeid)
            result = yield
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
            signal.setitimer(signal.ITIMER_REAL, 0)
            if self.tracer:
                self.tracer.stop()
        after = os.times()
        self.slowest = max(self.slowest, after.user + after.system - before.user - before.system)
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self, item):
        return (yield from self.timed(item))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item):
        return (yield from self.timed(item))

    # Outcomes

    def pytest_assertrepr_compare(self, config, op, left, right):
        self.compared = [op, show(left), show(right)]

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_makereport(self, item, call):
        """Replace pytest's own report, which formats a traceback that nobody reads."""
        error = call.excinfo
        status = "passed"
        if error is not None:
            status = "skipped" if isinstance(error.value, pytest.skip.Exception) else "failed"
        report = pytest.TestReport(item.nodeid, item.location, {}, status, None, call.when)
        report.ramify_error = error
        return report

    def pytest_runtest_logreport(self, report):
        name, error = report.nodeid, getattr(report, "ramify_error", None)
        if report.failed:
            self.outcomes[name] = self.failure(error)
            self.hung += self.outcomes[name][0] == "timeout"
        elif name not in self.outcomes:
            self.outcomes[name] = ["passed", "", "", "", [], None]
        if self.check and report.when == "teardown" and self.session and self.before:
            self.session.shouldstop = self.hopeless(report) or False

    def failure(self, error):
        if error is None:  # a strict xfail that passed
            return ["failed", "XPASS", "", "", [], None]
        status = "timeout" if isinstance(error.value, TestTimedOut) else "failed"
        frames, where = [], ""
        traceback = error.tb
        while traceback is not None:
            path = os.path.relpath(traceback.tb_frame.f_code.co_filename, self.cwd)
            if path.endswith(".py") and not path.startswith("..") and "site-packages" not in path:
                if [path, traceback.tb_lineno] not in frames:
                    frames.append([path, traceback.tb_lineno])
                if os.path.basename(path).startswith("test") or path.endswith("_test.py"):
                    where = f"{path}:{traceback.tb_lineno}"
            traceback = traceback.tb_next
        compared = self.compared if error.type is AssertionError else None
        return [status, error.type.__name__, clean(str(error.value)), where, frames[-12:], compared]

    def pytest_collectreport(self, report):
        if report.failed:
            text = str(report.longrepr)
            lines = [line for line in text.splitlines() if line.startswith("E ")]
            message = lines[-1][1:].strip() if lines else clean(text.strip().splitlines()[-1] if text.strip() else "")
            frames = [
                [os.path.relpath(os.path.join(self.cwd, path), self.cwd), int(line)]
                for path, line in re.findall(r"^([^\s:]+\.py):(\d+): ", text, re.M)
            ]
            kind = message.split(":")[0] if ":" in message else "CollectError"
            self.outcomes[report.nodeid] = ["failed", kind, clean(message), "", frames[-12:], None]


class Tracer:
    """Records the lines that each test runs, the types of its locals, and the predicates that hold of its arguments."""

    def __init__(self, request):
        cwd = request["cwd"]
        self.files = {os.path.join(cwd, path): path for path in request["files"]}
        self.lines = {}  # test id -> {(path, line)}
        self.holds = {}  # test id -> {(path, first line of the function, predicate)}
        self.types = {}  # (path, first line of the function, name) -> {type name}
        self.hangs = 0
        self.seen = {}
        self.now = self.facts = None

    def start(self, name):
        self.now = self.lines.setdefault(name, set())
        self.facts = self.holds.setdefault(name, set())
        self.seen = {}
        threading.settrace(self.enter)
        sys.settrace(self.enter)

    def stop(self):
        sys.settrace(None)
        threading.settrace(None)

    def enter(self, frame, event, arg):
        code = frame.f_code
        path = self.files.get(code.co_filename)
        if path is None:
            return None
        count = self.seen[code] = self.seen.get(code, 0) + 1
        if count <= CALLS_SEEN and code.co_name != "<module>":
            self.arguments(frame, (path, code.co_firstlineno))
        now, types, place = self.now, self.types, (path, code.co_firstlineno)

        def inside(frame, event, arg):
            if event == "line":
                fresh = (path, frame.f_lineno) not in now
                now.add((path, frame.f_lineno))
            if event == "return" and arg is not None:
                types.setdefault((*place, "return"), set()).add(type(arg).__name__)
            if (event == "return" and count <= CALLS_SEEN) or (event == "line" and fresh):
                for name, value in variables(frame.f_locals):
                    types.setdefault((*place, name), set()).add(type(value).__name__)
            return inside

        return inside

    def arguments(self, frame, place):
        code = frame.f_code
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        values = {name: frame.f_locals[name] for name in names if name in frame.f_locals}
        known = [(name, value) for name, value in variables(values) if type(value) in PLAIN][:8]
        for predicate in predicates(known):
            self.facts.add((*place, predicate))


def variables(values):
    """Return the locals, and the attributes of `self` as `self.name`."""
    for name, value in list(values.items()):
        if not name.startswith("__"):
            yield name, value
        if name == "self":
            for attribute, inner in list(getattr(value, "__dict__", {}).items()):
                yield f"self.{attribute}", inner


def predicates(known):
    """Return the simple conditions that hold of these (name, value) pairs, as Python text."""
    for name, value in known:
        if value is None:
            yield f"{name} is None"
        elif not value:
            yield f"not {name}"
        if type(value) in (int, float):
            tests = {"< 0": value < 0, "<= 0": value <= 0, "== 0": value == 0, "== 1": value == 1, "<= 1": value <= 1}
            yield from (f"{name} {test}" for test, true in tests.items() if true)
        if type(value) in SIZED:
            if len(value) == 1:
                yield f"len({name}) == 1"
            if len(value) <= 1:
                yield f"len({name}) <= 1"
        if type(value) is str and value and not value.strip():
            yield f"not {name}.strip()"
    for name, value in known:
        for other, second in known:
            if name == other:
                continue
            if type(value) in (int, float) and type(second) in (int, float):
                tests = {"==": value == second, ">": value > second, ">=": value >= second}
                yield from (
                    f"{name} {test} {other}"
                    for test, true in tests.items()
                    if true and (test != "==" or name < other)
                )
            elif type(value) is int and type(second) in SIZED:
                if value >= len(second):
                    yield f"{name} >= len({other})"
                if value > len(second):
                    yield f"{name} > len({other})"
            elif type(value) is type(second) and type(value) in SIZED:
                if value == second and name < other:
                    yield f"{name} == {other}"
                if len(value) != len(second) and name < other:
                    yield f"len({name}) != len({other})"
                if len(value) > len(second):
                    yield f"len({name}) > len({other})"
            if (type(second) in SIZED and type(value) in SCALARS and type(second) not in (str, bytes)) or (
                type(second) is str and type(value) is str
            ):
                yield f"{name} in {other}" if value in second else f"{name} not in {other}"


def run(request, tracer=None):
    """Run the suite once, in this process."""
    suite = Suite(request, tracer)
    cwd = request["cwd"]
    arguments = ["-p", "no:cacheprovider", "-p", "no:terminal", "-p", "no:logging", "-p", "no:junitxml"]
    arguments += ["-p", "no:pastebin", "-p", "no:doctest", "-p", "no:faulthandler", "-p", "no:terminalprogress"]
    arguments += [f"--rootdir={cwd}", f"--confcutdir={cwd}"]
    if not any(
        os.path.exists(os.path.join(cwd, name)) for name in ("pytest.ini", "pyproject.toml", "tox.ini", "setup.cfg")
    ):
        arguments += ["-c", os.devnull]  # ignores the settings of the folders above
    if request["mode"] == "check":
        arguments.append("--assert=plain")
    if tracer:
        tracer.start("")
    code = pytest.main([*arguments, *request["tests"]], plugins=[suite])
    if tracer:
        tracer.stop()
    return suite, int(code)


def plainly(request):
    suite, code = run(request)
    return {"outcomes": suite.outcomes, "exit": code, "slowest": suite.slowest}


def traced(request):
    """Count, for each line and predicate, the failing and the passing tests that reached it."""
    tracer = Tracer(request)
    suite, _ = run(request, tracer)
    failing = {name for name, outcome in suite.outcomes.items() if outcome[0] != "passed"}

    def counted(sets):
        counts = {}
        for test, facts in sets.items():
            for fact in facts if test else ():
                counts.setdefault(fact, [0, 0])[test not in failing] += 1
        return [[*fact, *count] for fact, count in sorted(counts.items()) if count[0]]

    return {
        "lines": counted(tracer.lines),
        "holds": counted(tracer.holds),
        "imported": sorted(tracer.lines.get("", ())),
        "types": [[*place, sorted(names)] for place, names in sorted(tracer.types.items())],
    }


def apart(job, request):
    """Run `job(request)` in a child process, so that its changes of modules and memory disappear."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        with os.fdopen(writer, "w") as pipe:
            json.dump(job(request), pipe)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    return json.loads(text) if text else None


def survey(request):
    plain = apart(plainly, request)
    if plain is None:
        return None
    hangs = [name for name, outcome in plain["outcomes"].items() if outcome[0] == "timeout"]
    slowest = plain.pop("slowest")
    # A class, not a duration: the result must not depend on the clock.
    plain["limit"] = next((limit for limit in (0.5, 2, 5, 20) if 10 * slowest <= limit), 60)
    plain["hangs"] = hangs
    plain["traced"] = apart(traced, {**request, "hangs": hangs, "limit": max(plain["limit"], 2)})
    return plain


def timed_out(signum, frame):
    raise TestTimedOut


def main():
    request = json.loads(sys.argv[1])
    out = os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGPROF, timed_out)
    signal.signal(signal.SIGALRM, timed_out)
    request["cwd"] = os.path.realpath(request["cwd"])
    os.chdir(request["cwd"])
    sys.path[:0] = [request["cwd"]]
    answer = survey(request) if request["mode"] == "survey" else plainly(request)
    with os.fdopen(out, "w") as stream:
        json.dump(answer, stream)
    os._exit(0)  # without waiting for threads that a mutant left


if __name__ == "__main__":
    main()
