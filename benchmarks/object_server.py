"""A server that speaks as much of S3's protocol as `obstore` needs, over a folder. It can be killed at any moment:
an object is written whole, and is there after a restart. It checks no credentials; `refuse` has it refuse everything.

    python -m benchmarks.object_server FOLDER PORT
"""

from __future__ import annotations

import hashlib
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, quote, unquote, urlsplit
from xml.sax.saxutils import escape, unescape

ROOT = Path(__file__).resolve().parents[1]
ENVIRONMENT = {
    "AWS_ALLOW_HTTP": "true",
    "AWS_ACCESS_KEY_ID": "key",
    "AWS_SECRET_ACCESS_KEY": "secret",
    "AWS_REGION": "us-east-1",
    "NO_PROXY": "127.0.0.1",
}

_REFUSAL = ".refusal"


class ObjectServer:
    """A context manager: the server in a process of its own. `variables`: the environment that its clients need."""

    url = "s3://bucket/fleet"

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = free.getsockname()[1]
        self.variables = {
            **ENVIRONMENT,
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self._port}",
            "NO_PROXY": "127.0.0.1",
        }

    def __enter__(self) -> ObjectServer:
        self._start()
        return self

    def __exit__(self, *error: object) -> None:
        self._process.kill()
        self._process.wait()

    def kill(self, for_s: float) -> None:
        """Kill it, and start it again after so many seconds."""
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        time.sleep(for_s)
        self._start()

    def refuse(self, status: int, code: str) -> None:
        """Have it answer each request with this error of S3."""
        (self._folder / _REFUSAL).write_text(f"{status} {code}")

    def accept(self) -> None:
        (self._folder / _REFUSAL).unlink(missing_ok=True)

    def _start(self) -> None:
        words = [sys.executable, "-m", "benchmarks.object_server", str(self._folder), str(self._port)]
        self._process = subprocess.Popen(words, cwd=ROOT)
        while self._process.poll() is None:
            try:
                socket.create_connection(("127.0.0.1", self._port), 1).close()
            except OSError:
                time.sleep(0.02)
            else:
                return
        raise RuntimeError("the object server did not start")


