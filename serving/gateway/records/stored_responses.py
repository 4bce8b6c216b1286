"""`StoredResponses`: which client each stored response belongs to.

An engine that stores its responses gives one to whoever names it. So each of several clients may go on with its own
responses only.
"""

from __future__ import annotations

from collections.abc import Mapping

from ramify.serving.gateway.errors import ApiError, bad_request
from ramify.serving.gateway.records.latest_of_each import LatestOfEach

_MOST = 10_000
_LONGEST = 256  # characters of an id


class StoredResponses:
    """The ids of the latest responses, by client."""

    def __init__(self, most: int = _MOST) -> None:
        self._of: LatestOfEach[bool] = LatestOfEach(most)

    def remember(self, client: str, id: str) -> None:
        if len(id) <= _LONGEST:
            self._of.put(client, id, True)

    def check(self, body: Mapping[str, object], client: str) -> None:
        """Raises ApiError if the request goes on from what the client is not known to have written. `client`: empty
        where clients are not told apart."""
        if not client:
            return
        earlier = body.get("previous_response_id")
        if earlier is not None and not (isinstance(earlier, str) and self._of.get(client, earlier)):
            said = f"previous_response_id: there is no response {str(earlier)[:60]!r} of this client here"
            raise ApiError(400, "previous_response_not_found", said, "previous_response_id")
        if body.get("conversation") is not None:
            raise bad_request("conversation", "conversation: it may be of another client: send all of it in input")
        items = body.get("input")
        for item in items if isinstance(items, list) else ():
            if isinstance(item, Mapping) and item.get("type") == "item_reference":
                raise bad_request(
                    "input", "input: an item_reference may be to another client's: send the item itself"
                )
