"""Values as the journal keeps them, for people: the user's own types are not loaded."""

from __future__ import annotations

import base64
import json

from ramify.runtime.langgraph.value_summary import brief, messages_in


def plain(value: object) -> object:
    """What the codec wrote, without its tags where a plain value says as much."""
    if isinstance(value, list):
        return [plain(one) for one in value]
    if not isinstance(value, dict):
        return value
    if "$" not in value or "v" not in value:
        return {key: plain(one) for key, one in value.items()}
    kind, body = value["$"], value["v"]
    if kind == "bytes" and isinstance(body, str):
        return base64.b64decode(body).decode(errors="replace")
    if kind == "dataclass" or kind == "pydantic":
        return {str(value.get("t", kind)).rpartition(":")[2]: plain(body)}
    if kind == "dict" and isinstance(body, list):
        return {json.dumps(plain(key)).strip('"'): plain(one) for key, one in body}
    return plain(body)


def spoken(value: object) -> str:
    """In one line; messages by how many there are and what the last one says."""
    told = plain(value)
    return brief(told) if messages_in(told) else json.dumps(told, ensure_ascii=False)
