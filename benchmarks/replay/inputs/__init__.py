"""What a replay is fed with: traces, programs made from them, the tags of their calls, and step-time models.

Start at `workload.programs`.
"""
