"""Importing the model client stays cheap: server packages are imported only where a server runs."""

from __future__ import annotations

import subprocess
import sys

CODE = """
import sys
import ramify.serving.client, ramify.serving.letter_ranking, ramify.serving.testing, ramify.serving.engine.models
import ramify.serving.gateway.server, ramify.serving.engine.llama_cpp, ramify.serving.policy.edf
print(*sorted({"starlette", "uvicorn", "xllamacpp", "sqlalchemy", "langgraph"} & set(sys.modules)))
"""


def test_client_import_brings_no_server() -> None:
    out = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    assert out.stdout.split() == []
