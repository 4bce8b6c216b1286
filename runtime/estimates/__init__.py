"""What recorded runs tell: estimates for the compiler, and a cost model for decisions at run time.

`recorded_runs.py` reads journal rows and computes medians from them, `gateway_history.py` asks a gateway for stages
that were not recorded here, and `cost_model.py` predicts the seconds of forks, restores, recomputations and flushes.
"""
