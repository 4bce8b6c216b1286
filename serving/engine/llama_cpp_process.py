"""The embedded engine's process: `python -m ramify.serving.engine.llama_cpp_process SETTINGS`, run by `llama_cpp`.

The first line of its stdin is the key that clients must show. The process lives as long as its parent wants: it ends
when its stdin ends (which a killed parent's pipe does, too), and by the kernel's signal if a copy of that pipe
outlives the parent.
"""

from __future__ import annotations

import json
import os
import sys

from ramify.serving.parent_process import end_with_parent


def main() -> None:
    settings = json.loads(sys.argv[1])
    end_with_parent(settings["parent"], lambda: os._exit(0))
    answer = os.dup(1)
    os.dup2(2, 1)  # llama.cpp also writes to stdout: all of that belongs in the log

    # This must be set before libgomp is loaded. Its threads spin while they wait for each other: beside a sandbox
    # that ran tests on the same cores, 30 tokens took 17 s, and 1 s with this setting. On an otherwise idle machine,
    # spinning is up to twice as fast: set OMP_WAIT_POLICY=active in the environment to get it.
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
    params.n_batch = params.n_ubatch  # one turn of its loop, which the hang check waits for, is then one step
    params.n_threads_http = settings["slots"] + 8  # each running call keeps one thread; health checks need some more
    params.cpuparams.n_threads = settings["threads"]
    params.cpuparams_batch.n_threads = settings["threads"]
    params.cache_prompt = settings["prompt_cache"]
    params.cache_ram_mib = 0  # one slot's own prefix is enough cache on a small machine
    params.ui = False
    params.endpoint_props = False
    params.endpoint_metrics = True  # the only sign of work on an answer that does not stream
    server = xllamacpp.Server(params)  # returns when the model is loaded and the port is open

    os.write(answer, server.listening_address.encode() + b"\n")
    os.close(answer)
    sys.stdin.buffer.read()
    os._exit(0)  # nothing here needs an orderly shutdown, and llama.cpp's takes long


if __name__ == "__main__":
    main()
