"""A bucket: named objects in S3, Google Cloud Storage, Azure or a local folder, through `obstore` (extra `remote`).

Every failure is raised as one of our errors. Messages name the bucket and the object, and never what the server
answered: an answer may hold parts of a signed request.
"""

from __future__ import annotations

import errno
import os
import re
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ramify import paths
from ramify.fork_engine.errors import (
    ClockOff,
    CredentialsRefused,
    RemoteError,
    RemoteObjectAltered,
    RemoteObjectMissing,
    RemoteUnusable,
)
from ramify.fork_engine.filesystem.file_content import sync_file_system
from ramify.fork_engine.store_folder import open_folder

SCHEMES = {
    "s3": "s3",
    "s3a": "s3",
    "gs": "gs",
    "az": "az",
    "azure": "az",
    "abfs": "az",
    "abfss": "az",
    "file": "file",
}
"""The URL schemes that a bucket may have, and the kind of service."""

PART_BYTES = 8 << 20
"""Bytes of one part of a large upload, and of one request of a download."""

_BODIES, _SMALL_BODY = 2, 1 << 20
"""Uploads to a service at the same time that are not small. They share the connection, and `obstore` gives up a
request that takes longer than 30 s ($AWS_TIMEOUT): so what is under way at once must be little for a slow one."""

_RETRIES, _FIRST_WAIT_S, _LONGEST_WAIT_S, _RETRY_S = 8, 0.5, 4.0, 90.0
"""Retries of a request. The waits between them grow at random and add up to about 8 s."""
_MOST_AT_ONCE = 1 << 30
"""Bytes of an object that `get` reads. A service that announces more would have `obstore` end the process."""

_OS_ERROR = re.compile(r"\(os error (\d+)\)")
_REFUSED = (errno.EACCES, errno.EPERM, errno.EROFS)
_CODE = re.compile(r"<Code>([A-Za-z]+)</Code>|\"error\": ?\"([a-z_]+)\"")
_CLOCK = (
    "RequestTimeTooSkewed",
    "RequestExpired",
    "Request date header too old",
    "Invalid JWT: Token must be a short",
)
_CREDENTIALS = (
    *("ExpiredToken", "InvalidToken", "TokenRefreshRequired", "InvalidAccessKeyId", "SignatureDoesNotMatch"),
    *("AccessDenied", "AuthenticationFailed", "AuthorizationFailure", "AuthorizationPermissionMismatch"),
    *("invalid_grant", "UnauthorizedAccess", "credential", "401 Unauthorized", "403 Forbidden"),
)


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """An object's name, its size in bytes, and when it was written, in Unix seconds by the bucket's clock."""

    name: str
    size: int
    modified: float


