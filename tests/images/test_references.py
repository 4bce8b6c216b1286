from __future__ import annotations

import pytest

from ramify.images.errors import BadReference
from ramify.images.references import ImageReference

DIGEST = "sha256:" + "a" * 64


@pytest.mark.parametrize(
    ("text", "full"),
    [
        ("python", "docker.io/library/python:latest"),
        ("docker:27", "docker.io/library/docker:27"),
        ("docker:app:27.1", "docker:app:27.1"),
        ("docker-daemon:app:1", "docker:app:1"),
        ("podman:localhost/app", "podman:localhost/app"),
        ("me/app:1.2", "docker.io/me/app:1.2"),
        ("localhost:5000/a/b:c", "localhost:5000/a/b:c"),
        ("localhost/a", "localhost/a:latest"),
        (f"ghcr.io/a/b@{DIGEST}", f"ghcr.io/a/b@{DIGEST}"),
        (f"ghcr.io/a/b:1@{DIGEST}", f"ghcr.io/a/b:1@{DIGEST}"),
        ("[::1]:5000/a:b", "[::1]:5000/a:b"),
        ("oci:/x/y:tag", "oci:/x/y:tag"),
        ("oci-archive:/x/y.tar", "oci:/x/y.tar"),
        ("docker-archive:/x:1/y.tar", "docker-archive:/x:1/y.tar"),
    ],
)
def test_references_in_full(text: str, full: str) -> None:
    assert str(ImageReference.parse(text)) == full
    assert str(ImageReference.parse(full)) == full


@pytest.mark.parametrize(
    "text",
    ["", "A/B", "a b", "a:", "a@sha256:12", "../x", "a//b", "-x", "oci:", "docker:--help", "a:t/../x", "x" * 600,
     "http://host/a", "a\n", "host:99999999/a", "a@" + "md5:" + "1" * 32],
)  # fmt: skip
def test_what_names_no_image(text: str) -> None:
    with pytest.raises(BadReference, match="names no image"):
        ImageReference.parse(text)
