"""What `.ci/run wheel` runs with an installed wheel: the first attempt kills its process."""

import os
import signal
from pathlib import Path

from ramify import Sandbox, step, workflow

KILLED = Path("killed")


@step
async def write(sandbox: Sandbox, name: str) -> str:
    return (await sandbox.run(f"echo hello {name} | tee greeting", check=True)).stdout.strip()


@step
async def read(sandbox: Sandbox) -> str:
    if not KILLED.exists():
        KILLED.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return (await sandbox.run("cat greeting", check=True)).stdout.strip()


@workflow
async def greet(name: str) -> str:
    await write(name)
    return await read()
