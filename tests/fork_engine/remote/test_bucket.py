"""A bucket over HTTP: what a service's refusals become. The service is a server here that speaks S3's protocol."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from ramify.fork_engine.errors import (
    ClockOff,
    CredentialsRefused,
    RemoteError,
    RemoteObjectAltered,
    RemoteObjectMissing,
    RemoteUnusable,
)
from ramify.fork_engine.remote.bucket import PART_BYTES, Bucket

obstore = pytest.importorskip("obstore", reason="needs obstore (ramify[remote])")
from obstore.exceptions import GenericError  # noqa: E402


@dataclass
class Service:
    """The next answer of the server to every request."""

    address: str = ""
    status: int = 200
    body: bytes = b""
    asked: list[str] = field(default_factory=list)
    broken: int = 0  # so many requests from now on get no answer: the connection ends


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    made = Service()

    class Answer(BaseHTTPRequestHandler):
        def answer(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            made.asked.append(self.path)
            if made.broken:
                made.broken -= 1
                self.close_connection = True
                return
            self.send_response(made.status)
            self.send_header("Content-Length", str(len(made.body)))
            self.end_headers()
            self.wfile.write(b"" if self.command == "HEAD" else made.body)

        do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = answer

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    made.address = f"http://127.0.0.1:{server.server_port}"
    for name, value in {
        "AWS_ENDPOINT_URL": made.address,
        "AWS_ALLOW_HTTP": "true",
        "AWS_ACCESS_KEY_ID": "the-key",
        "AWS_SECRET_ACCESS_KEY": "the-secret",
        "AWS_REGION": "us-east-1",
        "NO_PROXY": "127.0.0.1",
    }.items():
        monkeypatch.setenv(name, value)
    yield made
    server.shutdown()
    thread.join()
    server.server_close()


REFUSALS: list[tuple[int, str, type[RemoteError]]] = [
    (403, "RequestTimeTooSkewed", ClockOff),
    (400, "ExpiredToken", CredentialsRefused),
    (403, "InvalidAccessKeyId", CredentialsRefused),
    (403, "AccessDenied", CredentialsRefused),
    (400, "KMS.DisabledException", RemoteUnusable),
    (404, "NoSuchKey", RemoteObjectMissing),
]


@pytest.mark.parametrize(("status", "code", "error"), REFUSALS)
def test_refusals_are_typed_and_tell_no_secret(
    service: Service, status: int, code: str, error: type[RemoteError]
) -> None:
    service.status = status
    service.body = f"<Error><Code>{code}</Code><AWSAccessKeyId>the-key</AWSAccessKeyId></Error>".encode()
    bucket = Bucket("s3://bucket/prefix")
    with pytest.raises(error) as raised:
        bucket.get("objects/name")
    assert "s3://bucket/prefix" in str(raised.value) and "the-key" not in str(raised.value)
    assert type(raised.value) is error and service.asked[0].startswith("/bucket/prefix/objects/name")


@pytest.mark.parametrize(("address", "said"), [("", "is empty"), ("s3://", "names no bucket"), ("ftp://x", "ftp://")])
def test_an_address_of_no_bucket_is_refused_with_the_forms_that_there_are(address: str, said: str) -> None:
    with pytest.raises(RemoteUnusable, match=rf"{said}.*write s3://BUCKET/PREFIX"):
        Bucket(address)


def test_a_service_that_is_away_for_a_while_is_asked_again(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ramify.fork_engine.remote.bucket._FIRST_WAIT_S", 0.001)
    monkeypatch.setattr("ramify.fork_engine.remote.bucket._LONGEST_WAIT_S", 0.002)
    bucket = Bucket("s3://bucket/prefix")
    service.body, service.broken = b"data", 8
    assert bucket.get("objects/name") == b"data"
    service.broken = 9
    with pytest.raises(RemoteUnusable):
        bucket.get("objects/name")


def test_errors_of_the_data_are_passed_on_and_nothing_is_written(tmp_path: Path) -> None:
    bucket = Bucket(tmp_path)

    def pieces() -> Iterator[bytes]:
        yield b"x" * (PART_BYTES + 1)
        raise ValueError("the source")

    with pytest.raises(ValueError, match="the source"):
        bucket.put("objects/name", pieces())
    assert list(bucket.objects()) == [] and bucket.info("objects/name") is None


def test_an_object_that_is_larger_than_any_of_ours_is_not_read(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ramify.fork_engine.remote.bucket._MOST_AT_ONCE", 3)
    bucket = Bucket("s3://bucket/prefix")
    service.body = b"abc"
    assert bucket.get("ramify-store.json") == b"abc"
    service.body = b"abcd"
    with pytest.raises(RemoteObjectAltered, match=r"ramify-store.json has 4 bytes"):
        bucket.get("ramify-store.json")


def test_a_large_object_is_fetched_in_requests_of_a_bounded_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A service's request has to end in time, also over a slow connection."""
    monkeypatch.setattr("ramify.fork_engine.remote.bucket.PART_BYTES", 4)
    asked: list[tuple[int, int]] = []
    get = obstore.get

    def noted(store: Any, name: str, **how: Any) -> Any:
        asked.append(how["options"]["range"])
        return get(store, name, **how)

    bucket = Bucket(tmp_path)
    bucket.put("a", b"0123456789")
    bucket.folder = None  # as a service
    monkeypatch.setattr(obstore, "get", noted)
    assert b"".join(bucket.stream("a", 1, 9)) == b"123456789"
    assert asked == [(1, 5), (5, 9), (9, 10)]
    assert b"".join(bucket.stream("a", 6, 100)) == b"6789"
    assert b"".join(bucket.stream("a", 8, 100)) == b"89"


