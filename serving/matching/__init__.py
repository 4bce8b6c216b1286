"""Matching devices (world slots, nodes, replicas) to jobs that ask for several at once: Venn and simpler rules. Pure.

`types.py` has what a rule sees and decides, `venn.py` Venn as published, `scarcity.py` ours, `orders.py` the simpler
rules. Nothing here lists devices: devices with the same eligibility are one `Atom` with a rate.
"""
