"""How near a replay is to vLLM: against a measured run (`fit.judge`), and against a live engine (`live`).

`step_probe` measures the step times of a live engine.
"""
