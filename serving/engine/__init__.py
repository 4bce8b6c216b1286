"""Engines that Ramify starts as child processes, and the model weights that they need.

`contract.Engine` is what the gateway expects of them. `llama_cpp.LocalEngine` is the embedded engine and
`vllm.VllmEngine` runs vLLM; the `*_process` modules are the programs of their child processes. `models` finds and
downloads weights, `gguf_files` reads them and converts them for vLLM.
"""
