"""What can go wrong with the analyzer. None of it stops scheduling: a call keeps the sketch that it has.

AnalyzerError (a ServingError)
├── AnalyzerDown         the process cannot be reached, or does not start; `client` answers with the last bounds
├── BadFrame             what came over the socket is no message of ours
└── CheckpointCorrupt    the saved state is not what was written; the analyzer starts without it, and says so
"""

from __future__ import annotations

from ramify.serving.errors import ServingError


class AnalyzerError(ServingError):
    """Anything that the analyzer reports."""


class AnalyzerDown(AnalyzerError):
    """The analyzer's process cannot be reached, or does not start."""


class BadFrame(AnalyzerError):
    """A frame that cannot be read, or asks for what there is not."""


class CheckpointCorrupt(AnalyzerError):
    """A checkpoint that cannot be read whole."""
