"""Credentials: what can be one, where it goes, and that its value is shown nowhere."""

from __future__ import annotations

import pytest

from ramify.sandboxes.egress.errors import BadCredential, BadEntry, Refused
from ramify.sandboxes.egress.hosts import read_target
from ramify.sandboxes.egress.settings import PORT, Credentials, Egress, Header

SECRET = "Bearer sk-1234567890"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("", SECRET), ("a b", SECRET), ("a:", SECRET), ("Host", SECRET), ("content-length", "3"), ("X", "")),
        *(("X", f"{SECRET}\r\nY: 1"), ("X", f"{SECRET}\n"), ("X", f" {SECRET}"), ("X", f"{SECRET}☃"), ("X", "a\0b")),
    ],
)
def test_bad_headers_are_refused_without_their_value(name: str, value: str) -> None:
    with pytest.raises(BadCredential) as refused:
        Header(name, value)
    assert "sk-1234" not in str(refused.value)


def test_values_are_not_shown() -> None:
    egress = Egress(["api.example.org"], credentials={"api.example.org": Header("authorization", SECRET)})
    for shown in (repr(egress), str(egress), repr(egress.keys), repr(Header("a", SECRET)), str(egress.places)):
        assert "sk-1234" not in shown


def test_credential_needs_an_entry() -> None:
    with pytest.raises(BadCredential, match=r"add api\.example\.org:443"):
        Egress(["api.example.org:80"], credentials={"api.example.org": Header("a", SECRET)})


@pytest.mark.parametrize("host", ["ftp://api.example.org", "https://api.example.org/v1", "a b", "127.1"])
def test_places_that_cannot_be_read(host: str) -> None:
    with pytest.raises(BadCredential):
        Egress(["*"], credentials={host: Header("a", SECRET)})


def test_where_a_credential_goes() -> None:
    keys = Credentials.parse({"api.example.org": Header("a", "1"), "http://127.0.0.1:8000": Header("b", "2")})
    places = {text: keys.place_for(read_target(text)) for text in ("api.example.org:80", "api.example.org:443")}
    assert [str(place) for place in places.values()] == ["https://api.example.org:443"] * 2
    local = keys.place_for(read_target("127.0.0.1:8000"))
    assert local is not None
    assert not local.tls
    for other in ("api.example.org:8080", "x.api.example.org:443", "127.0.0.1:80"):
        assert keys.place_for(read_target(other)) is None


def test_missing_credentials_are_refused_by_name() -> None:
    first = Egress(["api.example.org"], credentials={"api.example.org": Header("authorization", SECRET)})
    again = Egress(first.allow).without(first.places)
    place = again.keys.place_for(read_target("api.example.org:80"))
    assert place is not None
    with pytest.raises(Refused, match="was not given when this world was opened"):
        again.keys.header_for(place)
    assert again.places == first.places
    given = Egress(first.allow, first.credentials).without(first.places)
    assert given.keys.header_for(place).value == SECRET


def test_the_brokers_own_port_cannot_stand_for_one_of_the_host() -> None:
    with pytest.raises(BadEntry, match="the broker itself"):
        Egress([f"127.0.0.1:{PORT}"])
