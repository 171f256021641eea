"""The frame of the command line: which commands there are, and how their errors are shown.

A command is imported when it is asked for, and its module imports what is heavy when it runs:
`--help` loads no torch, gRPC or web framework. Exit status: 0 done, 1 failed, 2 wrong usage; an
error is one sentence on stderr."""

from __future__ import annotations

import errno
import io
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

import isentrope_wire
from isentrope_wire import __version__
from isentrope_wire.errors import ConfigurationError, IsentropeError, install_command
from isentrope_wire.numbers import printable

COMMANDS = {
    "audit": "isentrope_server.commands:audit",
    "backup": "isentrope_server.commands:backup",
    "checks": "isentrope.cli.commands:checks",
    "control": "isentrope.cli.commands:control",
    "delete": "isentrope.cli.commands:delete",
    "demo": "isentrope_trainer.commands:demo",
    "diagnose": "isentrope.cli.diagnose:diagnose",
    "doctor": "isentrope.cli.commands:doctor",
    "export": "isentrope.cli.commands:export",
    "mcp": "isentrope.cli.commands:mcp",
    "metrics": "isentrope.cli.commands:metrics",
    "reproduce": "isentrope_papers.commands:reproduce",
    "restore": "isentrope_server.commands:restore",
    "runs": "isentrope.cli.commands:runs",
    "sync": "isentrope.cli.commands:sync",
    "token": "isentrope_server.commands:token",
    "top-tokens": "isentrope.cli.commands:top_tokens",
    "train": "isentrope_trainer.commands:train",
    "up": "isentrope_server.commands:up",
    "watch": "isentrope.cli.commands:watch",
}

GROUPS = {
    "Start": ("up", "demo", "doctor", "diagnose"),
    "Runs": (
        "runs",
        "watch",
        "checks",
        "top-tokens",
        "metrics",
        "control",
        "export",
        "delete",
        "sync",
        "mcp",
    ),
    "Server": ("token", "audit", "backup", "restore"),
    "Experiments": ("train", "reproduce"),
}
"""How the help lists the commands."""
_FIRST_STEPS = (
    "First steps: `isentrope up` starts server and page and prints the address to open; "
    "`isentrope.attach(trainer)` (TRL) or `isentrope.Probe()` in a script reports to it. "
    "`isentrope demo` shows a run without either, `isentrope COMMAND --help` explains a command."
)

_EXTRA_OF_PACKAGE = {
    "isentrope": "probe",
    "isentrope_papers": "reproduce",
    "isentrope_server": "server",
    "isentrope_trainer": "trainer",
}
_EXTRA_OF_COMMAND = {
    "demo": "server,dashboard",
    "mcp": "mcp",
    "up": "server,dashboard",
    "watch": "watch",
}
"""Extras of commands that need another one than the rest of their package."""
_WHOLE_SENTENCE = 200
"""Characters: the first sentence of a command's help is not cut."""
_FAULTS_OF_FILES = frozenset(
    {
        *(errno.EACCES, errno.EDQUOT, errno.EISDIR, errno.ENAMETOOLONG, errno.ENOENT),
        *(errno.ENOSPC, errno.ENOTDIR, errno.EPERM, errno.EROFS),
    }
)
_COMMAND_IN_USE = "isentrope.command_in_use"


class Failed(click.ClickException):
    """A command failed. Shown as one sentence."""

    exit_code = 1

    def __init__(self, message: str) -> None:
        super().__init__(printable(" ".join(message.split())))


class WronglyUsed(Failed):
    """A command was called with arguments that cannot work."""

    exit_code = 2


