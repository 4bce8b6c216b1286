"""The guard before vLLM's own server, which loads it as a middleware (`--middleware`).

vLLM checks a key below /v1 alone, and its other routes change things, too. Here every route needs the key but
`/health`, which tells nothing.
"""

from __future__ import annotations

import os

from ramify.serving.http_guard import AccessPolicy, App, Guard, Headers, Keys, Refusal

KEY_VARIABLE = "RAMIFY_ENGINE_KEY"
MIDDLEWARE = "ramify.serving.engine.vllm_guard.VllmGuard"


class VllmGuard(Guard):
    """Lets in who shows the key that the environment names; without one, whoever is no page."""

    def __init__(self, app: App) -> None:
        super().__init__(app, AccessPolicy(advice="an engine is reached on a loopback address"))
        key = os.environ.get(KEY_VARIABLE)
        self._keys = Keys([key] if key else [])

    def refusal(self, method: str, path: str, headers: Headers, http_version: str) -> Refusal | None:
        shown = next((value for name, value in headers if name.lower() == b"authorization"), b"")
        if self._keys and path != "/health" and not self._keys.shown_in(shown):
            said = "this engine is for the gateway that started it: call the gateway"
            return Refusal(401, "invalid_api_key", said, "authorization")
        return super().refusal(method, path, headers, http_version)
