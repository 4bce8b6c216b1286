"""A Python session: the process inside the world. Run as a script by Python 3.8 or later. Stdlib only.

    python3 python_session.py IN OUT

Requests come on one named pipe and replies go to the other, as one JSON object per line. Output of the code goes to
the session's standard output, which the agent reads. `fork` creates a second session from this one: they share memory
until one of them writes, and the child serves its own pipes.
"""

from __future__ import annotations

import ast
import gc
import json
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import IO, Any


def serve(requests: IO[bytes], answers: IO[bytes]) -> None:
    """Answer requests until the other end closes its pipe."""
    names: dict[str, Any] = {"__name__": "__main__", "__builtins__": __builtins__}
    reply(answers, {"pid": os.getpid()})
    while True:
        line = requests.readline()
        if not line:
            return
        request = json.loads(line)
        if "fork" in request:
            gc.freeze()  # so that a collection does not write to shared pages
            child = os.fork()
            if child == 0:
                requests.close()
                answers.close()
                requests, answers = pipes(*request["fork"])
                reply(answers, {"pid": os.getpid()})
            else:
                reply(answers, {"child": child})
            continue
        reply(answers, run(request["code"], names))


def run(code: str, names: dict[str, Any]) -> dict[str, str | None]:
    """Run code; return the repr of the last expression, or the traceback without our own frames."""
    value = error = None
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        body = ast.parse(code, "<session>").body
        last = body[-1].value if body and isinstance(body[-1], ast.Expr) else None
        if last is not None:
            body.pop()
        exec(compile(ast.Module(body, []), "<session>", "exec"), names)
        if last is not None:
            value = eval(compile(ast.Expression(last), "<session>", "eval"), names)
            names["_"] = value
            value = None if value is None else repr(value)
    except BaseException as raised:  # noqa: BLE001  (any exception, also SystemExit, is the code's own outcome)
        trace = raised.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
            trace = trace.tb_next
        error = "".join(traceback.format_exception(type(raised), raised, trace))
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    return {"value": value, "error": error}


def pipes(requests: str, answers: str) -> tuple[IO[bytes], IO[bytes]]:
    return Path(requests).open("rb"), Path(answers).open("wb", buffering=0)


def reply(answers: IO[bytes], answer: dict[str, Any]) -> None:
    answers.write(json.dumps(answer).encode() + b"\n")


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    serve(*pipes(sys.argv[1], sys.argv[2]))
