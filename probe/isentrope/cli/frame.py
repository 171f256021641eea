"""The frame of the command line: `isentrope` lists the commands of whatever components are installed.

Each component contributes commands through the entry-point group `isentrope.commands`. Their modules import nothing
heavy at the top, so that help is quick; what a command needs it imports when it runs. Exit status: 0 done, 1 failed,
2 wrongly used; an error is one sentence on stderr.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import EntryPoint, entry_points
from typing import Any

import click

import isentrope
from isentrope_wire.errors import ConfigurationError, IsentropeError
from isentrope_wire.numbers import printable

COMMANDS = "isentrope.commands"

_EXTRA_OF_PACKAGE = {
    "isentrope": "probe",
    "isentrope_server": "server",
    "isentrope_dashboard": "dashboard",
    "isentrope_trainer": "trainer",
}
_ENTRY_IN_USE = "isentrope.entry_in_use"


class Failed(click.ClickException):
    """A command could not do what it should. Shown as one sentence."""

    exit_code = 1

    def __init__(self, message: str) -> None:
        super().__init__(printable(" ".join(message.split())))


class WronglyUsed(Failed):
    """The command line itself is at fault."""

    exit_code = 2


class InstalledCommands(click.Group):
    """A group whose commands are entry points, loaded when they are asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({entry.name for entry in entry_points(group=COMMANDS)})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = next(iter(entry_points(group=COMMANDS, name=cmd_name)), None)
        if entry is None:
            return None
        ctx.meta[_ENTRY_IN_USE] = entry
        try:
            command = entry.load()
        except ModuleNotFoundError as error:
            return _command_of_a_missing_extra(entry, error)
        assert isinstance(command, click.Command), f"entry point {entry.name} of {COMMANDS} is no click command"
        return command

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        with _errors_in_one_sentence():
            return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        with _errors_in_one_sentence():
            try:
                return super().invoke(ctx)
            except ModuleNotFoundError as error:
                entry = ctx.meta.get(_ENTRY_IN_USE)
                if entry is None or _top_package(error.name or "") in _EXTRA_OF_PACKAGE:
                    raise  # a module of ours that is missing is a bug, not an extra
                raise Failed(_missing_extra(entry, error)) from error


@click.group(cls=InstalledCommands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(isentrope.__version__, prog_name="isentrope")
def main() -> None:
    """See a policy's entropy collapse coming, name the tokens that cause it, steer the run while it is live."""


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


def _command_of_a_missing_extra(entry: EntryPoint, error: ModuleNotFoundError) -> click.Command:
    """A command that stands in the list and says what to install."""
    sentence = _missing_extra(entry, error)

    def say_so() -> None:
        raise Failed(sentence)

    return click.Command(entry.name, callback=say_so, short_help="(not installed)", help=sentence)


def _missing_extra(entry: EntryPoint, error: ModuleNotFoundError) -> str:
    extra = _EXTRA_OF_PACKAGE.get(_top_package(entry.value), _top_package(entry.value))
    return f"`isentrope {entry.name}` needs the {extra}: pip install 'isentrope[{extra}]' (there is no {error.name})."


def _top_package(dotted: str) -> str:
    return dotted.partition(".")[0]
