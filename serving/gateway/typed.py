"""What typed events lack: llama.cpp leaves out where each belongs, and OpenAI's own client counts on it."""

from __future__ import annotations

from collections.abc import Mapping

_IN_A_PART = ("response.content_part.", "response.output_text.", "response.refusal.")


class Places:
    """Of one stream: the number of each event, and the item and the part of it that the event is about."""

    def __init__(self) -> None:
        self._number = 0
        self._items: dict[str, int] = {}
        self._parts: dict[str, int] = {}

    def completed(self, event: Mapping[str, object]) -> dict[str, object] | None:
        """The event with all of them; None where it has its number, and with it the rest, and for what is none of
        OpenAI's."""
        kind = event.get("type")
        ours = isinstance(kind, str) and kind.startswith("response.") and kind.isascii() and kind.isprintable()
        if not ours or "sequence_number" in event:
            return None
        whole = {**event, "sequence_number": self._number}
        self._number += 1
        kind, item = str(kind), event.get("item")
        name = item.get("id") if isinstance(item, Mapping) else event.get("item_id")
        if not isinstance(name, str):
            return whole
        whole.setdefault("output_index", self._items.setdefault(name, len(self._items)))
        if kind == "response.content_part.added":
            self._parts[name] = self._parts.get(name, -1) + 1
        if kind.startswith(_IN_A_PART):
            whole.setdefault("content_index", self._parts.get(name, 0))
        if kind in ("response.output_text.delta", "response.output_text.done"):
            whole.setdefault("logprobs", [])
        return whole
