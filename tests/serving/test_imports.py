"""What a workflow imports to call a model stays light: the servers come only where one is run."""

from __future__ import annotations

import subprocess
import sys

CODE = """
import sys
import ramify.serving.client, ramify.serving.letter_ranking, ramify.serving.testing, ramify.serving.engine.models
import ramify.serving.gateway.server, ramify.serving.engine.llama_cpp, ramify.serving.policy.edf
print(*sorted({"starlette", "uvicorn", "xllamacpp", "sqlalchemy", "langgraph"} & set(sys.modules)))
"""


def test_the_client_brings_no_server_along() -> None:
    out = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    assert out.stdout.split() == []
