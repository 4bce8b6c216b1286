"""Prefix hints, the client's side: only a gateway of ours is ever sent one."""

from __future__ import annotations

from collections.abc import Sequence

import httpx

from ramify.serving import wire
from ramify.serving.types import Message


class PrefixHints:
    """Those to one server. It is asked for its models once: a gateway of ours says there that it is one."""

    def __init__(self, http: httpx.AsyncClient, base_url: str) -> None:
        self._http = http
        self._base_url = base_url
        self._taken: bool | None = None

    async def send(self, messages: Sequence[Message], *, model: str) -> str:
        """Returns when the prefix is read, or will not be: then why, else "". Raises nothing of the network's, nor of
        a text that is none (half a surrogate pair)."""
        try:
            if self._taken is None:
                listed = await self._http.get(f"{self._base_url}/models")
                if listed.status_code >= 400:
                    return f"the server answered {listed.status_code} where it was asked for its models"
                self._taken = wire.GATEWAY_HEADER in listed.headers
            if not self._taken:
                return "the server is no gateway of Ramify's"
            said = [{"role": one.role, "content": one.content} for one in messages]
            answer = await self._http.post(
                f"{self._base_url}{wire.PREFIX_PATH}", json={"model": model, "messages": said}
            )
            body = wire.parse_object(answer.content)
        except (httpx.RequestError, wire.Malformed, UnicodeEncodeError) as error:
            return str(error) or type(error).__name__
        if body.get("read") is True:
            return ""
        return str(body.get("why") or f"the gateway answered {answer.status_code}")
