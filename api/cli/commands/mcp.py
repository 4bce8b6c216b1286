"""`ramify mcp`: worlds as tools of the Model Context Protocol, over standard input and output or over HTTP."""

from __future__ import annotations

import asyncio
import os
import secrets
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ramify.cli.attach import ENDING
from ramify.cli.console import pass_home, run_async, say
from ramify.cli.trust import APART, need_own_home, trust_option
from ramify.inspect.home import Home

if TYPE_CHECKING:
    from ramify.integrations.mcp_server import WorldTools

KEY_VARIABLE = "RAMIFY_MCP_KEY"


@click.command("mcp")
@click.option(
    "--folder",
    "folders",
    multiple=True,
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="A folder from which clients may make worlds; repeatable (default: the current folder).",
)
@click.option("--http", metavar="[HOST:]PORT", help="Serve streamable HTTP at /mcp instead of standard input.")
@click.option("--sandbox", type=click.Choice(["namespaces", "docker", "copy"]), help="The backend of the worlds.")
@trust_option
@pass_home
def mcp_command(
    home: Home, folders: tuple[Path, ...], http: str | None, sandbox: str | None, trust_home: bool
) -> None:
    """Serve worlds as tools of the Model Context Protocol (MCP).

    A client makes worlds, runs commands in them, forks, restores and merges. Folders are read, never changed. Over
    HTTP a client must send a key: that of the variable RAMIFY_MCP_KEY, or the one that the command prints.

    \b
    Example:
      claude mcp add ramify -- ramify mcp --folder ~/project
      ramify mcp --http 8900
    """
    if not trust_home:
        need_own_home(home, APART)
    allowed = list(folders) or [Path.cwd()]
    address = None if http is None else _address(http)
    try:
        run_async(_serve(home.folder, sandbox, allowed, address))
    except ImportError as error:
        raise click.ClickException(str(error)) from error


def _address(http: str) -> tuple[str, int]:
    host, _, port = http.rpartition(":")
    if not port.isdecimal() or not 0 < int(port) < 65536:
        raise click.BadParameter(f"{http!r} is not [HOST:]PORT with a port from 1 to 65535", param_hint="--http")
    return host.strip("[]") or "127.0.0.1", int(port)


async def _serve(home: Path, sandbox: str | None, folders: list[Path], address: tuple[str, int] | None) -> None:
    from ramify.integrations.mcp_server import WorldTools
    from ramify.worlds.home import WorldHome

    loop, told_to_end = asyncio.get_running_loop(), asyncio.Event()
    for number in ENDING:  # a client ends its server so; what its named worlds changed is to be stored
        loop.add_signal_handler(number, told_to_end.set)
    async with WorldHome(home, sandbox) as opened, WorldTools(opened, folders) as tools:
        serving = asyncio.ensure_future(_served(tools, address))
        ending = asyncio.ensure_future(told_to_end.wait())
        try:
            await asyncio.wait([serving, ending], return_when=asyncio.FIRST_COMPLETED)
        finally:
            ending.cancel()
        if serving.done():
            serving.result()
            return
    sys.stdout.flush()
    os._exit(0)  # the thread that reads our standard input cannot be stopped


async def _served(tools: WorldTools, address: tuple[str, int] | None) -> None:
    from ramify import __version__
    from ramify.integrations.mcp_server import http_app, mcp_server

    server = mcp_server(tools, version=__version__)
    if address is None:
        await server.run_stdio_async()
        return
    host, port = address
    key = os.environ.get(KEY_VARIABLE) or secrets.token_urlsafe(24)
    shown = f"the key of {KEY_VARIABLE}" if KEY_VARIABLE in os.environ else key
    say(f"MCP at http://{host}:{port}/mcp; clients send Authorization: Bearer {shown}", err=True)
    await _serve_http(http_app(server, key, host=host, port=port), host, port)


async def _serve_http(app: Any, host: str, port: int) -> None:
    import uvicorn

    from ramify.serving.gateway.http.connections import ConnectionRoom, SlowClientProtocol

    class Server(uvicorn.Server):
        """It leaves the signals to us: its own handling ends the process before the worlds are stored."""

        @contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield

    class Protocol(SlowClientProtocol):
        room = ConnectionRoom.of_process()

    await Server(uvicorn.Config(app, host=host, port=port, http=Protocol, log_level="warning")).serve()