def test_few_large_objects_are_uploaded_at_the_same_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or none would end in time over a slow connection. Small ones do not wait."""
    monkeypatch.setattr("ramify.fork_engine.remote.bucket._SMALL_BODY", 4)
    bucket = Bucket(tmp_path)
    bucket.folder = None  # as a service
    begun, ended = threading.Semaphore(0), threading.Event()
    put, at_work = obstore.put, set[str]()

    def slow(store: Any, name: str, *data: Any, **how: Any) -> Any:
        at_work.add(name)
        begun.release()
        if name != "small":
            ended.wait()
        return put(store, name, *data, **how)

    monkeypatch.setattr(obstore, "put", slow)
    large: list[tuple[str, bytes | list[bytes]]] = [("a", b"12345"), ("b", [b"1"]), ("c", b"12345"), ("d", [b"1"])]
    with ThreadPoolExecutor(len(large)) as pool:
        uploads = [pool.submit(bucket.put, name, data) for name, data in large]
        begun.acquire()
        begun.acquire()
        bucket.put("small", b"123")
        assert len(at_work) == 3
        ended.set()
        for one in uploads:
            one.result()
    assert at_work == {"a", "b", "c", "d", "small"}


def test_a_folder_that_refuses_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "credentials of ours"  # no word of the path decides which error it is
    bucket = Bucket(folder)
    (folder / "objects").write_text("in the way")
    with pytest.raises(RemoteUnusable, match="objects/a: Not a directory"):
        bucket.put("objects/a", b"data")

    def refuse(*_: Any, **__: Any) -> Any:
        raise GenericError("Generic LocalFileSystem error: Unable to open file /x: Permission denied (os error 13)")

    for name in ("get", "put", "head", "list", "delete"):
        monkeypatch.setattr(obstore, name, refuse)
    works: list[Callable[[], Any]] = [
        lambda: bucket.get("a"),
        lambda: bucket.put("a", b""),
        lambda: bucket.info("a"),
        lambda: list(bucket.objects()),
        lambda: bucket.delete("a"),
    ]
    for work in works:
        with pytest.raises(CredentialsRefused, match=r"Permission denied. Let this user read, write"):
            work()


def test_a_name_is_created_once(tmp_path: Path) -> None:
    bucket = Bucket(tmp_path)
    assert [bucket.create("a/b", b"first"), bucket.create("a/b", b"second")] == [True, False]
    assert bucket.get("a/b") == b"first" and b"".join(bucket.stream("a/b", 1, 3)) == b"irs"
    assert b"".join(bucket.stream("a/b", 3, 100)) == b"st"
    assert list(bucket.stream("a/b", 5, 1)) == list(bucket.stream("a/b", 9, 1)) == []
    assert bucket.folders("") == ["a"]
    bucket.delete("a/b")
    bucket.delete("a/b")
    with pytest.raises(RemoteObjectMissing, match="a/b"):
        bucket.get("a/b")
