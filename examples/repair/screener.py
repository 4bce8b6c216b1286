"""Tries many edits of one program inside one world, each in a forked copy of a warm interpreter.

It is sent into the world as text, like runner.py, whose text comes with the request on standard input. Each candidate
runs a few of the failing tests, and the whole suite if one of them passes. Nothing is written: the copy that tries an
edit imports the edited text in place of the file.
"""

import importlib.machinery
import json
import os
import resource
import signal
import sys
import types

FIRST = 3  # failing tests that decide whether the whole suite is worth running
WALL = 10  # seconds after which a copy is killed, whatever happens in it


def import_instead(texts):
    """From now on, import these files with other text: {real path: text}."""
    plain = importlib.machinery.SourceFileLoader.get_code

    def get_code(self, name):
        path = os.path.realpath(self.get_filename(name))
        if path in texts:
            return compile(texts[path], path, "exec", dont_inherit=True)
        return plain(self, name)

    importlib.machinery.SourceFileLoader.get_code = get_code


def tried(runner, request):
    """Run the suite with the request's text in place of the file; return only the statuses and pytest's exit code."""
    signal.alarm(WALL)
    import_instead({os.path.realpath(request["path"]): request["text"]})
    answer = runner.plainly(request)
    return {"exit": answer["exit"], "outcomes": {name: outcome[:1] for name, outcome in answer["outcomes"].items()}}


def trial(runner, request):
    """Return the answer for one candidate; None if it fixes none of the first failing tests."""
    first = runner.apart(lambda asked: tried(runner, asked), {**request, "tests": request["failing"][:FIRST]})
    if first is None or all(status != ["passed"] for status in first["outcomes"].values()):
        return None
    return runner.apart(lambda asked: tried(runner, asked), request)


def share(runner, request, number, width):
    """Return every `width`-th candidate, beginning with that number: one worker's share."""
    mine = list(enumerate(request["candidates"]))[number::width]
    return [[i, trial(runner, {**request, "path": path, "text": text})] for i, (path, text) in mine]


def screen(runner, request):
    """Return the answers in the order of the candidates. There is one worker for each core."""
    width = min(len(os.sched_getaffinity(0)), len(request["candidates"]))
    workers = []
    for number in range(width):
        reader, writer = os.pipe()
        if os.fork() == 0:
            os.close(reader)
            with os.fdopen(writer, "w") as pipe:
                json.dump(share(runner, request, number, width), pipe)
            os._exit(0)
        os.close(writer)
        workers.append(reader)
    answers = [None] * len(request["candidates"])
    for reader in workers:
        with os.fdopen(reader) as pipe:
            for i, answer in json.loads(pipe.read() or "[]"):
                answers[i] = answer
    return answers


def main():
    request = json.load(sys.stdin)
    runner = sys.modules["runner"] = types.ModuleType("runner")
    exec(compile(request.pop("runner"), "runner.py", "exec"), runner.__dict__)
    out = os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    resource.setrlimit(resource.RLIMIT_AS, (runner.MEMORY, runner.MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGPROF, runner.timed_out)
    request["cwd"] = os.path.realpath(request["cwd"])
    os.chdir(request["cwd"])
    sys.path[:0] = [request["cwd"]]
    runner.run({**request, "tests": [os.devnull]})  # loads pytest's late imports once for all copies
    with os.fdopen(out, "w") as stream:
        json.dump(screen(runner, request), stream)
    os._exit(0)


if __name__ == "__main__":
    main()
