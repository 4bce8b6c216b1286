"""Andes, a policy for streams (Liu et al., "Andes: Defining and Enhancing Quality-of-Experience in LLM-Based Text
Streaming Services", §4). Start at `policy.Andes`.

`readers` keeps what is known of each request as columns, and predicts the QoE of all of them at once; `packing`
chooses whom to serve, and which of these changes are worth their overhead. It needs numpy (`ramify[serve]`).
"""
