"""An app for a real server: its request handlers run workflows over worlds, many at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from ramify import Runtime, Sandbox, SyncSandbox, fork, step, workflow


@step
async def write(sandbox: Sandbox, name: str, text: str) -> str:
    await sandbox.run(f"echo {text} > {name}", check=True)
    return (await sandbox.run(["cat", name], check=True)).stdout.strip()


@step
def read(sandbox: SyncSandbox, name: str) -> str:
    return sandbox.run(["cat", name], check=True).stdout.strip()


@step
async def append(sandbox: Sandbox, text: str) -> str:
    return (await sandbox.run(f"echo {text} >> a; tail -n 1 a", check=True)).stdout.strip()


@workflow
async def greet(name: str) -> list[str]:
    said = [await write("a", name)]
    async with fork([f"{name}x", f"{name}y"]) as branches:
        said += [outcome.value for outcome in await branches.map(append)]
    return [*said, await read("a")]


@asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[None]:
    async with Runtime() as runtime:
        app.state.runtime = runtime
        yield


async def run(request: Request) -> JSONResponse:
    result = await request.app.state.runtime.run(greet, request.path_params["name"])
    return JSONResponse({"result": result, "loop": type(asyncio.get_running_loop()).__module__})


async def run_beside(request: Request) -> JSONResponse:
    """In a thread, on a loop and a Runtime of its own, as a handler that is not async does."""
    result = await asyncio.to_thread(greet.invoke, request.path_params["name"])
    return JSONResponse({"result": result})


app = Starlette(
    routes=[Route("/run/{name}", run), Route("/beside/{name}", run_beside)],
    lifespan=lifespan,
)
