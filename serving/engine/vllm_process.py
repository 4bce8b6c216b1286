"""What runs in vLLM's process: its server, tied to its parent's life, and the access guard of that server.

`python -m ramify.serving.engine.vllm_process PARENT ARGUMENTS…`, run by `vllm`, starts vLLM's server. When the parent
ends, however it ends, the server gets SIGTERM, at which vLLM ends its own engine processes too. While vLLM starts, it
may wait for those without end. So what is left of the process group after a grace period gets SIGKILL. If the server
ends without them, as by SIGKILL, a small process beside it does this.

vLLM loads `VllmGuard` as a middleware (`--middleware`). By itself, vLLM checks a key only below /v1, although its
other routes change things, too. With the guard, every route needs the key, except for `/health`, which tells nothing.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
import time

from ramify.serving.http_guard import AccessPolicy, AccessRefusal, App, Guard, Headers, Keys
from ramify.serving.parent_process import end_with_parent

_GRACE_S = 20.0  # for vLLM to end by SIGTERM
_LOOK_S = 1.0
KEY_VARIABLE = "RAMIFY_ENGINE_KEY"
MIDDLEWARE = "ramify.serving.engine.vllm_process.VllmGuard"


class VllmGuard(Guard):
    """Lets in clients with the key from the environment. Without a key, everybody except web pages."""

    def __init__(self, app: App) -> None:
        super().__init__(app, AccessPolicy(advice="an engine is reached on a loopback address"))
        key = os.environ.get(KEY_VARIABLE)
        self._keys = Keys([key] if key else [])

    def refusal(self, method: str, path: str, headers: Headers, http_version: str) -> AccessRefusal | None:
        shown = next((value for name, value in headers if name.lower() == b"authorization"), b"")
        if self._keys and path != "/health" and not self._keys.shown_in(shown):
            said = "this engine is for the gateway that started it: call the gateway"
            return AccessRefusal(401, "invalid_api_key", said, "authorization")
        return super().refusal(method, path, headers, http_version)


def end_group(grace_s: float = _GRACE_S) -> None:
    """Ask this process to end. `grace_s` later, end what is left of its group if it leads one, else itself."""
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(grace_s)
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def leave_nothing_behind(look_s: float = _LOOK_S) -> None:
    """Have what is left of this process's group ended when this process has ended, if it leads one. Call it before
    threads are started: it forks."""
    leader = os.getpid()
    if os.getpgrp() != leader or os.fork():
        return
    while os.getppid() == leader:
        time.sleep(look_s)
    os.killpg(0, signal.SIGKILL)


def main() -> None:
    parent = int(sys.argv[1])
    if os.getppid() == parent:
        leave_nothing_behind()
    end_with_parent(parent, end_group)
    sys.argv[1:] = sys.argv[2:]
    runpy.run_module("vllm.entrypoints.openai.api_server", run_name="__main__", alter_sys=True)


if __name__ == "__main__":  # vLLM starts its engine by spawn, which imports this module again
    main()
