"""Secrets are recognised in the forms that commands bring them into, and other texts are not taken for them."""

from __future__ import annotations

import base64

import pytest

from ramify.sandboxes.agent.secret_forms import SecretForms, environment_without, place_without

TOKEN = b"hunter2-9f31c07ae5b8"
KEY = b"-----BEGIN KEY-----\nMIIEpAIBAAKCAQEA7x\nq9Tn2LwvB81mZr0sPd\n-----END KEY-----\n"
FORMS = SecretForms([TOKEN, KEY, b"ab1"])


@pytest.mark.parametrize(
    "text",
    [
        TOKEN, TOKEN.upper(), b"x" + TOKEN[::-1], b"hunter2 - 9f31c07ae5b8", TOKEN[:10], TOKEN[-9:],
        b"'hunter2'\\''-9f31c07ae5b8'", b"$'hunter2\\0559f31c07ae5b8'", b"hunter2%2D9f31%63", b"\\u0068unter2-9f",
        b'([0]="hunt" [1]="er2-" [2]="9f31" [3]="c07a" [4]="e5b8")',
        TOKEN.hex().encode(), TOKEN.hex().upper().encode(),
        KEY.strip(), KEY.replace(b"\n", b"\\n"), b'([0]="MIIEpAIBAAKCAQEA7x" [1]="q9Tn2LwvB81mZr0sPd")',
        *(base64.b64encode(b"." * before + TOKEN + b"\n") for before in range(3)), base64.urlsafe_b64encode(KEY),
        b"x27\\u68\\u75\\u6e\\u74\\u65\\u72\\u32'-9f", b"\\u{68}unter2-9f", b"\\U00000068unter2-9f",
        b"\\0150unter2-9f",
        b" ".join(b"0x%02x" % byte for byte in TOKEN), b"".join(b"\\x%02X" % byte for byte in TOKEN),
        base64.encodebytes(KEY), base64.b32encode(b"Bearer " + TOKEN), base64.b64encode(TOKEN)[4:],
    ],
)  # fmt: skip
def test_forms_that_are_recognised(text: bytes) -> None:
    assert FORMS.are_in(b"begins " + text + b" ends")


@pytest.mark.parametrize(
    "text", [b"", b"hunter", b"yes", b"/usr/local/bin:/usr/bin", b"ab1", b"f() { echo hello; }", b"BEGIN", b"2-9f31"]
)
def test_other_texts_are_not(text: bytes) -> None:
    assert not FORMS.are_in(text)


def test_words_of_an_address_are_no_secret() -> None:
    forms = SecretForms([b"postgresql://user:password@localhost:5432/database"])
    assert not any(map(forms.are_in, (b"localhost", b"password", b"postgresql", b"database=x", b"PGPORT=5432")))
    assert forms.are_in(b"user:password@localhost")


def test_a_short_secret_is_not_found_everywhere() -> None:
    assert not SecretForms([b"a", b"", b"yes"]).are_in(b"yes, a")
    assert SecretForms([b"1234"]).are_in(b"x1234")


def test_a_secret_of_hardly_a_letter_in_quotes() -> None:
    forms = SecretForms([b"a'b\"$!{"])
    assert forms.are_in(b"alias k='echo a'\\''b\"$!{'") and forms.are_in(b'"a\'b\\"\\$\\!{"')
    assert not forms.are_in(b"a b {")


def test_letters_beyond_ascii_in_other_case() -> None:
    forms = SecretForms(["Öffnung-é42".encode()])
    assert forms.are_in("x=ÖFFNUNG-É42".encode()) and forms.are_in("öffnung é42".encode())


def test_environment_and_directory() -> None:
    secrets = {"TOKEN": "hunter2-9f31"}
    assert environment_without({"A": "x Hunter2 9F31 x", "TOKEN": "gone", "B": "1"}, secrets) == {"B": "1"}
    assert place_without("/dev/shm/hunter2-9f31", secrets) == "" and place_without("/tmp/x", secrets) == "/tmp/x"


def test_a_folder_of_the_tree_with_a_part_of_an_address_is_kept() -> None:
    secrets = {"URL": "https://x:hunter2-9f31@host/team/a-long-project"}
    assert place_without("a-long-project/src", secrets) == "a-long-project/src"
    assert place_without("/elsewhere/a-long-project", secrets) == ""
    assert place_without("x/hunter2-9f31", {"TOKEN": "hunter2-9f31"}) == ""
