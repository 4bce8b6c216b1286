"""Run another program to its end, and return its exit status and what it printed."""

from __future__ import annotations

import asyncio


async def run_program(program: str, *words: str) -> tuple[int, str]:
    """Return the exit status, and standard output and error together. The program is killed if the caller is
    cancelled. Raises OSError if it cannot be started."""
    process = await asyncio.create_subprocess_exec(
        program,
        *words,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        printed, _ = await process.communicate()
    except BaseException:
        process.kill()
        await process.wait()
        raise
    assert process.returncode is not None  # it has ended
    return process.returncode, printed.decode(errors="replace").strip()
