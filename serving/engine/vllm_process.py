"""vLLM's server with its parent's life: `python -m ramify.serving.engine.vllm_process PARENT ARGUMENTS…`.

Started by `vllm.py`, never by hand. When the parent dies, however it dies, the kernel sends SIGTERM, at which vLLM
ends its own engine processes too.
"""

from __future__ import annotations

import ctypes
import os
import runpy
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    parent = int(sys.argv[1])
    if ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM) != 0 or os.getppid() != parent:
        sys.exit("the parent is gone")
    sys.argv[1:] = sys.argv[2:]
    runpy.run_module("vllm.entrypoints.openai.api_server", run_name="__main__", alter_sys=True)


if __name__ == "__main__":  # vLLM starts its engine by spawn, which imports this module again
    main()
