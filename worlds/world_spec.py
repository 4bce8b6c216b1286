"""How a world looks from inside: the specification that a sandbox backend gets."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ramify.fork_engine.types import Snapshot
from ramify.sandboxes.contract import Limits, WorldSpec

if TYPE_CHECKING:
    from ramify.sandboxes.egress.settings import Egress

DEFAULT_MOUNT, IMAGE_MOUNT = Path("/tmp/workspace"), Path("/workspace")
"""Where the tree of a world stands inside, if it is made from no folder: over this machine's root, where only some
places can have new folders, and over an image."""


def own_variables(spec: WorldSpec) -> dict[str, str]:
    """The variables of a world that `env=` gave."""
    usual = world_spec(spec.mount_at, image=spec.image).env
    return {name: value for name, value in spec.env.items() if usual.get(name) != value}


def started_in(spec: WorldSpec, state: Snapshot) -> WorldSpec:
    """The specification of a world over an image: the image's variables go before the usual ones, and single commands
    start where its shell does (WORKDIR), unless that is in the tree."""
    if state.image is None:
        return spec
    env = {name: value for name, value in spec.env.items() if state.env.get(name, value) == value}
    return replace(spec, env=env, workdir=state.cwd if state.cwd.startswith("/") else "")


def world_spec(
    mount_at: Path,
    *,
    env: Mapping[str, str] | None = None,
    secrets: Mapping[str, str] | None = None,
    image: Path | None = None,
    network: bool = False,
    egress: Egress | None = None,
    limits: Limits | None = None,
    visible: Sequence[Path] = (),
    dumpable: bool = False,
) -> WorldSpec:
    """How a world looks from inside. Without an image it has this machine's programs, with this process's Python
    first in PATH; over an image, the image's."""
    shown = {*visible}
    if image is None:
        here = Path(sys.executable).parent
        path = os.pathsep.join([str(here), os.environ.get("PATH", "/usr/local/bin:/usr/bin:/bin")])
        shown |= {Path(sys.prefix), Path(sys.base_prefix), Path(sys.executable).resolve().parent.parent}
    else:
        path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    lang = os.environ.get("LANG", "C.UTF-8")
    start = {"PATH": path, "LANG": lang, "TERM": "dumb", "PYTHONDONTWRITEBYTECODE": "1"}
    return WorldSpec(
        mount_at=mount_at,
        env=start | dict(env or {}),
        secrets=dict(secrets or {}),
        visible=tuple(sorted(shown)),
        image=image,
        network=network,
        egress=egress,
        limits=limits or Limits(),
        dumpable=dumpable,
    )
