"""Upper bounds that no scheduler can exceed: a linear programme for a workload (`lp`), and the optimum on one slot.

Start at `lp.request_bound`. `shares` computes the bounds of an evaluation's jobs and stores them.
"""
