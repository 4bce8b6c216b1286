"""The MCP server, spoken to by the official client: over standard input and over HTTP."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mcp", reason="needs mcp: pip install 'ramify[mcp]'")

import httpx
from mcp import Client
from mcp.client.stdio import StdioServerParameters, stdio_client

from ramify.worlds.blocking import SyncWorld
from tests.ports import free_port

TOOLS = {
    "world_create", "world_exec", "world_read", "world_write", "world_fork", "world_snapshot", "world_restore",
    "world_diff", "world_merge", "world_log", "world_delete",
}  # fmt: skip


def text(result: Any) -> str:
    return "\n".join(block.text for block in result.content)


async def call(client: Client, tool: str, **arguments: object) -> Any:
    result = await client.call_tool(tool, arguments)
    assert not result.is_error, text(result)
    found = result.structured_content
    return found.get("result", found) if isinstance(found, dict) else text(result)


def command(home: Path, sandbox: str, repo: Path) -> list[str]:
    return ["-m", "ramify", "--home", str(home), "mcp", "--sandbox", sandbox, "--folder", str(repo)]


async def test_a_client_forks_and_merges_over_stdio(repo: Path, sandbox: str, tmp_path: Path) -> None:
    home = tmp_path / "home"
    started = StdioServerParameters(command=sys.executable, args=command(home, sandbox, repo), env=dict(os.environ))
    async with Client(stdio_client(started)) as client:
        assert {tool.name for tool in (await client.list_tools()).tools} == TOOLS
        assert await call(client, "world_create", folder=str(repo), name="main") == "main"
        told = await call(client, "world_exec", world="main", command="python3 main.py; echo err >&2; exit 3")
        assert (told["output"], told["exit_code"]) == ("hello\nerr\n", 3)
        told = await call(client, "world_exec", world="main", command="if then")
        assert "syntax error" in told["output"] and told["exit_code"] == 2
        kept = await call(client, "world_snapshot", world="main", tag="begin")
        one, two = await call(client, "world_fork", world="main", n=2)
        await call(client, "world_write", world=one, path="deep/one.txt", content="1")
        await call(client, "world_write", world=two, path="two.txt", content="2")
        assert await call(client, "world_diff", world=one) == ["added deep", "added deep/one.txt"]
        await call(client, "world_merge", world="main", other=one)
        await call(client, "world_merge", world="main", other=two)
        assert await call(client, "world_read", world="main", path="deep/one.txt") == "1"
        await call(client, "world_restore", world="main", snapshot=kept)
        refused = await client.call_tool("world_read", {"world": "main", "path": "two.txt"})
        assert refused.is_error and "no such file" in text(refused)
        away = await client.call_tool("world_create", {"folder": str(tmp_path)})
        assert away.is_error and "--folder" in text(away)
        nobody = await client.call_tool("world_exec", {"world": "nobody", "command": "true"})
        assert nobody.is_error and "world_log" in text(nobody)
        odd = await client.call_tool("world_exec", {"world": "main", "command": "echo a\0b"})
        assert odd.is_error and "NUL" in text(odd)
        await call(client, "world_delete", world=two)
    async with Client(stdio_client(started)) as client:
        log = await call(client, "world_log")
        assert {line.rpartition(" ")[0] for line in log} == {"world main", f"world {one}", "tag begin"}
        assert await call(client, "world_read", world=one, path="deep/one.txt") == "1"
    assert (repo / "main.py").read_text() == "print('hello')\n"


async def test_http_needs_the_key(repo: Path, sandbox: str, tmp_path: Path) -> None:
    port = free_port()
    environment = {**os.environ, "RAMIFY_MCP_KEY": "k3y"}
    words = [sys.executable, *command(tmp_path / "home", sandbox, repo), "--http", str(port)]
    with subprocess.Popen(words, env=environment, stderr=subprocess.PIPE) as server:  # noqa: ASYNC220
        try:
            assert server.stderr is not None and b"/mcp" in server.stderr.readline()
            address = f"http://127.0.0.1:{port}/mcp"
            await listening(port)
            async with httpx.AsyncClient() as anyone:
                for headers in ({}, {"authorization": "Bearer other"}, {"authorization": "Basic k3y"}):
                    assert (await anyone.post(address, json={}, headers=headers)).status_code == 401
                ours = {"authorization": "Bearer k3y", "origin": "http://evil.test"}
                assert (await anyone.post(address, json={}, headers=ours)).status_code == 403
            from mcp.client.streamable_http import streamable_http_client

            async with httpx.AsyncClient(headers={"authorization": "Bearer k3y"}) as known:
                async with Client(streamable_http_client(address, http_client=known)) as client:
                    name = await call(client, "world_create", folder=str(repo))
                async with Client(streamable_http_client(address, http_client=known)) as client:
                    told = await call(client, "world_exec", world=name, command="ls; echo late > late")
                    assert told["output"] == "main.py\n"
        finally:
            server.terminate()
    assert server.returncode == 0
    with SyncWorld.open(name, home=tmp_path / "home", sandbox=sandbox) as world:
        assert world.read("late") == b"late\n", "a server that is told to end stores what its worlds changed"


def test_a_server_over_stdio_that_is_told_to_end_stores_its_worlds(repo: Path, sandbox: str, tmp_path: Path) -> None:
    words = [sys.executable, *command(tmp_path / "home", sandbox, repo)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdin is not None and server.stdout is not None
        hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "a", "version": "1"}}
        calls = [("world_create", {"name": "one"}), ("world_exec", {"world": "one", "command": "echo late > late"})]
        for number, (method, params) in enumerate(
            [("initialize", hello), *(("tools/call", {"name": name, "arguments": given}) for name, given in calls)]
        ):
            request = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
            server.stdin.write(json.dumps(request) + "\n")
            server.stdin.flush()
            assert "result" in json.loads(server.stdout.readline())
        server.terminate()
        assert server.wait() == 0
    with SyncWorld.open("one", home=tmp_path / "home", sandbox=sandbox) as world:
        assert world.read("late") == b"late\n"


async def listening(port: int) -> None:
    import asyncio

    until = time.monotonic() + 100
    while time.monotonic() < until:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.close()
            return
        except OSError:
            await asyncio.sleep(0.05)
    raise AssertionError("the server did not listen")
