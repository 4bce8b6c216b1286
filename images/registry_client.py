"""Requests to a registry (OCI distribution-spec 1.1): logins, redirects, stalls. `registry.py` pulls with it.

A login goes to the registry itself and to the token server that it names, over TLS or on this machine only. Redirects
are followed without it. Logins are read from the files that docker and podman keep. Their values are never logged and
never in an error.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import ipaddress
import json
import os
import re
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx

from ramify import paths
from ramify.images import documents
from ramify.images.errors import (
    BadReference,
    ImageNotFound,
    LoginRefused,
    RegistryError,
    RegistryStalled,
    RegistryUnreachable,
    TooLarge,
)
from ramify.images.references import DEFAULT_REGISTRY, ImageReference

_DOCKER_HUB = ("https://index.docker.io/v1/", "index.docker.io", "docker.io", "registry-1.docker.io")


@dataclass(frozen=True, slots=True)
class Login:
    user: str
    password: str = field(repr=False)

    @property
    def basic(self) -> str:
        """The value of an Authorization header."""
        return "Basic " + base64.b64encode(f"{self.user}:{self.password}".encode()).decode()


def login_for(registry: str) -> Login | None:
    """The login that `docker login` or `podman login` stored for a registry, in `auths`. None if there is none;
    credential helpers are not asked."""
    names = _DOCKER_HUB if registry == DEFAULT_REGISTRY else (registry, f"https://{registry}", f"http://{registry}")
    for path in _login_files():
        try:
            auths = json.loads(path.read_text()).get("auths")
        except (OSError, ValueError, AttributeError):
            continue  # a file that the engine itself could not read either
        for name in names:
            entry = auths.get(name) if isinstance(auths, dict) else None
            if isinstance(entry, dict) and (login := _decoded(entry.get("auth"))) is not None:
                return login
    return None


def _login_files() -> Iterator[Path]:
    home = Path(os.environ.get("HOME") or paths.of_user() or "/")
    yield Path(os.environ.get("DOCKER_CONFIG") or home / ".docker") / "config.json"
    if runtime := os.environ.get("XDG_RUNTIME_DIR"):
        yield Path(runtime) / "containers/auth.json"
    yield Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config") / "containers/auth.json"


def _decoded(auth: object) -> Login | None:
    if not isinstance(auth, str) or not auth:
        return None
    try:
        user, colon, password = base64.b64decode(auth, validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError):
        return None
    return Login(user, password.rstrip("\0")) if colon else None


DOCKER_HUB = "registry-1.docker.io"
CONNECT_S, STALL_S = 10.0, 30.0
"""Seconds that a connection may take, and in which a registry must send something."""

SLOWEST = 1024
"""Bytes a second, over each `STALL_S`, below which a download counts as stalled."""

_REDIRECTS = 5
_CHALLENGE = re.compile(r'([a-zA-Z_]+)="([^"]*)"')


class RegistryClient:
    """An async context manager: requests for one repository. `clock`: monotonic seconds."""

    def __init__(
        self, reference: ImageReference, login: Login | None, *, clock: Callable[[], float], stall_s: float = STALL_S
    ) -> None:
        self.what, self._login, self._clock, self._stall_s = str(reference), login, clock, stall_s
        host = DOCKER_HUB if reference.registry == DEFAULT_REGISTRY else reference.registry
        try:
            self._base = _address(f"{'http' if on_this_machine(host) else 'https'}://{host}")
        except httpx.InvalidURL:
            raise BadReference(
                f"{reference}: {host!r} is not the address of a registry. Write HOST/NAME or HOST:PORT/NAME"
            ) from None
        self._path, self._scope = f"/v2/{reference.repository}", f"repository:{reference.repository}:pull"
        self._authorization = ""
        self._http = httpx.AsyncClient(
            timeout=httpx.Timeout(stall_s, connect=min(CONNECT_S, stall_s)),
            limits=httpx.Limits(max_connections=16),
            headers={"User-Agent": "ramify"},
        )

    async def __aenter__(self) -> Self:
        await self._http.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._http.__aexit__(kind, error, trace)

    async def document(self, path: str, most: int = documents.MAX_DOCUMENT) -> bytes:
        """The bytes of a manifest or configuration. Raises `TooLarge` after `most` bytes, and `RegistryError`."""
        async with self.opened(path, {"Accept": ", ".join(documents.ACCEPTED)}) as response:
            return await self._small(response, most)

    @asynccontextmanager
    async def opened(self, path: str, headers: Mapping[str, str] | None = None) -> AsyncIterator[httpx.Response]:
        """The answer to a GET of `/v2/REPOSITORY/path`, with its body unread. Raises `RegistryError`."""
        with self._explained():
            response = await self._answer(self._base.copy_with(path=f"{self._path}/{path}"), dict(headers or {}))
            try:
                if response.status_code == 404:
                    raise ImageNotFound(f"{self.what}: the registry does not have it. Check its name and its tag")
                if response.status_code not in (200, 206, 416):
                    raise self._refused(response)
                yield response
            finally:
                await response.aclose()

    async def chunks(self, response: httpx.Response) -> AsyncIterator[bytes]:
        """The body. Raises `RegistryStalled` if it comes too slowly."""
        began, read = self._clock(), 0
        async for chunk in response.aiter_raw():
            read += len(chunk)
            passed = self._clock() - began
            if passed > self._stall_s:
                if read < SLOWEST * passed:
                    raise self._stalled()
                began, read = self._clock(), 0
            yield chunk

    async def _answer(self, url: httpx.URL, headers: dict[str, str]) -> httpx.Response:
        """The answer after logins and redirects."""
        asked_login = False
        for _ in range(_REDIRECTS + 2):
            home = _origin(url) == _origin(self._base)
            given = {**headers, **({"Authorization": self._authorization} if home and self._authorization else {})}
            response = await self._sent(self._http.build_request("GET", url, headers=given))
            if response.status_code == 401 and home:
                await response.aclose()
                if asked_login:
                    raise self._login_refused()
                asked_login = True
                self._authorization = await self._log_in(response.headers.get("WWW-Authenticate", ""))
            elif response.is_redirect and "Location" in response.headers:
                await response.aclose()
                url = self._redirected(url, response.headers["Location"])
            else:
                return response
        raise RegistryError(f"{self.what}: the registry redirects more than {_REDIRECTS} times. Ask its operator")

    async def _sent(self, request: httpx.Request) -> httpx.Response:
        """The answer, with its body unread. Raises `RegistryStalled`, also if the headers drip for ever: the client's
        own limit is for each of its reads."""
        try:
            async with asyncio.timeout(self._stall_s + CONNECT_S):
                return await self._http.send(request, stream=True)
        except TimeoutError:
            raise self._stalled() from None
        except UnicodeError:  # httpx looks at a redirect before it returns it
            raise httpx.InvalidURL("an invalid host") from None

    def _redirected(self, url: httpx.URL, location: str) -> httpx.URL:
        to = _address(location, url)
        if to.scheme not in ("http", "https") or (to.scheme == "http" and not on_this_machine(to.netloc.decode())):
            raise RegistryError(
                f"{self.what}: the registry redirects to {to.scheme}://{to.host}, which is not over TLS. Ask its "
                "operator"
            )
        if leads_to_this_machine(to.host) and not on_this_machine(url.netloc.decode()):
            raise RegistryError(f"{self.what}: the registry redirects into this machine, to {to.host}. It is hostile")
        return to

    async def _log_in(self, challenge: str) -> str:
        """The Authorization header that a challenge asks for. Raises `LoginRefused`."""
        scheme, _, rest = challenge.partition(" ")
        said = dict(_CHALLENGE.findall(rest))
        if scheme.lower() == "basic":
            if self._login is None:
                raise self._login_refused()
            return self._login.basic
        if scheme.lower() != "bearer" or "realm" not in said:
            raise LoginRefused(f"{self.what}: the registry asks for a login of an unknown kind")
        realm = _address(said["realm"])
        local = on_this_machine(realm.netloc.decode()) and on_this_machine(self._base.netloc.decode())
        if realm.scheme != "https" and not (realm.scheme == "http" and local):
            raise LoginRefused(
                f"{self.what}: its token server, {realm.host}, is not reached over TLS: no login is sent"
            )
        query = {
            "scope": said.get("scope", self._scope),
            **({"service": said["service"]} if "service" in said else {}),
        }
        headers = {} if self._login is None else {"Authorization": self._login.basic}
        request = self._http.build_request("GET", realm.copy_merge_params(query), headers=headers)
        response = await self._sent(request)
        try:
            if response.status_code != 200:
                raise self._login_refused()
            answer = documents.parse(await self._small(response, 1 << 20), f"{self.what}: the token server's answer")
        finally:
            await response.aclose()
        token = answer.get("token") or answer.get("access_token")
        if not isinstance(token, str) or not re.fullmatch(r"[!-~]+", token):
            raise self._login_refused()
        return f"Bearer {token}"

    async def _small(self, response: httpx.Response, most: int) -> bytes:
        data = bytearray()
        async for chunk in self.chunks(response):
            data += chunk
            if len(data) > most:
                raise TooLarge(f"{self.what}: a document of more than {most} bytes, which no image has")
        return bytes(data)

    def _explained(self) -> _Explained:
        return _Explained(self)

    def _refused(self, response: httpx.Response) -> RegistryError:
        wait = " It limits how often it is asked: log in, or wait." if response.status_code == 429 else ""
        return RegistryError(f"{self.what}: the registry answered {response.status_code}.{wait} Try again later")

    def _login_refused(self) -> LoginRefused:
        had = "refuses the stored login" if self._login is not None else "wants a login, or has no such image"
        return LoginRefused(
            f"{self.what}: the registry {had}. `docker login` or `podman login` stores one (in auths; credential "
            "helpers are not asked)"
        )

    def _stalled(self) -> RegistryStalled:
        return RegistryStalled(
            f"{self.what}: the registry stalls, for {self._stall_s:g} s. Pull again: it goes on there"
        )


class _Explained:
    """Turns httpx's errors into ours."""

    def __init__(self, client: RegistryClient) -> None:
        self._client = client

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        what = self._client.what
        if isinstance(error, httpx.ConnectTimeout | httpx.ReadTimeout | httpx.WriteTimeout | httpx.PoolTimeout):
            raise self._client._stalled() from None
        if isinstance(error, httpx.HTTPError):
            raise RegistryUnreachable(
                f"{what}: no answer from {self._client._base.host} ({type(error).__name__}). Check the name and the "
                "network"
            ) from None
        if isinstance(error, httpx.InvalidURL):
            raise RegistryError(f"{what}: the registry names an invalid address. Ask its operator") from None


