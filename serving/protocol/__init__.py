"""What client, gateway and vLLM plug-in share: SLO tags, OpenAI's API on the wire, length sketches.

`tags.SLOTags` carries a deadline with a model call. `wire` reads and writes OpenAI's chat API. `length_sketch` is the
distribution of an answer's length. Standard library only.
"""
