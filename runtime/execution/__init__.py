"""Runs a workflow under its plan.

Start at `run.py` (Run, and how a replay works). `driver.py` starts, resumes and ends runs; `steps.py` performs a
step, with `step_call.py` (definition and call) and `step_outcomes.py` (what is recorded); `forks.py` forks and merges
branches; `model_calls.py` sends stages of model calls; `questions.py` and `question_waits.py` ask a person;
`sleeps.py` waits for a time;
`streaming.py` passes on what a workflow yields; `prefix_hints.py` lets an idle engine read ahead.
"""
