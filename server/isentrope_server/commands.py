"""`isentrope up`, `isentrope token` and `isentrope audit`. Heavy imports are inside: `--help` must be fast."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn
from urllib.parse import urlsplit

import click

from isentrope_wire import environment
from isentrope_wire.numbers import printable

if TYPE_CHECKING:
    from isentrope_server.settings import Settings
    from isentrope_server.token_access import TokenAccess

_USAGE = 2


def _fail(message: str, status: int = 1) -> NoReturn:
    click.echo(f"Error: {printable(message)}", err=True)
    sys.exit(status)


@click.command()
@click.option("--host", default=None, help="Address to listen on.  [default: 127.0.0.1]")
@click.option("--http-port", type=click.IntRange(0, 65535), default=None, help="Pages and REST.  [default: 7070]")
@click.option("--grpc-port", type=click.IntRange(0, 65535), default=None, help="Reports.  [default: 7071]")
@click.option("--tls-cert", type=click.Path(), default=None, help="PEM file of the certificate of both ports.")
@click.option("--tls-key", type=click.Path(), default=None, help="PEM file of its private key.")
@click.option("--tls-client-ca", type=click.Path(), default=None, help="Clients must have a certificate of this CA.")
@click.option(
    "--insecure-i-know", is_flag=True, default=None, help="Listen without TLS on addresses that other machines reach."
)
@click.option(
    "--notify",
    multiple=True,
    metavar="URL",
    help="Send alerts there: an Apprise URL, such as slack://...; may be repeated.",
)
@click.option("--public-url", default=None, metavar="URL", help="Address of the pages, for links in notifications.")
def up(notify: tuple[str, ...], **given: Any) -> None:
    """Run the server and the dashboard in one process, until Ctrl-C."""
    from isentrope_server.errors import StartupError
    from isentrope_server.serving import serve

    settings = _settings(notify=notify or None, **given)
    try:
        asyncio.run(serve(settings, announce=partial(_announce, settings)))
    except StartupError as error:
        _fail(str(error), _USAGE)


def _announce(settings: Settings, login_address: str, grpc_port: int) -> None:
    from isentrope_server.store.database import old_library_note

    # Before the address: it must be the last line.
    note = old_library_note() if settings.uses_sqlite else None
    if note is not None:
        click.echo(f"Note: {note}", err=True)
    page = urlsplit(login_address)
    url, target = f"{page.scheme}://{page.netloc}", f"{page.hostname}:{grpc_port}"
    # From elsewhere it is reached by a name that is not known here.
    if page.hostname == "127.0.0.1" and (url, target) != (environment.DEFAULT_URL, environment.DEFAULT_GRPC):
        click.echo(f"For trainers and commands: export ISENTROPE_URL={url} ISENTROPE_GRPC={target}", err=True)
    click.echo(f"Isentrope is up; reports come in on gRPC port {grpc_port}. Log in with:", err=True)
    click.echo(login_address)


@click.group()
def token() -> None:
    """Make, list and revoke access tokens of the server of this home (ISENTROPE_HOME)."""


@token.command("create")
@click.option("--scope", type=click.Choice(["read", "ingest", "control", "admin"]), required=True)
@click.option("--name", default=None, help="Shown as the author of changes.  [default: the scope]")
@click.option("--run", default=None, metavar="NAME", help="With ingest: the only run it reports, by id or name.")
@click.option("--project", default=None, metavar="NAME", help="With ingest: the only project whose runs it reports.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
def create_token(scope: str, name: str | None, run: str | None, project: str | None, as_json: bool) -> None:
    """Make a token and print it, once."""
    if (run or project) and scope != "ingest":
        raise click.UsageError(f"--run and --project bind tokens of scope ingest, not of scope {scope}.")
    with _token_access(makes_database=True) as access:
        created = access.create(scope, name or scope, run=run, project=project)
        place = access.place
    if as_json:
        click.echo(json.dumps(created))
        return
    click.echo(f"A token of {place}:", err=True)
    click.echo(created["token"])


@token.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON array.")
def list_tokens(as_json: bool) -> None:
    """List tokens, without their secrets."""
    with _token_access() as access:
        tokens, place = access.list(), access.place
    if as_json:
        click.echo(json.dumps(tokens))
        return
    # The command uses this home's server, whatever ISENTROPE_URL is.
    click.echo(f"Tokens of {place}:", err=True)
    for entry in tokens:
        click.echo(printable(_token_line(entry)))


@token.command("revoke")
@click.argument("token_id")
def revoke_token(token_id: str) -> None:
    """Revoke a token by its id."""
    with _token_access() as access:
        access.revoke(token_id)
        click.echo(f"Token {printable(token_id)} of {access.place} is revoked.")


@click.group()
def audit() -> None:
    """Show the audit trail of the server of this home (ISENTROPE_HOME), and check that it was not changed."""


@audit.command("list")
@click.option("--limit", type=click.IntRange(1, 500), default=50, show_default=True, help="How many entries at most.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON array.")
def list_audit(limit: int, as_json: bool) -> None:
    """List changes of controls, runs and tokens, newest first."""
    with _token_access() as access:
        entries, place = access.audit(limit), access.place
    if as_json:
        click.echo(json.dumps(entries))
        return
    click.echo(f"Changes of {place}, newest first:", err=True)
    for entry in entries:
        at = datetime.fromtimestamp(float(str(entry["at"])))
        who = f"{entry['actor']} ({entry['token_id']})" if entry["token_id"] else str(entry["actor"])
        click.echo(printable(f"{at:%Y-%m-%d %H:%M:%S}  {entry['action']:<20}  {entry['subject']}  by {who}"))


@audit.command("verify")
@click.option("--head", default=None, metavar="HASH", help="Hash that an earlier verification printed.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
def verify_audit(head: str | None, as_json: bool) -> None:
    """Check every entry of the audit trail; exit status 1 when one is changed, missing or moved."""
    if head is not None and not re.fullmatch("[0-9a-f]{64}", head):
        raise click.UsageError("--head takes a hash as `isentrope audit verify` printed it: 64 hexadecimal digits.")
    with _token_access() as access:
        found, place = access.verify_audit(head), access.place
    if as_json:
        click.echo(json.dumps(found))
    elif found["is_whole"]:
        click.echo(f"The audit trail of {place}:", err=True)
        click.echo(
            f"{found['entries']} {'entry' if found['entries'] == 1 else 'entries'}, all hashes match. Head: {found['head']}"
        )
    if not found["is_whole"]:
        if as_json:
            sys.exit(1)
        _fail(f"{_what_is_wrong(found)} It is the trail of {place}.")


def _what_is_wrong(found: dict[str, object]) -> str:
    if found["broken_at"] is not None:
        return f"Entry {found['broken_at']} of the audit trail, or one before it, was changed, moved or removed."
    if found["is_cut"]:
        return "The audit trail's newest entries were removed, or some were added past them."
    return "The given hash is not part of this audit trail: the trail was rewritten since."


def _token_line(entry: dict[str, Any]) -> str:
    used = entry["last_used_at"]
    return "  ".join(
        words
        for words in (
            str(entry["id"]),
            f"{entry['scope']:<7}",
            "revoked" if entry["revoked_at"] else "active ",
            "never used         " if used is None else f"used {datetime.fromtimestamp(used):%Y-%m-%d %H:%M}",
            str(entry["name"]),
            f"run {entry['run']}" if entry["run"] else "",
            f"project {entry['project']}" if entry["project"] else "",
        )
        if words
    )


def _settings(**given: object) -> Settings:
    from pydantic import ValidationError
    from pydantic_settings import SettingsError

    from isentrope_server.settings import Settings

    try:
        return Settings(**{name: value for name, value in given.items() if value is not None})  # type: ignore[arg-type]
    except ValidationError as error:
        problem = error.errors()[0]
        what = problem["msg"].removeprefix("Value error, ")
        _fail(f"ISENTROPE_{str(problem['loc'][0]).upper()} can't be used: {what}.", _USAGE)
    except SettingsError as error:
        _fail(f"A list among the ISENTROPE_ variables must be a JSON array: {error}.", _USAGE)


@contextmanager
def _token_access(*, makes_database: bool = False) -> Iterator[TokenAccess]:
    from isentrope_server.errors import StartupError
    from isentrope_server.token_access import open_token_access
    from isentrope_wire.errors import IsentropeError

    try:
        yield open_token_access(_settings(), makes_database=makes_database)
    except StartupError as error:
        _fail(str(error), _USAGE)
    except IsentropeError as error:
        _fail(str(error))
