"""Agent programs as their makers ship them: how each is started and continued, and what a model says to it.

The versions with which this was tried are in docs/how-to/agents.md.
"""

from __future__ import annotations

import json
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path

from ramify.sandboxes.egress.settings import Header
from tests.agents.model_server import Call, Json, Turn

TASK = "Make test_add.py pass."
WRONG, RIGHT = "    return a - b\n", "    return a + b\n"
TESTS = "python3 test_add.py"


class Program(ABC):
    """One agent program, in a world whose tree has add.py and test_add.py."""

    command: str
    side_calls = False  # whether it also asks a model without tools, for a title
    continues = True  # whether it can go on with a conversation that it recorded
    memory: tuple[str, ...] = ("/",)  # where it records conversations: prefixes of paths, "/" outside the tree

    made_up: tuple[str, ...] = ()  # beginnings of answers that it puts into a conversation itself

    def find(self) -> str | None:
        """The program beside this Python, where `.ci/run agents` installs it; None if it is not there."""
        beside = Path(sys.executable).parent / self.command
        return str(beside) if beside.exists() else None

    def header(self, key: str) -> Header:
        """The credential as its model server expects it."""
        return Header("authorization", f"Bearer {key}")

    def files(self, url: str) -> Mapping[str, str]:
        """Its settings: texts by their paths in the home."""
        return {}

    @abstractmethod
    def env(self, url: str) -> dict[str, str]:
        """Its variables, for a model server at `url`. The key that it gets is a placeholder."""

    @abstractmethod
    def begin(self, task: str) -> list[str]:
        """The arguments that start it on a task."""

    @abstractmethod
    def go_on(self, task: str) -> list[str]:
        """The arguments that continue its last conversation."""

    @abstractmethod
    def repair(self, folder: str) -> list[Turn]:
        """A model's answers that edit add.py in the folder, run the tests, and finish."""

    @abstractmethod
    def note(self, name: str) -> list[Turn]:
        """A model's answers that write NAME.txt and finish."""


class ClaudeCode(Program):
    command = "claude"

    def header(self, key: str) -> Header:
        return Header("x-api-key", key)

    def env(self, url: str) -> dict[str, str]:
        return {
            "ANTHROPIC_BASE_URL": url,
            "ANTHROPIC_API_KEY": "placeholder",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "IS_SANDBOX": "1",  # root may then skip permissions
        }

    def begin(self, task: str) -> list[str]:
        return ["-p", task, "--dangerously-skip-permissions"]

    def go_on(self, task: str) -> list[str]:
        return ["--continue", *self.begin(task)]

    def _run(self, command: str) -> Turn:
        return Turn("", (Call("Bash", {"command": command, "description": "run it"}),))

    def repair(self, folder: str) -> list[Turn]:
        path = {"file_path": f"{folder}/add.py"}
        edit = {**path, "old_string": WRONG, "new_string": RIGHT}
        return [
            Turn("I read it.", (Call("Read", path),)),
            Turn("I repair it.", (Call("Edit", edit),)),
            self._run(TESTS),
            Turn("All done."),
        ]

    def note(self, name: str) -> list[Turn]:
        return [self._run(f"echo {name} > {name}.txt"), Turn(f"Wrote {name}.")]


class Codex(Program):
    command = "codex"

    def files(self, url: str) -> Mapping[str, str]:
        settings = f"""\
model = "scripted"
model_provider = "local"
approval_policy = "never"
sandbox_mode = "danger-full-access"

[model_providers.local]
name = "local"
base_url = "{url}/v1"
wire_api = "responses"
env_key = "OPENAI_API_KEY"
"""
        return {".codex/config.toml": settings}

    def env(self, url: str) -> dict[str, str]:
        return {"OPENAI_API_KEY": "placeholder"}

    def begin(self, task: str) -> list[str]:
        return ["exec", "--skip-git-repo-check", task]

    def go_on(self, task: str) -> list[str]:
        return ["exec", "--skip-git-repo-check", "resume", "--last", task]

    def _run(self, command: str) -> Turn:
        return Turn("", (Call("exec_command", {"cmd": command}),))

    def repair(self, folder: str) -> list[Turn]:
        patch = f"*** Begin Patch\n*** Update File: add.py\n@@\n-{WRONG}+{RIGHT}*** End Patch"
        return [self._run(f"apply_patch <<'EOF'\n{patch}\nEOF"), self._run(TESTS), Turn("All done.")]

    def note(self, name: str) -> list[Turn]:
        return [self._run(f"echo {name} > {name}.txt"), Turn(f"Wrote {name}.")]


