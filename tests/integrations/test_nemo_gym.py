"""NeMo Gym's sandbox API, blocking and asynchronous, over its provider `ramify`; and an agent of NeMo Gym in it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

pytest.importorskip(
    "nemo_gym.sandbox", reason="needs nemo-gym, on Python 3.12 or later: pip install 'ramify[nemo-gym]'"
)

from nemo_gym.sandbox.api import AsyncSandbox, Sandbox
from nemo_gym.sandbox.providers import SandboxCreateError, SandboxHandle, SandboxSpec, SandboxStatus
from nemo_gym.sandbox.providers.registry import get_provider_class

from ramify.integrations.nemo_gym import NOT_RUN, WorldProvider


@pytest.fixture
async def provider(sandbox: str, tmp_path: Path) -> AsyncIterator[WorldProvider]:
    made = WorldProvider(sandbox=sandbox, home=str(tmp_path / "home"))
    yield made
    await made.aclose()


@pytest.fixture
async def handle(provider: WorldProvider, repo: Path) -> SandboxHandle:
    return await provider.create(SandboxSpec(env={"WORD": "yes"}, provider_options={"folder": str(repo)}))


def test_the_example_of_its_manual(layout: Path, tmp_path: Path) -> None:
    assert get_provider_class("ramify") is WorldProvider
    spec = SandboxSpec(
        image=str(layout),
        workdir="/sandbox",
        env={"GREETING": "hello"},
        files={"/sandbox/input.txt": "some seed content"},
    )
    (tmp_path / "script.sh").write_text("echo ran > result.txt\n")
    with Sandbox({"ramify": {"home": str(tmp_path / "home")}}, spec) as sandbox:
        sandbox.start()
        result = sandbox.exec("echo $GREETING && cat /sandbox/input.txt")
        assert (result.stdout, result.return_code, result.error_type) == ("hello\nsome seed content", 0, None)
        sandbox.upload(tmp_path / "script.sh", "/sandbox/script.sh")
        assert sandbox.exec("bash script.sh").return_code == 0
        sandbox.download("/sandbox/result.txt", tmp_path / "out" / "result.txt")
        assert sandbox.status() is SandboxStatus.RUNNING
    assert (tmp_path / "out" / "result.txt").read_text() == "ran\n"
    assert sandbox.status() is SandboxStatus.STOPPED


async def test_commands(provider: WorldProvider, handle: SandboxHandle) -> None:
    told = await provider.exec(handle, "python3 main.py; echo $WORD $OWN >&2; exit 3", env={"OWN": "own"})
    assert (told.stdout, told.stderr, told.return_code, told.error_type) == ("hello\n", "yes own\n", 3, None)
    assert (await provider.exec(handle, "pwd", cwd="/tmp")).stdout == "/tmp\n"
    told = await provider.exec(handle, "sleep 60", timeout_s=0.2)
    assert (told.return_code, told.error_type) == (NOT_RUN, "timeout")
    told = await provider.exec(handle, "true", cwd="/nowhere")
    assert (told.return_code, told.error_type) == (NOT_RUN, "sandbox") and "/nowhere" in (told.stderr or "")
    await provider.close(handle)
    await provider.close(handle)
    assert await provider.status(handle) is SandboxStatus.STOPPED
    told = await provider.exec(handle, "true")
    assert (told.return_code, told.error_type) == (NOT_RUN, "sandbox")


async def test_files(provider: WorldProvider, handle: SandboxHandle, repo: Path, tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_bytes(b"#!/bin/bash\necho ran\n")
    (tmp_path / "run.sh").chmod(0o755)
    for target in (f"{repo}/deep/run.sh", "/tmp/elsewhere/run.sh"):
        await provider.upload_file(handle, tmp_path / "run.sh", target)
        assert (await provider.exec(handle, target)).stdout == "ran\n"
        await provider.download_file(handle, target, tmp_path / "back" / "run.sh")
        assert (tmp_path / "back" / "run.sh").read_bytes() == (tmp_path / "run.sh").read_bytes()
    for path, error in (("missing", FileNotFoundError), ("/etc", IsADirectoryError)):
        with pytest.raises(error):
            await provider.download_file(handle, path, tmp_path / "none")


async def test_fork_restore_and_a_start_from_a_snapshot(provider: WorldProvider, handle: SandboxHandle) -> None:
    kept = await provider.snapshot(handle)
    (fork,) = await provider.fork(handle)
    await provider.exec(fork, "rm main.py")
    assert (await provider.exec(handle, "ls; rm main.py")).stdout == "main.py\n"
    await provider.restore(handle, kept)
    assert (await provider.exec(handle, "ls")).stdout == "main.py\n"
    assert (await provider.exec(fork, "ls")).stdout == ""
    async with AsyncSandbox(provider, SandboxSpec(provider_options={"snapshot_id": kept})) as sandbox:
        await sandbox.start()
        assert (await sandbox.exec("ls")).stdout == "main.py\n"
    assert await provider.status(fork) is SandboxStatus.STOPPED, "stopping a sandbox closes its provider"


async def test_a_sandbox_that_lived_its_time_is_closed(provider: WorldProvider) -> None:
    handle = await provider.create(SandboxSpec(ttl_s=0.1, ready_timeout_s=60))
    while await provider.status(handle) is SandboxStatus.RUNNING:
        pass
    assert await provider.status(handle) is SandboxStatus.STOPPED


async def test_what_cannot_be_made_is_told(provider: WorldProvider, tmp_path: Path) -> None:
    for spec, said in (
        (SandboxSpec(provider_options={"snapshot": "x"}), "unknown provider_options: snapshot; ramify knows"),
        (SandboxSpec(provider_options={"snapshot_id": "none-such"}), "none-such"),
        (SandboxSpec(provider_options={"folder": str(tmp_path / "none")}), "none"),
        (SandboxSpec(image=f"oci:{tmp_path / 'none'}"), "none"),
        (SandboxSpec(resources={"gpu": 1}), "GPU"),
        (SandboxSpec(resources={"memory_mib": -1}), "-1048576 is not a limit"),
        (SandboxSpec(provider_options={"egress": 5}), "int"),
        (SandboxSpec(ready_timeout_s=0), "not ready after 0 seconds"),
    ):
        with pytest.raises(SandboxCreateError, match=said):
            await provider.create(spec)
    other = SandboxHandle("one", "apptainer", object())
    with pytest.raises(TypeError, match="of another provider"):
        await provider.exec(other, "true")