class LazyCommands(click.Group):
    """The commands of `COMMANDS` whose package is installed."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(
            name for name, target in COMMANDS.items() if find_spec(_package(target)) is not None
        )

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.list_commands(ctx):
            if cmd_name == "reproduce":
                return _command_of_a_clone()
            return None
        ctx.meta[_COMMAND_IN_USE] = cmd_name
        module, attribute = COMMANDS[cmd_name].split(":")
        try:
            command = getattr(import_module(module), attribute)
        except ModuleNotFoundError as error:
            return _command_of_a_missing_extra(cmd_name, error)
        assert isinstance(command, click.Command), f"{COMMANDS[cmd_name]} is no click command"
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, names in GROUPS.items():
            commands = {name: self.get_command(ctx, name) for name in names}
            rows = [
                (name, command.get_short_help_str(_WHOLE_SENTENCE))
                for name, command in commands.items()
                if command is not None
            ]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        with _errors_in_one_sentence():
            return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        with _errors_in_one_sentence():
            try:
                return super().invoke(ctx)
            except ModuleNotFoundError as error:
                name = ctx.meta.get(_COMMAND_IN_USE)
                if name is None or (error.name or "").partition(".")[0].startswith("isentrope"):
                    raise  # a module of ours that is missing is a bug, not an extra
                raise Failed(_missing_extra(name, error)) from error


def _show_version(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    if not wanted:
        return
    words, commit = f"isentrope, version {__version__}", commit_of_code()
    if commit:
        words += f" (commit {commit})"
    click.echo(words)
    context.exit()


@click.group(
    cls=LazyCommands,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=_FIRST_STEPS,
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_version,
    help="Show the version and the commit it was built from, and exit.",
)
def main() -> None:
    """See a policy's entropy collapse coming, name the tokens that cause it, steer the run while it
    is live."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A terminal or a pipe may not be UTF-8: names are shown as `\\u5b9e` there.
        sys.stdout.reconfigure(errors="backslashreplace")


def commit_of_code() -> str:
    """The commit of the code that runs, "-dirty" where files were changed: what a wheel was built
    from, or where a clone stands. Empty: not known."""
    package = Path(isentrope_wire.__file__).parent
    built = package / "commit.txt"
    if built.exists():
        return built.read_text(encoding="utf-8").strip()
    clone = package.parents[1]
    if not (clone / "set_up.py").exists():
        return ""  # installed: a repository about it is somebody else's
    with suppress(OSError, subprocess.TimeoutExpired):
        asked = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--exclude=*"],
            cwd=clone,
            capture_output=True,
            text=True,
            timeout=5,
            check=False,
        )
        return asked.stdout.strip()
    return ""


@contextmanager
def _errors_in_one_sentence() -> Iterator[None]:
    try:
        yield
    except click.UsageError as error:
        if error.ctx is not None and isinstance(error, click.exceptions.NoArgsIsHelpError):
            raise
        raise WronglyUsed(error.format_message()) from error
    except ConfigurationError as error:
        raise WronglyUsed(str(error)) from error
    except IsentropeError as error:
        raise Failed(str(error)) from error
    except OSError as error:
        # Others, as a closed pipe, are click's or a bug.
        if error.errno not in _FAULTS_OF_FILES:
            raise
        raise Failed(f"{error.filename or 'The output'}: {error.strerror}.") from error


def _command_of_a_clone() -> click.Command:
    """`isentrope reproduce` where there is no clone: it says where it is."""

    def fail(**_: Any) -> None:
        raise Failed(
            "`isentrope reproduce` is not in the package: clone the repository, "
            "then run `make reproduce` there."
        )

    return click.Command(
        "reproduce",
        callback=fail,
        short_help="Run the papers' experiments again: in a clone of the repository.",
        context_settings={"ignore_unknown_options": True},
        params=[click.Argument(["arguments"], nargs=-1)],
    )


def _command_of_a_missing_extra(name: str, error: ModuleNotFoundError) -> click.Command:
    """A command that is listed and fails with what to install."""
    sentence = _missing_extra(name, error)

    def fail() -> None:
        raise Failed(sentence)

    return click.Command(name, callback=fail, short_help="(not installed)", help=sentence)


def _missing_extra(name: str, error: ModuleNotFoundError) -> str:
    extra = _EXTRA_OF_COMMAND.get(name) or _EXTRA_OF_PACKAGE[_package(COMMANDS[name])]
    return (
        f"`isentrope {name}` needs the extra {extra}: {install_command(extra)} (there is no"
        f" {error.name})."
    )


def _package(target: str) -> str:
    return target.partition(":")[0].partition(".")[0]
