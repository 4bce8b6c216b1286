"""Serving: model calls with deadlines, from the client to the engine.

A call starts in `client` (`LLMClient`), carries its deadline as `protocol.tags.SLOTags`, waits in the `gateway` for a
slot in the order of a `policy`, and runs in an `engine` (the embedded llama.cpp, vLLM with the scheduler of
`vllm_plugin`, or any OpenAI-compatible server). `lengths` is the request analyzer: it predicts how long answers will
be and which stages of a workflow are still to come. Nothing here knows of sandboxes or the compiler.

Start reading at `protocol/tags.py`, `gateway/http/app.py` and `policy/types.py`.
"""
