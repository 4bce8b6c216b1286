"""The models that are served, as Anthropic's clients read them: `ModelInfo` and pages of it.

Clients of both kinds ask at `/v1/models`. Anthropic's send the header `anthropic-version` with every request.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from starlette.datastructures import QueryParams

from ramify.serving.gateway.errors import bad_request

Json = Mapping[str, object]
ANTHROPIC_VERSION = "anthropic-version"
_PAGE, _LARGEST_PAGE = 20, 1000  # Anthropic's
_LATEST = 253402300799  # the last second of the year 9999


def model_info(model: Json) -> Json:
    """An entry of OpenAI's list as Anthropic has it. What an engine does not say is null, as Anthropic allows."""
    created = model.get("created")
    begun = created if isinstance(created, int | float) and 0 <= created <= _LATEST else 0
    context = model.get("max_model_len")  # vLLM's
    return {
        "type": "model",
        "id": model.get("id"),
        "display_name": model.get("id"),
        "created_at": datetime.fromtimestamp(begun, UTC).isoformat().replace("+00:00", "Z"),
        "lifecycle": "active",
        "max_input_tokens": context if isinstance(context, int) else None,
        "max_tokens": None,
        "capabilities": None,
        "deprecated_at": None,
        "retires_at": None,
        "line": None,
    }


def model_page(models: Sequence[Json], query: QueryParams) -> Json:
    """The page of the list that was asked for. Raises ApiError for one that there is not."""
    asked = query.get("limit", str(_PAGE))
    if not (asked.isascii() and asked.isdigit() and len(asked) < 5 and 1 <= int(asked) <= _LARGEST_PAGE):
        raise bad_request("limit", f"limit: must be a whole number from 1 to {_LARGEST_PAGE}")
    stages = query.getlist("lifecycle[]") + query.getlist("lifecycle")
    listed = [model_info(one) for one in models] if not stages or "active" in stages else []
    limit, names = int(asked), [one["id"] for one in listed]
    after, before = query.get("after_id"), query.get("before_id")
    if after is not None and before is not None:
        raise bad_request("before_id", "before_id: give after_id or before_id, not both")
    if before is not None:
        end = _place(names, before, "before_id")
        first = max(0, end - limit)
        more = first > 0
    else:
        first = 0 if after is None else _place(names, after, "after_id") + 1
        end = first + limit
        more = end < len(listed)
    page = listed[first:end]
    return {
        "data": page,
        "has_more": more,
        "first_id": page[0]["id"] if page else None,
        "last_id": page[-1]["id"] if page else None,
    }


def _place(names: list[object], name: str, field: str) -> int:
    if name not in names:
        raise bad_request(field, f"{field}: {name[:200]!r} is not served here")
    return names.index(name)
