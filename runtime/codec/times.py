"""Dates, times, durations and time zones: how they are encoded, and how zones are decoded."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date, datetime, time, timedelta, timezone, tzinfo
from typing import Any, cast
from zoneinfo import ZoneInfo

from ramify.runtime.errors import NotSerialisable


def encode_date(_encoder: object, value: date, _where: str) -> Any:
    return {"$": "date", "v": value.isoformat()}


def encode_datetime(_encoder: object, value: datetime | time, where: str) -> Any:
    zone = value.tzinfo
    kept: dict[str, Any] = {"$": "datetime" if isinstance(value, datetime) else "time"}
    if zone is None or (type(zone) is timezone and len(cast(Any, zone).__getinitargs__()) == 1):
        kept["v"] = value.isoformat()
    else:
        kept |= {"v": value.replace(tzinfo=None).isoformat(), "z": _encode_zone(zone, where)}
        if type(zone) is ZoneInfo and ZoneInfo(zone.key) is not zone:  # not from the cache: it may differ
            _refuse_other_zone(value, zone, where)
    return {**kept, "fold": 1} if value.fold else kept


def _refuse_other_zone(value: datetime | time, zone: ZoneInfo, where: str) -> None:
    known = value.replace(tzinfo=ZoneInfo(zone.key))
    if known != value or known.utcoffset() != value.utcoffset():
        raise NotSerialisable(f"{where} has a time zone {zone.key!r} that differs from this machine's of that name")


def _encode_zone(zone: tzinfo, where: str) -> Any:
    if type(zone) is timezone:
        offset, *name = cast(Any, zone).__getinitargs__()
        return {"offset": [offset.days, offset.seconds, offset.microseconds], "name": name}
    if type(zone) is ZoneInfo and zone.key is not None:
        try:
            ZoneInfo(zone.key)
        except Exception as error:
            raise NotSerialisable(f"{where} has the time zone {zone.key!r}: {error}") from error
        return {"key": zone.key}
    if type(zone).__module__.startswith("pydantic_core") and type(zone).__name__ == "TzInfo":
        return {"pydantic": zone.__reduce__()[1][0]}
    kind = f"{type(zone).__module__}.{type(zone).__qualname__}"
    raise NotSerialisable(
        f"{where} has a {kind} for its time zone: use zoneinfo.ZoneInfo or datetime.timezone in its place"
    )


def encode_tzinfo(_encoder: object, value: tzinfo, where: str) -> Any:
    return {"$": "tz", "v": _encode_zone(value, where)}


def encode_timedelta(_encoder: object, value: timedelta, _where: str) -> Any:
    seconds = value.total_seconds()
    try:
        exact = timedelta(seconds=seconds) == value
    except OverflowError:
        exact = False
    if exact:
        return {"$": "timedelta", "v": seconds}
    return {"$": "delta", "v": [value.days, value.seconds, value.microseconds]}


def decode_zone(told: Mapping[str, Any]) -> tzinfo:
    if "key" in told:
        try:
            return ZoneInfo(told["key"])
        except Exception as error:
            raise NotSerialisable(f"a stored time is in the zone {told['key']!r}: {error}") from error
    if "pydantic" in told:
        from pydantic_core import TzInfo

        return TzInfo(told["pydantic"])
    days, seconds, microseconds = told["offset"]
    return timezone(timedelta(days, seconds, microseconds), *told["name"])
