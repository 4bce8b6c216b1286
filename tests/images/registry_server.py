"""A registry in a thread, which can lie, cut, stall, redirect and ask for logins."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from ramify.images import documents
from tests.images.image_builder import BuiltImage, sha


@dataclass
class Registry:
    """What it serves, by path, and how it misbehaves. `requests`: (path, headers) of each."""

    content: dict[str, bytes] = field(default_factory=dict)
    before: Callable[[Handler], bool] | None = None  # returns True if it answered
    requests: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    address: str = ""

    def add(self, image: BuiltImage, repository: str = "a", tag: str = "1") -> str:
        for data in image.documents:
            self.content[f"/v2/{repository}/blobs/{sha(data)}"] = data
        for at in (tag, sha(image.manifest)):
            self.content[f"/v2/{repository}/manifests/{at}"] = image.manifest
        return f"{self.address}/{repository}:{tag}"

    def paths(self, part: str) -> list[str]:
        return [path for path, _ in self.requests if part in path]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    registry: Registry

    def do_GET(self) -> None:
        self.registry.requests.append((self.path, dict(self.headers)))
        if self.registry.before is not None and self.registry.before(self):
            return
        data = self.registry.content.get(self.path.partition("?")[0])
        if data is None:
            self.answer(404, b"")
            return
        begin = int(self.headers.get("Range", "bytes=0-")[6:-1])
        more = {"Content-Range": f"bytes {begin}-{len(data) - 1}/{len(data)}"} if "Range" in self.headers else {}
        self.answer(206 if more else 200, data[begin:], **more)

    def answer(self, status: int, data: bytes, *, claim: int | None = None, **headers: str) -> None:
        """`claim`: the length that is said, if not the truth: the connection is cut after `data`."""
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Type", documents.OCI_MANIFEST)
        self.send_header("Content-Length", str(len(data) if claim is None else claim))
        self.end_headers()
        self.wfile.write(data)
        if claim is not None:
            self.wfile.flush()
            self.close_connection = True

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def serving(host: str = "127.0.0.1") -> Iterator[Registry]:
    registry = Registry()
    server = ThreadingHTTPServer((host, 0), type("Bound", (Handler,), {"registry": registry}))
    server.daemon_threads = True
    registry.address = f"{host}:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield registry
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def token_server(registry: Registry, header: str, token: str = "secret-token") -> Callable[[Handler], bool]:
    """Ask for a token, which is given to whoever sends `header` ("" for anybody)."""

    def answered(handler: Handler) -> bool:
        if handler.path.startswith("/token"):
            ok = handler.headers.get("Authorization", "") == header
            handler.answer(200 if ok else 401, json.dumps({"token": token}).encode())
            return True
        if handler.headers.get("Authorization") == f"Bearer {token}":
            return False
        challenge = f'Bearer realm="http://{registry.address}/token",service="s"'
        handler.answer(401, b"", WWW_Authenticate=challenge)
        return True

    return answered
