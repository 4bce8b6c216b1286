"""The errors of the package `ramify.images`. `ImagesError` is the root of the tree.

ImagesError
├── BadReference            what was written names no image
├── ImageNotFound           there is no such image, here or in its source
├── WrongPlatform           the image is for other machines
├── DamagedImage            a document or a layer is malformed, or refused
│   └── DigestMismatch      bytes differ from the digest that names them
├── TooLarge                more layers or bytes than allowed
├── CompressionUnsupported  a layer is compressed in a way that this Python cannot read
├── RegistryError           a registry answered in a way that cannot be used
│   ├── RegistryUnreachable no connection, or it was cut again and again
│   ├── RegistryStalled     it went on too slowly
│   └── LoginRefused        it wants a login, or refuses this one
├── EngineUnavailable       docker or podman is missing, does not run, or refuses
└── BuildFailed             buildah is missing, or the build failed
"""

from __future__ import annotations


class ImagesError(Exception):
    """The root of this package's errors."""


class BadReference(ImagesError):
    """What was written names no image."""


class ImageNotFound(ImagesError):
    """There is no such image, here or in its source."""


class WrongPlatform(ImagesError):
    """The image is for other machines."""


class DamagedImage(ImagesError):
    """A document or a layer of the image is malformed, or refused because it is hostile."""


class DigestMismatch(DamagedImage):
    """Bytes differ from the digest that names them."""


class TooLarge(ImagesError):
    """The image has more layers or bytes than `ImageLimits` allows."""


class CompressionUnsupported(ImagesError):
    """A layer is compressed in a way that this Python cannot read."""


class RegistryError(ImagesError):
    """A registry answered in a way that cannot be used."""


class RegistryUnreachable(RegistryError):
    """There is no connection to the registry, or it was cut again and again."""


class RegistryStalled(RegistryError):
    """The registry went on too slowly."""


class LoginRefused(RegistryError):
    """The registry wants a login, or refuses this one."""


class EngineUnavailable(ImagesError):
    """A container engine is missing, does not run, or refuses."""


class BuildFailed(ImagesError):
    """A Dockerfile cannot be built here, or its build failed."""
