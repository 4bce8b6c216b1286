"""The engine's process: `python -m ramify.serving.engine.llama_cpp_process SETTINGS`. Started by `local.py`, never by hand. The
first line of its stdin is the key that its clients must show.

It lives as long as its parent wants it: until stdin ends, which also a killed parent's does, and by the kernel's
own signal where a copy of that pipe outlives the parent.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    settings = json.loads(sys.argv[1])
    if ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL) != 0 or os.getppid() != settings["parent"]:
        sys.exit("the parent is gone")
    answer = os.dup(1)
    os.dup2(2, 1)  # llama.cpp talks on stdout too: all of it belongs into the log

    # Before libgomp loads. Its threads spin while they wait for each other: beside a sandbox that runs tests on the
    # same cores, 30 tokens took 17 s so, and 1 s this way. On a machine of its own, spinning is up to twice as fast:
    # OMP_WAIT_POLICY=active in the environment asks for it.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = settings["model"]
    params.model_alias = {settings["alias"]}
    params.api_keys = [sys.stdin.buffer.readline().decode().strip()]
    params.cors_origins = ""  # no page may read an answer
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.n_parallel = settings["slots"]
    params.n_ctx = settings["context"] * settings["slots"]
    params.n_batch = params.n_ubatch  # one turn of its loop, which a watch waits for, is one step
    params.n_threads_http = settings["slots"] + 8  # each call in it has one until its end, and questions need some
    params.cpuparams.n_threads = settings["threads"]
    params.cpuparams_batch.n_threads = settings["threads"]
    params.cache_prompt = settings["prompt_cache"]
    params.cache_ram_mib = 0  # one slot's own prefix is cache enough on a small machine
    params.ui = False
    params.endpoint_props = False
    params.endpoint_metrics = True  # whether it works on an answer that does not stream, nothing else tells
    server = xllamacpp.Server(params)  # returns when the model is loaded and the port is open

    os.write(answer, server.listening_address.encode() + b"\n")
    os.close(answer)
    sys.stdin.buffer.read()
    os._exit(0)  # nothing of the engine is worth an orderly end, and llama.cpp's takes its time


if __name__ == "__main__":
    main()