def on_this_machine(host: str) -> bool:
    """Whether a host, with or without a port, is this machine's loopback: only there plain HTTP is spoken."""
    bracketed = re.fullmatch(r"\[(.*)\](:[0-9]+)?", host)
    name = bracketed[1] if bracketed else host.partition(":")[0] if host.count(":") == 1 else host
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def leads_to_this_machine(host: str) -> bool:
    """Whether a host is this machine, or its cloud's metadata service, in any spelling that a resolver takes."""
    name = host.rstrip(".").lower()
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        address: ipaddress.IPv4Address | ipaddress.IPv6Address = ipaddress.IPv4Address(socket.inet_aton(name))
    except OSError:  # not 127.0.0.1, 127.1, 2130706433 or 0x7f.1
        try:
            six = ipaddress.IPv6Address(name.strip("[]").partition("%")[0])
        except ValueError:
            return False
        address = six.ipv4_mapped or six
    return address.is_loopback or address.is_unspecified or address.is_link_local


def _address(text: str, base: httpx.URL | None = None) -> httpx.URL:
    """An address, relative to `base` if there is one. Raises `httpx.InvalidURL`, also for a host or a port that none
    can have."""
    try:
        url = httpx.URL(text) if base is None else base.join(text)
        if url.host and 0 < (url.port or 443) < 1 << 16:
            return url
    except ValueError:  # of IDNA
        pass
    raise httpx.InvalidURL("no host, or no such port")


def _origin(url: httpx.URL) -> tuple[str, str, int | None]:
    return url.scheme, url.host, url.port
