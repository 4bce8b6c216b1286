"""The journal of a run: which operations were performed, and with what result.

Start at `journal.py` (Journal: records) and `recorded_run.py` (RecordedRun: replays). `inbox.py` has open questions
and their answers, `forked_runs.py` starts a run from the middle of another, `refs.py` resolves names such as `@~2` to
states.
"""
