"""What this machine can do, found out once for each process of a test run."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path

from ramify.sandboxes import doctor


@functools.cache
def why_no_namespaces() -> str:
    """Why worlds in namespaces cannot be made here; "" if they can."""
    with tempfile.TemporaryDirectory() as scratch:
        return doctor.namespaces(Path(scratch)).reason
