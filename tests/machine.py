"""What this machine can do, found out once for each process of a test run."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path

from ramify.sandboxes import doctor

DATA_FOLDERS = ("/var/lib", "/srv", "/opt")
"""Data folders of a machine, which worlds see. Folders made in the last two change the machine's fingerprint, so that
other tests, which run meanwhile, would reuse nothing."""


@functools.cache
def why_no_namespaces() -> str:
    """Why worlds in namespaces cannot be made here; "" if they can."""
    with tempfile.TemporaryDirectory() as scratch:
        return doctor.namespaces(Path(scratch)).reason
