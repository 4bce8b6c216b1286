"""The simulated engine: vLLM's own scheduler with a virtual clock and no model.

Start at `simulation.replay`. `fleet` puts one queue before several engines; `fast_scheduler` gives the same results
faster.
"""
