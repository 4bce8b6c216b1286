"""Lower bounds for rows of benchmarks/fork.py on this machine: the bare kernel mechanism, without checks or records.

Each bound is measured in the same run as the row that names it, because a busy machine slows both down.
"""

from __future__ import annotations

import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from ramify.sandboxes.agent.checkpointing import criu_runner
from ramify.sandboxes.host import criu

ROUNDS = 20
COMMANDS = 200
APART = ("unshare", "--user", "--map-root-user", "--mount", "--pid", "--fork", "--mount-proc")
ALONE = (*APART, "--net", "--ipc", "--uts")
BASH = ("/bin/bash", "--norc", "--noprofile")

CHECKPOINT = """
import hashlib, os, statistics, sys, tempfile, time
from pathlib import Path
from ramify.sandboxes.linux import kernel
lower, scratch, rounds = sys.argv[1], sys.argv[2], int(sys.argv[3])
took = []
with tempfile.TemporaryDirectory(dir=scratch) as top:
    os.mkdir(f"{top}/at")
    def mount(number, lowers):
        for name in ("upper", "work"):
            os.mkdir(f"{top}/{name}{number}")
        options = f"lowerdir={lowers},upperdir={top}/upper{number},workdir={top}/work{number},userxattr,volatile"
        kernel.mount("overlay", f"{top}/at", "overlay", 0, options)
    mount(0, lower)
    for number in range(rounds):
        for n in range(100):
            Path(f"{top}/at/d{n % 10}/f{n}").write_text(f"{number}\\n")
        begun = time.perf_counter()
        kernel.umount(f"{top}/at")
        for folder, _, names in os.walk(f"{top}/upper{number}"):
            for name in names:
                path = f"{folder}/{name}"
                os.stat(path)
                with open(path, "rb") as file:
                    hashlib.sha256(file.read()).hexdigest()
        os.rename(f"{top}/upper{number}", f"{top}/sealed{number}")
        mount(number + 1, f"{top}/sealed{number}:{lower}")
        took.append((time.perf_counter() - begun) * 1000)
    kernel.umount(f"{top}/at")
print(statistics.median(took))
"""

SESSION = """
import gc, os, statistics, sys, tempfile, time
from ramify.sandboxes.linux import kernel
lower, scratch, rounds = sys.argv[1], sys.argv[2], int(sys.argv[3])
exec(sys.argv[4])
gc.freeze()
took = []
with tempfile.TemporaryDirectory(dir=scratch) as top:
    for number in range(rounds):
        begun = time.perf_counter()
        told, told_in = os.pipe()
        child = os.fork()
        if child == 0:
            kernel.unshare(kernel.CLONE_NEWNS)
            for name in ("upper", "work", "at"):
                os.mkdir(f"{top}/{name}{number}")
            options = f"lowerdir={lower},upperdir={top}/upper{number},workdir={top}/work{number},userxattr,volatile"
            kernel.mount("overlay", f"{top}/at{number}", "overlay", 0, options)
            os.chdir(f"{top}/at{number}")
            os.write(told_in, str(len(data)).encode())
            os._exit(0)
        assert os.read(told, 16) == b"200000"
        took.append((time.perf_counter() - begun) * 1000)
        os.waitpid(child, 0)
        os.close(told)
        os.close(told_in)
print(statistics.median(took))
"""

PROCESSES = """
import os, shutil, subprocess, sys, time
folder, verb, *words = sys.argv[1:]
os.chdir(folder)
subprocess.run(["mount", "-t", "tmpfs", "none", "run"], check=True)  # CRIU keeps what it knows of the kernel
closed = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)

def last_pid(number):
    with open("/proc/sys/kernel/ns_last_pid", "w") as file:
        file.write(str(number))

def criu(*more):
    last_pid(10)
    environment = {"XDG_RUNTIME_DIR": f"{folder}/run", "PATH": os.environ["PATH"]}
    begun = time.perf_counter()
    done = subprocess.run([*words, *more], env=environment, **closed)
    took = (time.perf_counter() - begun) * 1000
    if done.returncode != 0:
        sys.exit(open("run/log").read())
    return took

if verb == "dump":
    last_pid(300)
    script = "sleep 1000 & python3 program.py & wait"
    shell = subprocess.Popen(["bash", "-c", script], start_new_session=True, **closed)
    while not os.path.exists("ready"):
        time.sleep(0.02)
    print(criu("-t", str(shell.pid), "--leave-stopped"))
    shutil.copy("run/criu.kdat", ".")
else:
    shutil.copy("criu.kdat", "run")
    print(criu("--restore-detached"))
"""


def command(plain_ms: float) -> str:
    """Time a program in a plain bash in namespaces of its own, beyond `plain_ms`, the time of fork and exec here."""
    with subprocess.Popen([*ALONE, *BASH], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as shell:
        assert shell.stdin is not None
        assert shell.stdout is not None
        took = []
        for _ in range(COMMANDS + 1):
            begun = time.perf_counter()
            shell.stdin.write(b"/bin/true </dev/null; echo $?\n")
            assert shell.stdout.read(16) == b"0\n"
            took.append((time.perf_counter() - begun) * 1000)
        shell.stdin.close()
    return f"{statistics.median(took[1:]) - plain_ms:.2f} ms: a bare bash in new namespaces, written to and read"


def checkpoint(lower: Path, scratch: Path) -> str:
    """Time the steps that a seal cannot avoid, for 100 files changed in an overlay over `lower`."""
    return _told(
        [*APART, sys.executable, "-c", CHECKPOINT, str(lower), str(scratch), str(ROUNDS)],
        "100 files unmounted, read, hashed, renamed, and the longer stack mounted",
    )


def session(lower: Path, scratch: Path, data: str) -> str:
    """Time a Python program that holds `data` and forks itself, with the child over a tree of its own."""
    return _told(
        [*APART, sys.executable, "-c", SESSION, str(lower), str(scratch), str(ROUNDS), data],
        "a bare fork of the same memory, a mount namespace and a tree for it, and its answer",
    )


def restore(program: str, scratch: Path) -> str:
    """Time CRIU alone, in existing namespaces, with `program` (Python), its shell and a job."""
    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        for name in ("images", "run"):
            Path(folder, name).mkdir()
        Path(folder, "program.py").write_text(program)

        def run(verb: str) -> subprocess.CompletedProcess[str]:
            words = [*criu.command(), verb, "-D", f"{folder}/images", "-W", f"{folder}/run", *criu_runner.COMMON]
            script = [sys.executable, "-c", PROCESSES, folder, verb, *words, "-v2", "-o", f"{folder}/run/log"]
            return subprocess.run([*APART, *script], capture_output=True, text=True)

        dumped = run("dump")
        restored = [run("restore") for _ in range(ROUNDS)] if dumped.returncode == 0 else [dumped]
    for done in restored:
        if done.returncode != 0:
            return f"not measured: {done.stderr.strip()[-200:]}"
    return f"{statistics.median(float(done.stdout) for done in restored):.1f} ms: criu restore of the same, by hand"


def _told(words: Sequence[str], what: str) -> str:
    done = subprocess.run(words, capture_output=True, text=True, env=os.environ)
    if done.returncode != 0:
        return f"not measured: {done.stderr.strip()[-200:] or shlex.join(words[:2])}"
    return f"{float(done.stdout):.1f} ms: {what}"
