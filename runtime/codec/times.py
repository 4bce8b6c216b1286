"""Dates, times, durations and time zones: how they are encoded and decoded."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date, datetime, time, timedelta, timezone, tzinfo
from pickle import PicklingError
from typing import Any, TypeVar, cast
from zoneinfo import ZoneInfo

from ramify.runtime.errors import NotSerialisable

_Time = TypeVar("_Time", datetime, time)


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


_UNCACHED: dict[str, ZoneInfo] = {}
"""The zones outside `ZoneInfo`'s cache that were decoded, so that the times of one value share theirs."""


def _is_cached(zone: ZoneInfo, where: str) -> bool:
    """Return whether a zone was made by `ZoneInfo(key)`, not by `ZoneInfo.no_cache`."""
    try:
        return bool(cast(Any, zone.__reduce__())[1][1])
    except PicklingError as error:
        raise NotSerialisable(
            f"{where} has a time zone that was read by ZoneInfo.from_file: use ZoneInfo({zone.key!r}) in its place"
        ) from error


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
        return {"key": zone.key} if _is_cached(zone, where) else {"key": zone.key, "cached": False}
    if type(zone).__module__.startswith("pydantic_core") and type(zone).__name__ == "TzInfo":
        return {"pydantic": zone.__reduce__()[1][0]}
    kind = f"{type(zone).__module__}.{type(zone).__qualname__}"
    raise NotSerialisable(
        f"{where} has a {kind} for its time zone: use zoneinfo.ZoneInfo or datetime.timezone in its place"
    )


def encode_tzinfo(_encoder: object, value: tzinfo, where: str) -> Any:
    if type(value) is ZoneInfo and value.key is not None and not _is_cached(value, where):
        raise NotSerialisable(
            f"{where} is a ZoneInfo.no_cache({value.key!r}), which equals no other zone: use ZoneInfo({value.key!r})"
        )
    return {"$": "tz", "v": _encode_zone(value, where)}


def decode_datetime(_decoder: object, body: str, value: Mapping[str, Any]) -> datetime:
    return _placed(datetime.fromisoformat(body), value)


def decode_time(_decoder: object, body: str, value: Mapping[str, Any]) -> time:
    return _placed(time.fromisoformat(body), value)


def _placed(found: _Time, value: Mapping[str, Any]) -> _Time:
    if "z" in value:
        found = found.replace(tzinfo=decode_zone(value["z"]))
    return found.replace(fold=1) if value.get("fold") else found


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
            if not told.get("cached", True):
                return _UNCACHED.setdefault(told["key"], ZoneInfo.no_cache(told["key"]))
            return ZoneInfo(told["key"])
        except Exception as error:
            raise NotSerialisable(f"a stored time is in the zone {told['key']!r}: {error}") from error
    if "pydantic" in told:
        from pydantic_core import TzInfo

        return TzInfo(told["pydantic"])
    days, seconds, microseconds = told["offset"]
    return timezone(timedelta(days, seconds, microseconds), *told["name"])
