"""The command group `ramify`. A command's imports happen when it runs."""

from __future__ import annotations

import io
import os
import sys
import traceback
from pathlib import Path
from types import TracebackType

import click

from ramify import __version__, paths
from ramify.cli.console import CommandHome, LocationOptions
from ramify.cli.errors import INTERRUPTED, report
from ramify.cli.path_options import NamedPath
from ramify.cli.registry import Commands
from ramify.inspect.text import escaped

EPILOG = """\b
States are named as in git. @ is the newest run. RUN is the id of a run, or
its first characters, and stands for the run's latest state; RUN:BRANCH is
the latest state of a branch, RUN:base the workspace as it was, RUN~2 two
checkpoints earlier. Checkpoints and snapshots have ids of their own.

\b
Exit status: 0 success, 1 failure (the message says what to do), 2 wrong
usage, 3 the run waits for an answer (`ramify resume RUN --answer`), 4 it is
unknown whether an effect happened (`ramify approve`), 130 Ctrl-C or `ramify
cancel`. `ramify fsck` has other statuses; see its help. RAMIFY_TRACEBACK=1 shows
whole tracebacks, NO_COLOR=1 turns colours off.
"""


@click.group(
    cls=Commands,
    epilog=EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.version_option(__version__, prog_name="ramify")
@click.option(
    "--home",
    type=NamedPath(path_type=Path, file_okay=False),
    help="The folder for runs and snapshots.  [default: $RAMIFY_HOME or ~/.local/share/ramify]",
)
@click.option(
    "--database",
    metavar="ADDRESS",
    help="The database of runs: sqlite:///FILE, or postgresql://… for processes on several machines.  "
    "[default: $RAMIFY_DATABASE or a file in the home]",
)
@click.pass_context
def cli(context: click.Context, home: Path | None, database: str | None) -> None:
    """Fork, roll back, merge and resume the whole state of an agent."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        context.color = False
    typed = context.obj if isinstance(context.obj, LocationOptions) else LocationOptions()
    typed.home, typed.database = home, database
    context.obj = CommandHome(paths.home(home), database_given=database, typed=typed)


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit with its status."""
    sys.excepthook = _print_uncaught
    sys.exit(run_command_line(arguments))


def run_command_line(arguments: list[str] | None = None) -> int:
    _open_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # file names that are not UTF-8
    typed = LocationOptions()
    try:
        status = cli.main(args=arguments, prog_name="ramify", standalone_mode=False, obj=typed)
        sys.stdout.flush()
        return status if isinstance(status, int) else 0
    except click.ClickException as error:
        said = io.StringIO()
        error.show(said)
        click.echo(escaped(typed.complete(said.getvalue())), err=True, nl=False)
        return error.exit_code
    except click.Abort:
        return INTERRUPTED
    except BrokenPipeError:  # the reader of our output is gone: exit quietly
        _drop_output()
        return 1
    except Exception as error:  # noqa: BLE001  # `report` raises bugs of Ramify again
        status = report(error, typed)
        try:
            sys.stdout.flush()
        except OSError:
            _drop_output()
        return status


def _print_uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print a traceback, whose message may hold what an agent wrote."""
    click.echo(escaped("".join(traceback.format_exception(kind, error, trace))), err=True, nl=False)


def _drop_output() -> None:
    """Drop what is still to be written, which Python would try again at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _open_closed_streams() -> None:
    """Open the standard streams that the caller closed, as in `ramify … >&-`, on nothing.

    Otherwise the next file that is opened would have the number of a stream.
    """
    while (number := os.open(os.devnull, os.O_RDWR)) < 3:
        os.set_inheritable(number, True)
    os.close(number)
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode))  # noqa: SIM115  open until the program ends


if __name__ == "__main__":
    main()
