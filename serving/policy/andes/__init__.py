"""Andes, a policy for streams (Liu et al., "Andes: Defining and Enhancing Quality-of-Experience in LLM-Based Text
Streaming Services", §4). Start at `policy.Andes`.

`packing` keeps what is known of each request as columns, predicts the QoE of all of them at once, and chooses whom to
serve, and which of these changes are worth their overhead. It needs numpy (`ramify[serve]`).
"""
