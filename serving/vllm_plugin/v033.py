"""vLLM 0.33: as 0.32, but a request's error has a message of its own on its way to the client."""

from __future__ import annotations

from typing import Any

from ramify.serving.vllm_plugin.version_adapters import V032, RequestLike


class V033(V032):
    version = "0.33"

    def refusal_output(self, request: RequestLike, text: str) -> Any:
        """`validation_error` is the code that is answered with 400 and the message; any other is a 500."""
        from vllm.outputs import RequestError
        from vllm.v1.engine import EngineCoreOutput, FinishReason

        return EngineCoreOutput(
            request.request_id,
            [],
            finish_reason=FinishReason.ERROR,
            error=RequestError(code="validation_error", message=text),
        )
