"""`ramify image`: pull, list, show and forget the OCI images of a home."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ramify import paths
from ramify.cli.console import pass_home, redraw, run_async, say, say_all, say_json
from ramify.inspect.home import Home
from ramify.inspect.text import age, table

if TYPE_CHECKING:
    from ramify.images.catalogue import Catalogue, Image
    from ramify.images.sources import LayerBlob

_DIGITS = 12


@click.group("image")
def image_group() -> None:
    """OCI images for worlds.

    An IMAGE is a name in a registry (`python:3.12`, `localhost:5000/task@sha256:…`), an OCI layout or an archive of
    `docker save` (a path, `oci:PATH`, `docker-archive:PATH`), or an image of an engine on this machine
    (`docker:NAME`, `podman:NAME`).

    \b
    Example:
      ramify image pull python:3.12-slim
      ramify world new --image python:3.12-slim --name one
    """


@image_group.command("pull")
@click.argument("names", metavar="IMAGE...", nargs=-1, required=True)
@click.option("--quiet", is_flag=True, help="Print no progress.")
@pass_home
def pull_command(home: Home, names: tuple[str, ...], quiet: bool) -> None:
    """Fetch images, and print their ids.

    Layers that are here are not fetched again.

    \b
    Example: ramify image pull python:3.12-slim
    """
    from ramify.worlds.home import WorldHome

    async def act() -> None:
        async with WorldHome(home.folder) as opened:
            for name in names:
                shown = _Progress(name, off=quiet or not sys.stderr.isatty())
                try:
                    image = await opened.images.pull(name, progress=shown.note)
                finally:
                    shown.end()
                say(image.id)

    run_async(act())


@image_group.command("build")
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--name", required=True, help="The image's name, such as task:1.")
@click.option(
    "--file",
    "dockerfile",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The Dockerfile.  [default: the one in FOLDER]",
)
@pass_home
def build_command(home: Home, folder: Path, name: str, dockerfile: Path | None) -> None:
    """Build the Dockerfile of FOLDER, and print the image's id.

    Needs buildah: apt-get install buildah.

    \b
    Example: ramify image build --name task:1 folder
    """
    from ramify.worlds.home import WorldHome

    async def act() -> str:
        async with WorldHome(home.folder) as opened:
            return (await opened.images.build(folder, name, dockerfile=dockerfile)).id

    say(run_async(act()))


@image_group.command("ls")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list of objects.")
@pass_home
def ls_command(home: Home, as_json: bool) -> None:
    """List the images, newest first.

    SIZE counts each layer fully, even if other images share it.

    \b
    Example: ramify image ls
    """
    found = _catalogue(home).all()
    if as_json:
        say_json([_shown(image) for image in found])
        return
    if not found:
        say(f"no images yet in {home.folder}")
        return
    now = home.clock()
    rows = [
        (name, image.id[7:][:_DIGITS], age(now - image.created_at), str(len(image.layers)), _size(image))
        for image in found
        for name in image.names or ("-",)
    ]
    say_all(table(("IMAGE", "ID", "PULLED", "LAYERS", "SIZE"), rows, right={"LAYERS", "SIZE"}))


@image_group.command("inspect")
@click.argument("name", metavar="IMAGE")
@pass_home
def inspect_command(home: Home, name: str) -> None:
    """Print what is known of an IMAGE as a JSON object.

    IMAGE is a name or an id. The object has its names, its snapshot, its layers, and its own settings such as ENV and
    WORKDIR.

    \b
    Example: ramify image inspect python:3.12-slim
    """
    say_json(_shown(_catalogue(home).get(name), whole=True))


@image_group.command("rm")
@click.argument("names", metavar="IMAGE...", nargs=-1, required=True)
@pass_home
def rm_command(home: Home, names: tuple[str, ...]) -> None:
    """Forget names of images, or images by their ids.

    `ramify gc` then deletes the layers that no world and no other image needs.

    \b
    Example: ramify image rm python:3.12-slim
    """
    catalogue = _catalogue(home)
    for name in names:
        catalogue.remove(name)


def _catalogue(home: Home) -> Catalogue:
    from ramify.images.catalogue import Catalogue

    return Catalogue(paths.images(Path(home.folder)))


def _shown(image: Image, *, whole: bool = False) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "id": image.id,
        "names": list(image.names),
        "snapshot": image.snapshot,
        "created_at": image.created_at,
        "bytes": sum(layer.bytes for layer in image.layers),
    }
    if not whole:
        return {**shown, "layers": len(image.layers)}
    config = image.config
    return {
        **shown,
        "platform": str(config.platform),
        "env": dict(config.env),
        "workdir": config.workdir,
        "user": config.user,
        "entrypoint": list(config.entrypoint),
        "cmd": list(config.cmd),
        "exposed": list(config.exposed),
        "layers": [{"diff_id": one.diff_id, "layer": one.layer, "bytes": one.bytes} for one in image.layers],
    }


def _size(image: Image) -> str:
    return f"{sum(layer.bytes for layer in image.layers) / 1e6:.1f} MB"


class _Progress:
    """One line on the terminal: the bytes of all layers that are here."""

    def __init__(self, name: str, *, off: bool) -> None:
        self._name, self._off, self._drawn = name, off, False
        self._here: dict[str, tuple[int, int]] = {}
        self._last = -1

    def note(self, layer: LayerBlob, here: int) -> None:
        self._here[layer.diff_id] = (here, max(layer.size, 1))
        got, of = (sum(part) for part in zip(*self._here.values(), strict=True))
        if self._off or got * 100 // of == self._last:
            return
        self._last, self._drawn = got * 100 // of, True
        redraw(f"{self._name}: {got / 1e6:.1f} of {of / 1e6:.1f} MB")

    def end(self) -> None:
        if self._drawn:
            redraw("")