class OpenCode(Program):
    command = "opencode"
    side_calls = True

    def files(self, url: str) -> Mapping[str, str]:
        model = {"name": "scripted", "tool_call": True, "limit": {"context": 100_000, "output": 4_000}}
        provider = {
            "npm": "@ai-sdk/openai-compatible",
            "name": "local",
            "options": {"baseURL": f"{url}/v1", "apiKey": "placeholder"},
            "models": {"scripted": model},
        }
        settings: Json = {"model": "local/scripted", "small_model": "local/scripted", "provider": {"local": provider}}
        settings |= {"autoupdate": False, "share": "disabled"}
        return {".config/opencode/opencode.json": json.dumps(settings)}

    def env(self, url: str) -> dict[str, str]:
        return {"OPENCODE_DISABLE_MODELS_FETCH": "1"}

    def begin(self, task: str) -> list[str]:
        return ["run", task]

    def go_on(self, task: str) -> list[str]:
        return ["run", "--continue", task]

    def _run(self, command: str) -> Turn:
        return Turn("", (Call("bash", {"command": command, "description": "run it"}),))

    def repair(self, folder: str) -> list[Turn]:
        path = {"filePath": f"{folder}/add.py"}
        edit = {**path, "oldString": WRONG, "newString": RIGHT}
        return [
            Turn("I read it.", (Call("read", path),)),
            Turn("I repair it.", (Call("edit", edit),)),
            self._run(TESTS),
            Turn("All done."),
        ]

    def note(self, name: str) -> list[Turn]:
        return [self._run(f"echo {name} > {name}.txt"), Turn(f"Wrote {name}.")]


class Aider(Program):
    """It calls no tools: the model answers with blocks, and aider runs the tests after each edit."""

    command = "aider"
    memory = ("/", ".aider")
    made_up = ("Ok.", "Ok, any changes")

    def env(self, url: str) -> dict[str, str]:
        return {
            "OPENAI_API_KEY": "placeholder",
            "OPENAI_API_BASE": f"{url}/v1",
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        }

    def begin(self, task: str) -> list[str]:
        return [*self._options(), "--test-cmd", TESTS, "--auto-test", "--message", task, "add.py"]

    def go_on(self, task: str) -> list[str]:
        return [*self._options(), "--restore-chat-history", "--message", task]

    def _options(self) -> list[str]:
        model = ["--model", "openai/scripted", "--edit-format", "diff", "--map-tokens", "0"]
        quiet = ["--no-check-update", "--analytics-disable", "--no-show-model-warnings", "--no-show-release-notes"]
        return [*model, *quiet, "--no-git", "--yes-always"]

    def _block(self, path: str, old: str, new: str) -> Turn:
        return Turn(f"{path}\n```\n<<<<<<< SEARCH\n{old}=======\n{new}>>>>>>> REPLACE\n```\n")

    def repair(self, folder: str) -> list[Turn]:
        nearly = "    return a * b\n"
        return [self._block("add.py", WRONG, nearly), self._block("add.py", nearly, RIGHT)]

    def note(self, name: str) -> list[Turn]:
        return [self._block(f"{name}.txt", "", f"{name}\n")]


class MiniSweAgent(Program):
    """It records what it did, and cannot go on from that."""

    command = "mini"
    continues = False

    def env(self, url: str) -> dict[str, str]:
        return {
            "OPENAI_API_KEY": "placeholder",
            "OPENAI_API_BASE": f"{url}/v1",
            "MSWEA_CONFIGURED": "true",
            "MSWEA_COST_TRACKING": "ignore_errors",
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        }

    def begin(self, task: str) -> list[str]:
        model = ["--model", "openai/scripted", "--cost-limit", "0"]
        return [*model, "--yolo", "--exit-immediately", "--output", "/tmp/trajectory.json", "--task", task]

    def go_on(self, task: str) -> list[str]:
        return self.begin(task)

    def _run(self, command: str) -> Turn:
        return Turn("I do it.", (Call("bash", {"command": command}),))

    def repair(self, folder: str) -> list[Turn]:
        submit = self._run("echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT")
        return [self._run("sed -i 's/a - b/a + b/' add.py"), self._run(TESTS), submit]

    def note(self, name: str) -> list[Turn]:
        submit = self._run("echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT")
        return [self._run(f"echo {name} > {name}.txt"), submit]


PROGRAMS: tuple[Program, ...] = (ClaudeCode(), Codex(), OpenCode(), Aider(), MiniSweAgent())
