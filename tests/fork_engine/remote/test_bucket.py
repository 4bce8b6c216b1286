"""A bucket over HTTP: what a service's refusals become. The service is a server here that speaks S3's protocol."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from ramify.fork_engine.errors import ClockOff, CredentialsRefused, RemoteError, RemoteObjectMissing, RemoteUnusable
from ramify.fork_engine.remote.bucket import PART_BYTES, Bucket


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