class _Objects:
    """Objects in files that have their quoted names, and the parts of uploads that are not complete."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.parts: dict[str, dict[int, bytes]] = {}
        self.lock = threading.Lock()
        folder.mkdir(parents=True, exist_ok=True)

    def file(self, name: str) -> Path:
        return self.folder / quote(name, safe="")

    def names(self, prefix: str) -> list[str]:
        found = (unquote(path.name) for path in self.folder.iterdir() if not path.name.startswith("."))
        return sorted(name for name in found if name.startswith(prefix))

    def put(self, name: str, data: bytes, *, new: bool) -> bool:
        """False if it must be new and is not."""
        handle, temporary = tempfile.mkstemp(prefix=".", dir=self.folder)
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        try:
            if new:
                os.link(temporary, self.file(name))
            else:
                Path(temporary).replace(self.file(name))
        except FileExistsError:
            return False
        finally:
            Path(temporary).unlink(missing_ok=True)
        return True


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    objects: _Objects

    def parse_request(self) -> bool:
        """Also refuses what is to be refused."""
        if not super().parse_request():
            return False
        try:
            status, code = (self.objects.folder / _REFUSAL).read_text().split()
        except FileNotFoundError:
            return True
        self._body()
        self._refuse(int(status), code)
        return False

    def do_PUT(self) -> None:
        name, asked, data = self._name(), self._query(), self._body()
        if "partNumber" in asked:
            with self.objects.lock:
                self.objects.parts.setdefault(asked["uploadId"], {})[int(asked["partNumber"])] = data
            self._answer(200, headers={"ETag": _etag(data)})
        elif self.objects.put(name, data, new=self.headers.get("If-None-Match") == "*"):
            self._answer(200, headers={"ETag": _etag(data)})
        else:
            self._refuse(412, "PreconditionFailed")

    def do_POST(self) -> None:
        name, asked, data = self._name(), self._query(), self._body()
        if "delete" in asked:
            keys = re.findall(r"<Key>([^<]*)</Key>", data.decode())
            for key in keys:
                self.objects.file(unescape(key)).unlink(missing_ok=True)
            deleted = "".join(f"<Deleted><Key>{key}</Key></Deleted>" for key in keys)
            self._xml(f"<DeleteResult>{deleted}</DeleteResult>")
            return
        if "uploads" in asked:
            upload = os.urandom(8).hex()
            self._xml(f"<InitiateMultipartUploadResult><UploadId>{upload}</UploadId></InitiateMultipartUploadResult>")
            return
        with self.objects.lock:
            parts = self.objects.parts.pop(asked["uploadId"], None)
        if parts is None:  # it began before a restart
            self._refuse(404, "NoSuchUpload")
            return
        data = b"".join(parts[number] for number in sorted(parts))
        self.objects.put(name, data, new=False)
        self._xml(f"<CompleteMultipartUploadResult><ETag>{_etag(data)}</ETag></CompleteMultipartUploadResult>")

    def do_GET(self) -> None:
        asked = self._query()
        if "list-type" in asked:
            self._list(asked.get("prefix", ""), asked.get("delimiter", ""))
            return
        file = self.objects.file(self._name())
        try:
            data, changed = file.read_bytes(), file.stat().st_mtime
        except FileNotFoundError:
            self._refuse(404, "NoSuchKey")
            return
        whole, status, headers = len(data), 200, {"ETag": _etag(data), "Last-Modified": _http_time(changed)}
        if (given := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))) is not None:
            start, end = int(given[1]), min(int(given[2] or whole), whole - 1)
            if start >= whole:
                self._refuse(416, "InvalidRange")
                return
            data, status = data[start : end + 1], 206
            headers["Content-Range"] = f"bytes {start}-{end}/{whole}"
        self._answer(status, data, headers)

    do_HEAD = do_GET

    def do_DELETE(self) -> None:
        self.objects.file(self._name()).unlink(missing_ok=True)
        self._answer(204)

    def _list(self, prefix: str, delimiter: str) -> None:
        shown, folders = [], set()
        for name in self.objects.names(prefix):
            rest = name.removeprefix(prefix)
            if delimiter and delimiter in rest:
                folders.add(prefix + rest.partition(delimiter)[0] + delimiter)
                continue
            try:
                found = self.objects.file(name).stat()
            except FileNotFoundError:
                continue
            when = datetime.fromtimestamp(found.st_mtime, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
            shown.append(
                f"<Contents><Key>{escape(name)}</Key><LastModified>{when}</LastModified><ETag>&quot;0&quot;</ETag>"
                f"<Size>{found.st_size}</Size></Contents>"
            )
        common = [f"<CommonPrefixes><Prefix>{escape(one)}</Prefix></CommonPrefixes>" for one in sorted(folders)]
        self._xml(
            "<ListBucketResult><IsTruncated>false</IsTruncated>" + "".join([*shown, *common]) + "</ListBucketResult>"
        )

    def _name(self) -> str:
        return unquote(urlsplit(self.path).path).lstrip("/").partition("/")[2]

    def _query(self) -> dict[str, str]:
        return {name: values[0] for name, values in parse_qs(urlsplit(self.path).query, True).items()}

    def _body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def _xml(self, text: str) -> None:
        self._answer(200, f'<?xml version="1.0" encoding="UTF-8"?>{text}'.encode())

    def _refuse(self, status: int, code: str) -> None:
        self._answer(status, f"<Error><Code>{code}</Code></Error>".encode())

    def _answer(self, status: int, data: bytes = b"", headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 64

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that was killed is no error."""


def _etag(data: bytes) -> str:
    return f'"{hashlib.md5(data, usedforsecurity=False).hexdigest()}"'


def _http_time(seconds: float) -> str:
    return time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(seconds))


if __name__ == "__main__":
    _Handler.objects = _Objects(Path(sys.argv[1]))
    _Server(("127.0.0.1", int(sys.argv[2])), _Handler).serve_forever()
