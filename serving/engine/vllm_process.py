"""What runs in vLLM's process: its server, tied to its parent's life, and the access guard of that server.

`python -m ramify.serving.engine.vllm_process PARENT ARGUMENTS…`, run by `vllm`, starts vLLM's server. When the parent
dies, however it dies, the kernel sends SIGTERM, at which vLLM ends its own engine processes too. While vLLM starts,
it may wait for those without end. So what is left of the process group after a grace period gets SIGKILL.

vLLM loads `VllmGuard` as a middleware (`--middleware`). By itself, vLLM checks a key only below /v1, although its
other routes change things, too. With the guard, every route needs the key, except for `/health`, which tells nothing.
"""

from __future__ import annotations

import ctypes
import os
import runpy
import signal
import sys
import threading
import time

from ramify.serving.http_guard import AccessPolicy, AccessRefusal, App, Guard, Headers, Keys

_PR_SET_PDEATHSIG = 1
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


def end_with_parent(parent: int, grace_s: float = _GRACE_S, look_s: float = _LOOK_S) -> None:
    """Ask the kernel for SIGTERM when the parent ends. `grace_s` later, end what is left of this process's group if
    it leads one, else this process. Exits at once if the parent is gone already."""
    if ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM) != 0 or os.getppid() != parent:
        sys.exit("the parent is gone")

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(look_s)
        time.sleep(grace_s)
        if os.getpgrp() == os.getpid():
            os.killpg(0, signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, name="ramify-end-with-parent", daemon=True).start()


def main() -> None:
    end_with_parent(int(sys.argv[1]))
    sys.argv[1:] = sys.argv[2:]
    runpy.run_module("vllm.entrypoints.openai.api_server", run_name="__main__", alter_sys=True)


if __name__ == "__main__":  # vLLM starts its engine by spawn, which imports this module again
    main()
