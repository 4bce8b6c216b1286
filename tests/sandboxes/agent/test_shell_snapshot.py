"""The shell's state: what bash reports, what a snapshot keeps of it, and that a new bash then has the same state."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramify.sandboxes.agent import shell
from ramify.sandboxes.agent.shell import Report, words
from ramify.sandboxes.agent.shell_snapshot import (
    BASH_MANAGED,
    ShellSnapshot,
    quoted,
)
from tests.samples import sample

values = st.binary(max_size=40).map(lambda data: data.replace(b"\0", b""))


def bash(script: bytes, cwd: Path | None = None, **env: str) -> bytes:
    done = subprocess.run(
        ["bash", "--norc", "--noprofile"], input=script, capture_output=True, cwd=cwd, env={"LANG": "C.UTF-8", **env}
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def told(script: bytes, cwd: Path | None = None, **env: str) -> Report:
    """What bash reports after `script`."""
    report = f"\n{{ {shell.TRAPS}; {shell.REPORT}; }} >&9 2>/dev/null\n".encode()
    done = bash(b"exec 9>&1 >/dev/null 2>/dev/null\n" + script + report, cwd, **env)
    return Report.parse(done + b"\0RLIMIT_CORE 0 0\n")


def again(kept: ShellSnapshot, tree: str = "/nowhere") -> ShellSnapshot:
    """What a new bash reports that was given `kept`."""
    return ShellSnapshot.of(told(kept.script(tree)), tree)


@given(st.lists(values, max_size=5))
@settings(max_examples=sample(10, 25), deadline=None)
def test_words_reads_what_bash_quotes(items: list[bytes]) -> None:
    given_words = b" ".join(map(quoted, items))
    told_words = bash(b"set -- " + given_words + b'\nprintf " %q" "$#" "$@"')
    assert words(told_words) == [str(len(items)).encode(), *items]


@given(values)
@settings(max_examples=sample(10, 25), deadline=None)
def test_any_value_is_restored(value: bytes) -> None:
    script = b"; ".join(name + b"=" + quoted(value) for name in (b"plain", b"export exported", b"declare -r fixed"))
    script += b"; declare -A map; map[" + quoted(value or b"k") + b"]=" + quoted(value)
    script += b"; list=(" + quoted(value) + b" [7]=seven)"
    report = told(script)
    assert os.fsencode(report.environment["exported"]) == value
    kept = ShellSnapshot.of(report, "/nowhere")
    assert ShellSnapshot.decode(kept.encode()) == kept
    assert again(kept) == kept


EVERYTHING = rb"""
plain='a b'; declare -i number=5; declare -r fixed=1; declare -rx both=2; declare -x unset_but_exported
declare -a list=(one [5]='t w o'); declare -A map=([k]=v ['a b']=$'c\nd'); declare -n ref=plain; declare -l low=ABC
f() { echo "$1" | sed 's/a/b/'; case $1 in @(x|y)) echo extended;; esac; }
g() { cat <<END
a $1 () {
END
}
export -f g
alias ll='ls -l' cat='echo not a cat'
trap 'echo "it'\''s over"' EXIT; trap '' USR1; trap 'echo debug' DEBUG
shopt -s nullglob extglob; set -o pipefail; umask 027
set -- one '' $'three\n'
unset IFS
"""


def test_the_whole_state_is_restored(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    script = b"shopt -s extglob\n" + EVERYTHING + b"cd inner; pushd ..; pushd -n /elsewhere\n"
    report = told(script, tmp_path)
    kept = ShellSnapshot.of(report, str(tmp_path))
    assert (kept.oldpwd, kept.dirs) == ("./inner", ("/elsewhere", "./inner"))
    assert again(kept, str(tmp_path)) == kept
    assert again(kept, "/another/tree") == kept
    assert told(kept.script("/another/tree")).dirs == (b"/elsewhere", b"/another/tree/inner")
    code = b"echo $plain $number ${list[5]} ${map[a b]} $ref $low; f a; f y; cat x; umask; echo $#; fixed=2"
    said = bash(
        kept.script("/nowhere") + b"trap - DEBUG EXIT\n" + b"shopt -s expand_aliases\n" + code + b"\nexit 0\n"
    )
    assert b"a b 5 t w o c d a b abc\nb\ny\nextended\n" in said


def test_variables_that_bash_manages_are_not_kept() -> None:
    kept = ShellSnapshot.of(
        told(b": $RANDOM $SECONDS $LINENO $BASHPID $EPOCHREALTIME; sleep 0 & wait; [[ a =~ a ]]"), "/nowhere"
    )
    assert not kept.variables.keys() & BASH_MANAGED
    assert ShellSnapshot.of(told(b""), "/nowhere") == ShellSnapshot.of(told(b": $RANDOM $SECONDS"), "/nowhere")


def test_exported_variables_are_stored_as_the_environment() -> None:
    report = told(b"export A=1; declare -ix N=5; declare -rx R=x; B=2", C="3", **{"not.a.name": "4"})
    assert {"A": "1", "N": "5", "R": "x", "C": "3"}.items() <= report.environment.items()
    kept = ShellSnapshot.of(report, "/nowhere")
    mine = {name: line for name, line in kept.variables.items() if name in "ABCNR"}
    assert mine == {"B": 'declare -- B="2"', "N": "declare -ix N", "R": "declare -rx R"}


def test_no_secret_is_kept() -> None:
    secrets = {"TOKEN": "hunter2 $x", "SHORT": "1"}
    script = b"""copy="<$TOKEN>"; SHORT=2; other=1; f() { echo 'hunter2 $x'; }; g() { echo 1; }
    alias a="echo 'hunter2 \\$x'" b=ls c="two
    lines with hunter2 \\$x"; trap "echo 'hunter2 \\$x'" USR1; trap : USR2; set -- "$TOKEN"
    """
    kept = ShellSnapshot.of(told(script, **secrets), "/nowhere").without(secrets)
    assert b"hunter2" not in kept.encode()
    assert kept.variables["other"] == 'declare -- other="1"'
    assert not {"SHORT", "copy"} & kept.variables.keys()
    ignored = ShellSnapshot.of(told(b""), "/nowhere").traps.keys()  # by nohup, for example
    assert (set(kept.functions), set(kept.aliases), kept.traps.keys() - ignored) == ({"g"}, {"b"}, {"SIGUSR2"})


def test_only_changes_are_kept() -> None:
    """Of variables and options, too: the others are a new shell's own, or the machine's."""
    began = ShellSnapshot(limits={"RLIMIT_CORE": (0, 0), "RLIMIT_NOFILE": (10, 20)})
    now = ShellSnapshot(limits={"RLIMIT_CORE": (0, 0), "RLIMIT_NOFILE": (5, 20)})
    earlier = ShellSnapshot(limits={"RLIMIT_AS": (1, 1)})
    assert now.since(began, earlier).limits == {"RLIMIT_AS": (1, 1), "RLIMIT_NOFILE": (5, 20)}
    fresh = ShellSnapshot.of(told(b""), "/nowhere")
    first = ShellSnapshot.of(told(b"set -e; mine=1; unset PS4"), "/nowhere").since(fresh, ShellSnapshot())
    assert (first.variables, first.options) == (
        {"mine": 'declare -- mine="1"', "PS4": ""},
        {"set errexit": "set -o errexit"},
    )
    second = ShellSnapshot.of(told(first.script("/nowhere") + b"set +e; unset mine; shopt -s nullglob\n"), "/nowhere")
    kept = second.since(ShellSnapshot.of(told(first.script("/nowhere")), "/nowhere"), first)
    assert kept.variables == {"PS4": ""}
    assert kept.options == {"set errexit": "set +o errexit", "shopt nullglob": "shopt -s nullglob"}
    assert again(kept) == second


def test_a_state_of_format_1_is_read() -> None:
    old = {
        "format": 1,
        "variables": ['declare -- a="1"', "declare -rx b"],
        "unset": ["PS4"],
        "functions": "f () \n{ \n    echo f\n}\ng () \n{ \n    :\n}\n",
        "attributes": "declare -f f\ndeclare -fx g\n",
        "aliases": "alias ll='ls\n-l'\nalias x='y'\n",
        "traps": "trap -- 'echo \nover' EXIT\n",
        "options": "umask 0022\nshopt -u extglob\nset -o errexit\n",
        "args": ["one"],
        "oldpwd": "./a",
        "dirs": [],
        "limits": {"RLIMIT_AS": [1, 2]},
    }
    kept = ShellSnapshot.decode(json.dumps(old).encode())
    assert kept.variables == {"a": 'declare -- a="1"', "b": "declare -rx b", "PS4": ""}
    assert kept.functions == {"f": "f () \n{ \n    echo f\n}\n", "g": "g () \n{ \n    :\n}\n"}
    assert kept.attributes == {"g": "declare -fx g"}
    assert kept.aliases == {"ll": "alias ll='ls\n-l'", "x": "alias x='y'"}
    assert kept.traps == {"EXIT": "trap -- 'echo \nover' EXIT"}
    assert kept.options == {
        "umask": "umask 0022",
        "shopt extglob": "shopt -u extglob",
        "set errexit": "set -o errexit",
    }
    assert (kept.args, kept.oldpwd, kept.limits) == (("one",), "./a", {"RLIMIT_AS": (1, 2)})
    assert ShellSnapshot.decode(kept.encode()) == kept


def test_malformed_states_are_refused() -> None:
    with pytest.raises(ValueError, match="format"):
        ShellSnapshot.decode(b'{"format": 99}')
    with pytest.raises(ValueError, match="parts"):
        Report.parse(b"a\0b")


def test_a_line_that_looks_like_a_functions_head_does_not_split_a_function() -> None:
    """And a function is not lost if bash writes its head differently."""
    kept = ShellSnapshot.of(
        told(b"f() { cat <<E\ng () \n{ \nE\n}; g() { echo 'f () \n'; }; h() { :; }; export -f g; function if { :; }"),
        "/nowhere",
    )
    assert list(kept.functions) == ["f", "h", "if"]
    assert again(kept) == kept
    assert bash(kept.script("/nowhere") + b"f; g; bash -c g") == b"g () \n{ \n" + 2 * b"f () \n\n"
    told_of = {"g": "declare -fx g"}
    assert (kept.without({"TOKEN": "cat <<E"}).functions.keys(), kept.attributes) == ({"h", "if"}, told_of)
