"""Where the runtime meets the user's code: it is loaded, located, run in threads, and given its scope and sandbox.

`workflow_loader.py` loads workflows by reference, `call_sites.py` maps calls to plan operations, `scope.py` holds the
current run, `sandbox.py` is the object that steps get. `worker_threads.py` runs functions that are not async,
`workflow_tasks.py` notices abandoned tasks and who reads a streamed answer, `fork_guard.py` stops forked children
from continuing a run, and `program_exits.py` says what `sys.exit()` ends.
"""
