"""What an allow-list allows, and which entries are refused.

Credentials: what can be one, where it goes, and that its value is shown nowhere.
"""

from __future__ import annotations

import pytest

from ramify.sandboxes.egress.errors import BadCredential, BadEntry, Refused
from ramify.sandboxes.egress.hosts import read_target
from ramify.sandboxes.egress.settings import PORT, Credentials, Egress, EgressPolicy, Header


def allows(entries: list[str], target: str) -> bool:
    return EgressPolicy.parse(entries).allows(read_target(target))


@pytest.mark.parametrize(
    ("entry", "target", "allowed"),
    [
        ("pypi.org", "pypi.org:443", True),
        ("pypi.org", "PyPI.org.:80", True),
        ("pypi.org", "pypi.org:22", False),
        ("pypi.org", "files.pypi.org:443", False),
        ("pypi.org", "notpypi.org:443", False),
        ("pypi.org", "pypi.org.evil.test:443", False),
        ("pypi.org:8443", "pypi.org:8443", True),
        ("pypi.org:8443", "pypi.org:443", False),
        ("pypi.org:*", "pypi.org:22", True),
        ("*.github.com", "api.github.com:443", True),
        ("*.github.com", "a.b.github.com:443", True),
        ("*.github.com", "github.com:443", False),
        ("*.github.com", "evilgithub.com:443", False),
        ("*:443", "anything.example:443", True),
        ("*:443", "anything.example:80", False),
        ("*:443", "127.0.0.1:443", False),  # '*' is every name
        ("*:443", "[::1]:443", False),
        ("127.0.0.1:8000", "127.0.0.1:8000", True),
        ("127.0.0.1:8000", "[::ffff:127.0.0.1]:8000", True),
        ("localhost:8000", "127.0.0.1:8000", True),
        ("127.0.0.1:8000", "127.0.0.2:8000", False),
        ("127.0.0.1:8000", "localhost.evil.test:8000", False),
        ("[::1]:8000", "[::1]:8000", True),
        ("[::1]:8000", "[0:0:0:0:0:0:0:1]:8000", True),
        ("10.0.0.0/8:5432", "10.9.8.7:5432", True),
        ("10.0.0.0/8:5432", "11.9.8.7:5432", False),
        ("[fd00::/8]:443", "[fd00::7]:443", True),
        ("bücher.example", "xn--bcher-kva.example:443", True),
    ],
)
def test_entry(entry: str, target: str, allowed: bool) -> None:
    assert allows([entry], target) is allowed


def test_empty_list_allows_nothing() -> None:
    assert not allows([], "pypi.org:443")
    assert not allows([], "127.0.0.1:80")


@pytest.mark.parametrize(
    "entry",
    [
        *("", "https://pypi.org", "pypi.org/simple", "pypi.org:", "pypi.org:0", "pypi.org:65536", "pypi.org:٣"),
        *("py pi.org", "a..b", "-a.org", "*pypi.org", "a.*.org", "*.*.org", "*.127.0.0.1", "127.1", "0x7f.0.0.1"),
        *(
            "2130706433",
            "10.0.0.1/8",
            "10.0.0.0/33",
            "fe80::1%eth0",
            "a" * 254,
            "user@pypi.org",
            "[::1",
        ),
        "pypi.org:443:80",
    ],
)
def test_bad_entry_is_named(entry: str) -> None:
    with pytest.raises(BadEntry) as refused:
        EgressPolicy.parse(["good.example", entry])
    assert refused.value.entry == entry
    assert repr(entry[:50])[1:-1] in str(refused.value)


def test_one_text_is_no_list() -> None:
    with pytest.raises(BadEntry, match="a list of entries"):
        EgressPolicy.parse("pypi.org")


@pytest.mark.parametrize(
    "text",
    [
        *(
            "127.1:80",
            "0x7f000001:80",
            "2130706433:80",
            "0177.0.0.1:80",
            "1.2.3.4.5:80",
            "::1:80",
            "a b:80",
            "a:b:80",
        ),
        *("[fe80::1%25lo]:80", "host", "host:", "host:-1", "host:80 ", "h\0st:80", "user@host:80", "host/:80", ":80"),
    ],
)
def test_targets_that_can_be_read_in_two_ways_are_refused(text: str) -> None:
    with pytest.raises(Refused):
        read_target(text)


def test_ports_of_the_host_that_are_named_one_by_one() -> None:
    policy = EgressPolicy.parse(["127.0.0.1:8000", "localhost:9000", "127.0.0.1", "10.0.0.1:7", "127.0.0.0/8:6"])
    assert policy.local_ports == {8000, 9000}


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
