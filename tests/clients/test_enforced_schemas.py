"""Answers of the embedded engine, generated under every keyword that it is said to enforce."""

from __future__ import annotations

import json

import httpx
import jsonschema
import pytest

from tests.serving.gateway.formats.test_schema_keywords import SCHEMA


@pytest.mark.model
def test_answers_meet_every_allowed_keyword(served: str) -> None:
    """At a temperature at which the model has no opinion of its own."""
    shape = {"type": "json_schema", "json_schema": {"name": "all", "strict": True, "schema": SCHEMA}}
    body = {"messages": [{"role": "user", "content": "An example."}], "response_format": shape}
    with httpx.Client(base_url=served, timeout=150) as client:
        for seed in range(2):
            answer = client.post(
                "/chat/completions",
                json={**body, "temperature": 2.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "seed": seed},
            )
            assert answer.status_code == 200, answer.text
            choice = answer.json()["choices"][0]
            assert choice["finish_reason"] == "stop"
            said = json.loads(choice["message"]["content"])
            jsonschema.validate(said, SCHEMA, format_checker=jsonschema.FormatChecker())
