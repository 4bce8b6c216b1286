"""The message of a release: no call will continue some branches of a workflow, or the whole workflow.

`POST /v1/ramify/release` takes it, at gateways and at vLLM engines with our middleware:
`{"compound_id": …, "branches": […]}`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence

from ramify.serving.errors import BadTags
from ramify.serving.protocol.tags import name_problem

_MOST_BRANCHES = 1000  # in one message
_MOST_BYTES = 48 * 1024  # of names as JSON: a datagram to an engine holds 64 KiB


def release_of(body: Mapping[str, object]) -> tuple[str, list[str] | None]:
    """Read the workflow, and its branches; None for the whole workflow. Raises BadTags, which names the field."""
    run, branches = body.get("compound_id"), body.get("branches")
    if not isinstance(run, str) or name_problem(run):
        raise BadTags("compound_id", f"name the workflow, which {name_problem(None)}")
    if branches is None:
        return run, None
    if not isinstance(branches, list) or any(map(name_problem, branches)):
        said = "must be a list of names, or left out for the whole workflow"
        raise BadTags("branches", f"{said}; each {name_problem(None)}")
    return run, branches


def parts(branches: Sequence[str]) -> Iterator[list[str]]:
    """Split the branches of a release, so that each part fits into one message."""
    part, size = list[str](), 0
    for branch in branches:
        needs = len(json.dumps(branch)) + 2
        if part and (len(part) >= _MOST_BRANCHES or size + needs > _MOST_BYTES):
            yield part
            part, size = [], 0
        part.append(branch)
        size += needs
    if part:
        yield part