class Bucket:
    """The objects below one address. Safe for many threads.

    url: `s3://BUCKET/PREFIX`, `gs://BUCKET/PREFIX`, `az://ACCOUNT/CONTAINER/PREFIX`, `file:///FOLDER`, or a folder's
    path. Credentials and endpoints come from the environment, as the service's own tools read them.

    Raises `RemoteUnusable` if the address is none of these, has a password in it, or `obstore` is not installed.
    """

    def __init__(self, url: str | Path) -> None:
        self.url, self.folder = normalised(url)
        self._store = _open(self.url, self.folder)
        self._bodies = threading.BoundedSemaphore(_BODIES)

    def get(self, name: str) -> bytes:
        """Return the bytes of a small object. Raises `RemoteObjectMissing`, `RemoteObjectAltered`."""
        import obstore

        with self._errors(name):
            found = obstore.get(self._store, name)
            if (size := found.meta["size"]) > _MOST_AT_ONCE:
                raise RemoteObjectAltered(f"{self.url}: {name} has {size} bytes, which Ramify has not written")
            return bytes(found.bytes())

    def stream(self, name: str, start: int, length: int) -> Iterator[memoryview]:
        """Yield `length` bytes of an object from `start`, in pieces; fewer if the object is shorter. Raises
        `RemoteObjectMissing`."""
        end, at_once = start + length, PART_BYTES if self.folder is None else length
        while start < end:
            asked, got = min(at_once, end - start), 0
            try:
                for piece in self._part(name, start, asked):
                    got += len(piece)
                    yield piece
            except RemoteUnusable:
                info = self.info(name)
                if info is None or info.size > start:
                    raise
                # services refuse a range that begins behind the end
            if got < asked:
                return
            start += asked

    def _part(self, name: str, start: int, length: int) -> Iterator[memoryview]:
        import obstore

        with self._errors(name):
            found = obstore.get(self._store, name, options={"range": (start, start + length)})
            for piece in found.stream(min_chunk_size=min(length, PART_BYTES)):
                yield memoryview(piece)

    def put(self, name: str, data: bytes | Iterable[bytes]) -> None:
        """Write an object, all of it or nothing. Errors that `data` raises are passed on, with nothing written."""
        import obstore

        free = self.folder is not None or (isinstance(data, bytes) and len(data) < _SMALL_BODY)
        parts = 1 if self.folder is None else 4
        with self._errors(name), nullcontext() if free else self._bodies:
            if isinstance(data, bytes):
                obstore.put(self._store, name, data, use_multipart=False)
            else:
                obstore.put(self._store, name, iter(data), chunk_size=PART_BYTES, max_concurrency=parts)

    def create(self, name: str, data: bytes) -> bool:
        """Write an object unless one has this name. Returns whether it was written. Atomic."""
        import obstore
        from obstore.exceptions import AlreadyExistsError

        with self._errors(name):
            try:
                obstore.put(self._store, name, data, mode="create", use_multipart=False)
            except AlreadyExistsError:
                return False
        return True

    def info(self, name: str) -> ObjectInfo | None:
        """Return what is known of an object without reading it, or None if there is none."""
        import obstore

        try:
            with self._errors(name):
                return _info(obstore.head(self._store, name))
        except RemoteObjectMissing:
            return None

    def objects(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Yield the objects below a prefix of whole path segments, in no particular order."""
        import obstore

        with self._errors(prefix):
            for page in obstore.list(self._store, prefix=prefix or None):
                yield from map(_info, page)

    def folders(self, prefix: str) -> list[str]:
        """Return the next path segments below a prefix that have objects, sorted."""
        import obstore

        with self._errors(prefix):
            found = obstore.list_with_delimiter(self._store, prefix=prefix)
            return sorted(str(path).rpartition("/")[2] for path in found["common_prefixes"])

    def delete(self, name: str) -> None:
        """Delete an object, if it exists."""
        import obstore

        try:
            with self._errors(name):
                obstore.delete(self._store, name)
        except RemoteObjectMissing:
            return

    def flush(self) -> None:
        """Return once everything written is durable. Services are, before they answer; a local folder is flushed."""
        if self.folder is not None:
            with open_folder(self.folder) as fd:
                sync_file_system(fd)

    @contextmanager
    def _errors(self, name: str) -> Iterator[None]:
        from obstore.exceptions import BaseError, NotFoundError

        try:
            yield
        except (NotFoundError, FileNotFoundError):
            raise RemoteObjectMissing(f"{self.url} has no object {name}") from None
        except BaseError as error:
            raise _translated(error, self.url, name, folder=self.folder is not None) from None
        except OSError as error:
            raise RemoteUnusable(
                f"{self.url} cannot be used at {name}: {error.strerror or type(error).__name__}"
            ) from error


_FORMS = "s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, az://ACCOUNT/CONTAINER/PREFIX, or a folder"


def normalised(url: str | Path) -> tuple[str, Path | None]:
    """Return the address as a URL without a trailing slash, and the folder if it is a local one."""
    text = str(url)
    if not text:
        raise RemoteUnusable(f"the bucket's address is empty: write {_FORMS}")
    if isinstance(url, Path) or "://" not in text:
        folder = paths.expanded(url).absolute()
        return folder.as_uri(), folder
    parts = urlsplit(text)
    kind = SCHEMES.get(parts.scheme)
    if kind is None:
        raise RemoteUnusable(f"no bucket has an address that begins with {parts.scheme}://: write {_FORMS}")
    if parts.password is not None or parts.query:
        raise RemoteUnusable("the bucket's address holds a password or options: put credentials into the environment")
    if kind == "file":
        from urllib.request import url2pathname

        folder = Path(url2pathname(parts.path))
        return folder.as_uri(), folder
    if not parts.netloc:
        raise RemoteUnusable(f"{text} names no bucket: write {_FORMS}")
    return text.rstrip("/"), None


def _open(url: str, folder: Path | None) -> Any:
    try:
        from obstore.exceptions import BaseError
        from obstore.store import LocalStore, from_url
    except ModuleNotFoundError:
        raise RemoteUnusable("obstore is not installed: pip install 'ramify[remote]'") from None
    try:
        if folder is not None:
            return LocalStore(folder, mkdir=True)
        waits = {
            "init_backoff": timedelta(seconds=_FIRST_WAIT_S),
            "max_backoff": timedelta(seconds=_LONGEST_WAIT_S),
            "base": 2,
        }
        retries: Any = {"max_retries": _RETRIES, "backoff": waits, "retry_timeout": timedelta(seconds=_RETRY_S)}
        return from_url(url, retry_config=retries)
    except (BaseError, OSError, ValueError) as error:
        first = str(error).splitlines()[0]
        raise RemoteUnusable(f"{url} cannot be opened: {first}. Correct the address or the environment") from None


def _info(meta: Any) -> ObjectInfo:
    return ObjectInfo(meta["path"], meta["size"], meta["last_modified"].timestamp())


def _translated(error: Exception, url: str, name: str, *, folder: bool) -> RemoteError:
    """Return our error for one of obstore's. Only the error code of the service or of the system is taken from its
    text."""
    from obstore.exceptions import PermissionDeniedError, UnauthenticatedError

    text = str(error)
    number = int(found[1]) if (found := _OS_ERROR.search(text)) else 0
    why = os.strerror(number) if number else type(error).__name__
    if folder and number in _REFUSED:
        return CredentialsRefused(
            f"{url} refuses access at {name or 'its top'}: {why}. Let this user read, write, list and delete what is "
            "in the folder, then try again"
        )
    if folder:
        return RemoteUnusable(f"{url} cannot be used at {name or 'its top'}: {why}. Check the folder, then try again")
    found = _CODE.search(text)
    code = next((one for one in found.groups() if one), "") if found else ""
    shown = f" ({code})" if code else ""
    if any(mark in text for mark in _CLOCK):
        return ClockOff(
            f"{url} refuses requests because this machine's clock is off{shown}: set it (timedatectl), then try again"
        )
    if isinstance(error, PermissionDeniedError | UnauthenticatedError) or any(mark in text for mark in _CREDENTIALS):
        return CredentialsRefused(
            f"{url} refuses the credentials at {name}{shown}: they are missing, expired, or lack the permission. "
            "Renew them in the environment, then try again"
        )
    return RemoteUnusable(
        f"{url} cannot be used at {name or 'its top'}{shown}: {why}. Check the address and the network, then try "
        "again"
    )
