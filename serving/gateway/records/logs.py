"""Structured logs: one JSON object a line, and never a word of a prompt or an answer."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import TextIO

from ramify.serving.gateway.records.calls import Call

LOGGER = logging.getLogger("ramify.gateway")
_ANALYZER = logging.getLogger("ramify.analyzer")  # of its process: that it died, and is there again
_SERVER = logging.getLogger("uvicorn.error")  # what the HTTP server beneath has to say


class JsonLines(logging.Formatter):
    """`{"at": …, "level": …, "event": …, …}`, the fields being those that `log` was given."""

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        said = {"at": at, "level": record.levelname.lower(), "event": record.getMessage()}
        fields = getattr(record, "fields", {})
        if record.exc_info:
            fields = {**fields, "exception": self.formatException(record.exc_info)}
        return json.dumps({**said, **fields}, separators=(",", ":"))


def to_stream(stream: TextIO) -> logging.Handler:
    """Send the gateway's log there, until `stop` is given what this returns."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonLines())
    for logger in (LOGGER, _ANALYZER, _SERVER):
        logger.addHandler(handler)
        logger.propagate = False
    for logger in (LOGGER, _ANALYZER):
        logger.setLevel(logging.INFO)
    return handler


def stop(handler: logging.Handler) -> None:
    for logger in (LOGGER, _ANALYZER, _SERVER):
        logger.removeHandler(handler)


def log(event: str, *, level: int = logging.INFO, **fields: str | float | bool | None) -> None:
    LOGGER.log(level, event, extra={"fields": fields})


def request(call: Call) -> None:
    """A call has ended."""
    if not LOGGER.isEnabledFor(logging.INFO):
        return
    assert call.ended is not None
    ledger = call.ledger(call.ended)
    log(
        "request",
        id=f"req-{call.id}",
        path=call.path,
        kind=call.kind.value,
        outcome=call.outcome.value,
        compound_id=call.tags.compound_id,
        tokens=call.chunks,
        queue_s=round(ledger.queue_s, 4),
        first_token_s=round(ledger.first_token_s, 4),
        total_s=round(ledger.total_s, 4),
        deadline_s=ledger.deadline_s,
        met=ledger.met,
        preemptions=call.track.preemptions,
        attempts=call.attempts,
        replica=call.replica,
    )
