"""How many replicas each pool of an agent pipeline needs: pure control code, and the loop that applies it.

A pool serves one stage of a pipeline: engine replicas of one model, or ready worlds of one image. `pools` has what a
controller sees and says. `quart` is QUART's controller with its published formulas corrected, and says on which
server a replica starts. `lookahead` is ours: it also knows which calls the plans of live workflows will make. None of
them reads a clock.
"""
