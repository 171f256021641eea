"""`isentrope up`, `token`, `audit`, `backup` and `restore`. Heavy imports are inside: `--help` must
be fast.

Tokens are made through the REST API: of the running server of the home, because SQLite may have one
writing process; where none runs, of one in this process, on the home's database and without ports.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

import click

from isentrope_wire import environment
from isentrope_wire.errors import ConfigurationError, IsentropeError
from isentrope_wire.numbers import printable

if TYPE_CHECKING:
    import httpx

    from isentrope_server.settings import Settings


@click.command()
@click.option("--host", help="Address to listen on.  [default: 127.0.0.1]")
@click.option("--http-port", type=click.IntRange(0, 65535), help="Pages and REST.  [default: 7070]")
@click.option("--grpc-port", type=click.IntRange(0, 65535), help="Reports.  [default: 7071]")
@click.option("--tls-cert", type=click.Path(), help="PEM file of the certificate of both ports.")
@click.option("--tls-key", type=click.Path(), help="PEM file of its private key.")
@click.option(
    "--insecure-i-know",
    is_flag=True,
    default=None,
    help="Listen without TLS on addresses that other machines reach.",
)
@click.option(
    "--notify",
    multiple=True,
    metavar="URL",
    help="Send alerts there: an Apprise URL, such as slack://...; may be repeated.",
)
@click.option(
    "--public-url", metavar="URL", help="Address of the pages, for links in notifications."
)
@click.option(
    "--root-path",
    metavar="PREFIX",
    help="Path below which a proxy shows the pages, such as /isentrope.",
)
def up(notify: tuple[str, ...], **given: Any) -> None:
    """Run the server and the dashboard in one process, until Ctrl-C."""
    from isentrope_server.serving import log_to_stderr, serve

    settings = _settings(notify=notify or None, **given)
    log_to_stderr(as_json=settings.log_json)
    asyncio.run(serve(settings, announce=partial(_announce, settings)))


def _announce(settings: Settings, login_address: str, grpc_port: int) -> None:
    page = urlsplit(login_address)
    url, target = login_address.partition("/?")[0], f"{page.hostname}:{grpc_port}"
    # From elsewhere it is reached by a name that is not known here.
    if page.hostname == "127.0.0.1" and (url, target) != (
        environment.DEFAULT_URL,
        environment.DEFAULT_GRPC,
    ):
        click.echo(
            f"For trainers and commands: export ISENTROPE_URL={url} ISENTROPE_GRPC={target}",
            err=True,
        )
    # Elsewhere it would stay in a journal or a container's log: it holds the owner's token.
    is_shown = sys.stdout.isatty()
    if is_shown:
        log_in = "Log in with:"
    else:
        log_in = f"Log in with the token in {settings.owner_token_file}:"
    click.echo(f"Isentrope is up; reports come in on gRPC port {grpc_port}. {log_in}", err=True)
    click.echo(login_address if is_shown else url)


@click.group()
def token() -> None:
    """Make, list and revoke access tokens of the server of this home (ISENTROPE_HOME)."""


@token.command("create")
@click.option("--scope", type=click.Choice(["read", "ingest", "control", "admin"]), required=True)
@click.option("--name", help="Shown as the author of changes.  [default: the scope]")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
def create_token(scope: str, name: str | None, as_json: bool) -> None:
    """Make a token and print it, once."""
    created, place = _ask(
        "POST", "access-tokens", {"scope": scope, "name": name}, makes_database=True
    )
    if as_json:
        click.echo(json.dumps(created))
        return
    click.echo(f"A token of {place}:", err=True)
    click.echo(created["token"])


@token.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON array.")
def list_tokens(as_json: bool) -> None:
    """List tokens, without their secrets."""
    found, place = _ask("GET", "access-tokens")
    if as_json:
        click.echo(json.dumps(found["items"]))
        return
    # The command uses this home's server and ignores ISENTROPE_URL.
    click.echo(f"Tokens of {place}:", err=True)
    for entry in found["items"]:
        used = entry["last_used_at"]
        words = (
            entry["id"],
            f"{entry['scope']:<7}",
            "revoked" if entry["revoked_at"] else "active ",
            (
                "never used         "
                if used is None
                else f"used {datetime.fromtimestamp(used):%Y-%m-%d %H:%M}"
            ),
            entry["name"],
        )
        click.echo(printable("  ".join(words)))


@token.command("revoke")
@click.argument("token_id")
def revoke_token(token_id: str) -> None:
    """Revoke a token by its id."""
    _, place = _ask("DELETE", f"access-tokens/{quote(token_id, safe='')}")
    click.echo(f"Token {printable(token_id)} of {place} is revoked.")


@click.command()
@click.option(
    "--limit",
    type=click.IntRange(1, 500),
    default=50,
    show_default=True,
    help="How many entries at most.",
)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON array.")
def audit(limit: int, as_json: bool) -> None:
    """List changes of controls, runs and tokens of the server of this home (ISENTROPE_HOME), newest
    first."""
    found, place = _ask("GET", f"audit?limit={limit}")
    if as_json:
        click.echo(json.dumps(found["items"]))
        return
    click.echo(f"Changes of {place}, newest first:", err=True)
    for entry in found["items"]:
        at = datetime.fromtimestamp(entry["at"])
        if entry["token_id"]:
            who = f"{entry['actor']} ({entry['token_id']})"
        else:
            who = entry["actor"]
        click.echo(
            printable(
                f"{at:%Y-%m-%d %H:%M:%S}  {entry['action']:<20}  {entry['subject']}  by {who}"
            )
        )


@click.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
def backup(file: Path) -> None:
    """Copy the database of this home (ISENTROPE_HOME) to a new FILE, also while its server runs.

    Of SQLite; a PostgreSQL is backed up with pg_dump.
    """
    from isentrope_server.store.backups import back_up

    database = _sqlite_file(_settings())
    if not database.exists():
        raise IsentropeError(
            f"There is no database {database} to back up. Set ISENTROPE_HOME to the server's home."
        )
    size = back_up(database, file)
    click.echo(f"{database} was copied to {file}: {size / 1e6:.1f} MB.")


@click.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
def restore(file: Path) -> None:
    """Put a backup in the place of the database of this home (ISENTROPE_HOME), whose server must
    not run.

    The database that was there is kept under another name.
    """
    from isentrope_server.home import locked_database, locked_home, running_server_url
    from isentrope_server.store import backups

    settings = _settings()
    if (url := running_server_url(settings.home)) is not None:
        raise IsentropeError(
            f"The server at {url} uses the home {settings.home}. Stop it, then restore; trainers"
            " keep their reports."
        )
    database = _sqlite_file(settings)
    with locked_home(settings.home, settings.local_url), locked_database(database):
        restored = backups.restore(file, database)
    at = restored.newest_report_at
    if at is None:
        until = "none"
    else:
        until = f"{datetime.fromtimestamp(at):%Y-%m-%d %H:%M:%S}"
    click.echo(
        f"{file} is the database now. Its newest report: {until}; later ones are missing where no"
        " trainer has them."
    )
    click.echo(
        "Tokens that were revoked after it are active again: `isentrope token list`, `isentrope"
        " token revoke ID`."
    )
    if restored.earlier is not None:
        click.echo(f"The database that was there: {restored.earlier}")


def _sqlite_file(settings: Settings) -> Path:
    from isentrope_server.store.database import Database

    database = Database(settings.resolved_database_url)
    database.close()
    if database.file is None:
        raise IsentropeError(
            f"{settings.database_name} is no SQLite file. Use its own tools: pg_dump and pg_restore"
            " (docs/backup.md)."
        )
    return database.file


def _ask(
    method: str,
    path: str,
    body: Mapping[str, object] | None = None,
    *,
    makes_database: bool = False,
) -> tuple[Any, str]:
    """Ask the API of this home, below `/api/v1/`, as its owner; return the JSON, and which server
    or database answered."""
    from isentrope_server.home import running_server_url

    settings = _settings()
    url = running_server_url(settings.home)
    if url is None:
        _check_database(settings, makes_database=makes_database)
        place = f"any server that starts with the database {settings.database_name}"
    else:
        place = f"the server at {url}, whose home is {settings.home}"
    answer = asyncio.run(_answer(settings, url, method, path, body))
    if answer.is_error:
        raise IsentropeError(answer.json()["error"]["message"])
    return answer.json() if answer.content else None, place


async def _answer(
    settings: Settings, url: str | None, method: str, path: str, body: Mapping[str, object] | None
) -> httpx.Response:
    import httpx

    from isentrope_server.app import create_app
    from isentrope_server.backend import open_backend

    async def send(
        address: str, secret: str, transport: httpx.AsyncBaseTransport | None = None
    ) -> httpx.Response:
        headers = {"Authorization": f"Bearer {secret}"}
        async with httpx.AsyncClient(
            transport=transport, headers=headers, trust_env=False, timeout=30
        ) as client:
            return await client.request(method, f"{address}/api/v1/{path}", json=body)

    try:
        if url is not None:
            return await send(url, settings.owner_token_file.read_text(encoding="utf-8").strip())
        async with open_backend(settings) as backend:
            app = create_app(settings.model_copy(update={"dashboard": False}))
            app.state.backend = backend
            return await send("http://localhost", backend.owner_token, httpx.ASGITransport(app))
    except (OSError, httpx.HTTPError) as error:
        raise IsentropeError(
            f"The server of the home {settings.home} can't be asked: {error}."
        ) from error


def _check_database(settings: Settings, *, makes_database: bool) -> None:
    meant = environment.url()
    is_here = environment.is_on_this_machine(meant)
    if settings.has_database or (makes_database and is_here):
        return
    advice = f"Tokens of {meant} are made where that server runs, with its ISENTROPE_HOME."
    if is_here:
        advice = "Set ISENTROPE_HOME to the server's home."
    raise IsentropeError(
        f"There is no database at {settings.database_name}, and no server runs with the home"
        f" {settings.home}. {advice}"
    )


def _settings(**given: object) -> Settings:
    from pydantic import ValidationError
    from pydantic_settings import SettingsError

    from isentrope_server.settings import Settings

    try:
        return Settings(**{name: value for name, value in given.items() if value is not None})
    except ValidationError as error:
        problem = error.errors()[0]
        what, name = problem["msg"].removeprefix("Value error, "), str(problem["loc"][0])
        typed = f"ISENTROPE_{name.upper()}"
        if given.get(name) is not None:
            typed = f"--{name.replace('_', '-')}"
        raise ConfigurationError(f"{typed} can't be used: {what}.") from error
    except SettingsError as error:
        raise ConfigurationError(
            f"A list among the ISENTROPE_ variables must be a JSON array: {error}."
        ) from error
