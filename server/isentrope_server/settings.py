"""The server's settings, from `ISENTROPE_*` variables or the command line."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from pydantic import Field, ValidationInfo, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict
from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from isentrope_server.store.database import SQLITE, add_driver
from isentrope_wire import environment
from isentrope_wire.errors import ConfigurationError, install_command

_SEGMENT = re.compile(r"(?!_dash)[\w.~@+%-]+", re.ASCII)
OWN_PATHS = frozenset(
    {
        *("access", "api", "assets", "compare", "docs", "healthz", "logout", "metrics", "news"),
        *("openapi.json", "readyz", "runs", "start"),
    }
)
"""What the server's own addresses begin with, besides those of Dash."""


def _webhook_address(url: str) -> str:
    """A plain address as Apprise reads it: POST of JSON, with the query that it has; other texts
    as they are."""
    scheme, _, rest = url.partition("://")
    if scheme.lower() not in ("http", "https"):
        return url
    place, _, query = rest.partition("?")
    address = f"json{scheme[4:].lower()}://{place}"
    if not query:
        return address
    pairs = [(f"-{name}", value) for name, value in parse_qsl(query, keep_blank_values=True)]
    return f"{address}?{urlencode(pairs)}"


class Settings(BaseSettings):
    """One server's settings.

    Every field can be set as `ISENTROPE_<FIELD>`, or, because more people can read the environment,
    as the content of a file `isentrope_<field>` in the folder ISENTROPE_SECRETS_DIR.
    """

    model_config = SettingsConfigDict(
        env_prefix="ISENTROPE_",
        env_ignore_empty=True,
        extra="ignore",
        frozen=True,
        # A secret that was made by `echo` ends in a line break.
        str_strip_whitespace=True,
    )

    home: Path = Field(default_factory=environment.home)
    """Database, owner's token, and the lock against a second server."""
    database_url: str | None = None
    """SQLAlchemy URL; None: SQLite in the home."""
    token: str | None = Field(
        default=None, repr=False, max_length=512, pattern=r"^[A-Za-z0-9._~+/=-]+$"
    )
    """Becomes the owner's token at the first start; later starts keep the token of the home."""
    host: str = "127.0.0.1"
    http_port: int = Field(default=7070, ge=0, le=65535)
    grpc_port: int = Field(default=7071, ge=0, le=65535)
    tls_cert: Path | None = None
    """PEM file of the certificate of both ports, with those between it and its CA; None: no TLS."""
    tls_key: Path | None = None
    """PEM file of its private key."""
    insecure_i_know: bool = False
    """Whether to listen without TLS on addresses that other machines reach."""
    local_http_port: int = Field(default=0, ge=0, le=65535)
    """Only with TLS: a further port on 127.0.0.1 without TLS, through which pages and `isentrope
    token` reach the server. It needs tokens like the others. 0: any free port."""
    allowed_hosts: tuple[str, ...] = ()
    """Accepted names in a Host header, besides localhost, the machine's name and IP addresses."""
    metrics_open: bool = False
    """Whether `/metrics` needs no token, for a scraper that can't send one."""
    log_json: bool = False
    """Whether a line of the log is a JSON object: time (UTC), level, logger, message."""
    notify: Annotated[tuple[str, ...], NoDecode] = Field(default=(), repr=False)
    """Apprise URLs (webhook, Slack, mail ...) to which every new alert is sent; one text separates
    them by commas."""
    root_path: str = ""
    """The path below which a proxy shows pages and API, such as `/isentrope`; empty: none."""
    public_url: str | None = None
    """Address of the pages for links in notifications, such as that of a proxy; None: as a browser
    on this machine. Its host may be named in a Host header."""
    series_per_run: int = Field(default=10_000, ge=1)
    """How many metrics and histograms a run may have, besides the promised ones."""
    dashboard: bool = True
    """Whether the dashboard's pages are put in front of the API, where the dashboard is
    installed."""

    silent_after_seconds: float = Field(default=60.0, gt=0)
    """A running run is shown as silent when neither a report nor its connected side process was
    heard for this long, and for five of its steps."""
    control_ttl_seconds: int = Field(default=600, ge=1)
    """Time to live of a control that names none: every change has one. At least three steps."""
    control_answer_grace_seconds: float = Field(default=30.0, ge=0)
    """How long after its expiry the server waits for the outcome of a delivered control, before it
    becomes EXPIRED. At least two steps."""
    control_rank_grace_seconds: float = Field(default=10.0, ge=0)
    """How long after the first rank's outcome the server waits for the other ranks."""
    retention_days: float | None = Field(default=None, gt=0)
    """Runs without news for this long are deleted; None: kept for ever. A run that still reports is
    always kept."""
    retention_runs: int | None = Field(default=None, ge=1)
    """Number of newest runs to keep; older ones are deleted. None: all are kept."""
    housekeeping_interval_seconds: float = Field(default=2.0, gt=0)
    """Interval of packing reports, removing rows of deleted runs, returning space, and renewing
    digests of runs."""
    sweep_interval_seconds: float = Field(default=1.0, gt=0)
    """Interval of ending expired controls."""
    heartbeat_seconds: float = Field(default=5.0, gt=0)
    """Time without a message on a Watch stream after which a heartbeat is sent."""

    def __init__(self, **values: Any) -> None:
        folder = os.environ.get("ISENTROPE_SECRETS_DIR") or None
        if folder is not None and not Path(folder).is_dir():
            raise ConfigurationError(f"ISENTROPE_SECRETS_DIR names {folder}, which is no folder.")
        super().__init__(_secrets_dir=folder, **values)

    @field_validator("http_port", "grpc_port", mode="before")
    @classmethod
    def _not_of_a_service(cls, port: object, field: ValidationInfo) -> object:
        # Kubernetes sets ISENTROPE_GRPC_PORT to tcp://10.0.0.1:7071 for a Service isentrope-grpc.
        if isinstance(port, str) and "://" in port:
            return cls.model_fields[field.field_name or ""].default
        return port

    @field_validator("home")
    @classmethod
    def _expanded(cls, home: Path) -> Path:
        return home.expanduser()

    @field_validator("root_path")
    @classmethod
    def _quoted_path(cls, root_path: str) -> str:
        segments = [segment for segment in root_path.strip().split("/") if segment]
        if any(segment in (".", "..") or not _SEGMENT.fullmatch(segment) for segment in segments):
            raise ValueError(
                f"expected a path as a browser shows it, such as /isentrope, got {root_path!r}"
            )
        if segments and segments[0] in OWN_PATHS:
            # Below a proxy that takes its path off, the rest could not be told from it.
            raise ValueError(
                f"a path of the server's own begins with /{segments[0]}: choose another"
            )
        return "".join(f"/{segment}" for segment in segments)

    @field_validator("public_url")
    @classmethod
    def _is_an_address(cls, public_url: str | None) -> str | None:
        if public_url is not None and not re.fullmatch(
            r"https?://[^\s/?#]*[^\s/?#:](:\d+)?(/[^\s?#]*)?", public_url, re.IGNORECASE
        ):
            raise ValueError(
                "expected an address of pages, such as https://isentrope.example, got"
                f" {public_url!r}"
            )
        return public_url

    @field_validator("notify", mode="before")
    @classmethod
    def _separated(cls, notify: object) -> object:
        if isinstance(notify, str):
            return tuple(filter(None, re.split(r"[,\s]+(?=[\w+.-]+://)|,\s*$", notify.strip())))
        return notify

    @field_validator("notify")
    @classmethod
    def _can_be_notified(cls, notify: tuple[str, ...]) -> tuple[str, ...]:
        if not notify:
            return notify
        try:
            from apprise import Apprise  # noqa: PLC0415  (an extra, needed only here)
        except ImportError:
            raise ValueError(f"it needs the extra notify: {install_command('notify')}") from None
        addresses = []
        for url in notify:
            address = url
            if not Apprise().add(url):
                address = _webhook_address(url)
            if not Apprise().add(address):
                # The message must not contain the rest, which may hold a password.
                kind = "text"
                if "://" in url:
                    kind = url.split("://")[0]
                raise ValueError(
                    "expected addresses as Apprise reads them, or of a webhook, e.g."
                    f" https://host/path, got {kind[:40]!r}"
                )
            addresses.append(address)
        return tuple(addresses)

    @field_validator("database_url")
    @classmethod
    def _names_a_database(cls, database_url: str | None) -> str | None:
        if database_url is not None:
            try:
                url = make_url(database_url)
                add_driver(url).get_dialect().import_dbapi()
            except (
                ArgumentError,
                ImportError,
            ):  # ImportError: unknown dialect, or driver not installed
                # The message must not contain the text, which may hold a password.
                raise ValueError(
                    "expected an SQLAlchemy URL of a database with an installed driver, e.g."
                    " sqlite:////data/isentrope.db or postgresql://user:password@host/isentrope"
                    f" ({install_command('postgres')})"
                ) from None
            if url.get_backend_name() == SQLITE and url.database in (None, "", ":memory:"):
                raise ValueError("SQLite needs a file, e.g. sqlite:////data/isentrope.db")
        return database_url

    @property
    def owner_token_file(self) -> Path:
        """Where local clients with the same home find the owner's token."""
        return self.home / environment.owner_token_file().name

    @property
    def resolved_database_url(self) -> str:
        # The path may hold what means something in a URL.
        return (
            self.database_url
            or URL.create(SQLITE, database=str(self.database_file)).render_as_string()
        )

    @property
    def database_file(self) -> Path:
        """The database without `database_url`."""
        return self.home / "isentrope.db"

    @property
    def has_database(self) -> bool:
        """Whether the database exists; always true for a database server."""
        url = make_url(self.resolved_database_url)
        return url.get_backend_name() != SQLITE or (
            url.database is not None and Path(url.database).exists()
        )

    @property
    def database_name(self) -> str:
        """The database's URL without its password, for messages."""
        return make_url(self.resolved_database_url).render_as_string(hide_password=True)

    @property
    def has_tls(self) -> bool:
        return self.tls_cert is not None

    @property
    def http_url(self) -> str:
        """The address of the pages for a browser on this machine."""
        return f"{self._origin}{self.root_path}"

    @property
    def _origin(self) -> str:
        scheme = "http"
        if self.has_tls:
            scheme = "https"
        host = self.host
        if self.host in ("0.0.0.0", "::", ""):
            host = "127.0.0.1"
        if ":" in host:
            return f"{scheme}://[{host}]:{self.http_port}"
        return f"{scheme}://{host}:{self.http_port}"

    @property
    def pages_url(self) -> str:
        """The address of the pages for links that are read elsewhere."""
        if self.public_url is None:
            return self.http_url
        url = self.public_url.rstrip("/")
        if not urlsplit(url).path:
            return f"{url}{self.root_path}"
        return url

    @property
    def public_host(self) -> str:
        """The host that `public_url` names; empty without one."""
        return urlsplit(self.public_url or "").hostname or ""

    @property
    def local_url(self) -> str:
        """The address for the server's own programs on this machine, without TLS."""
        if self.has_tls:
            return f"http://127.0.0.1:{self.local_http_port}{self.root_path}"
        return self.http_url

    @property
    def local_grpc(self) -> str:
        """Where programs on this machine report; empty with TLS, for which they need a name and a
        CA."""
        if self.has_tls:
            return ""
        return f"{self._origin.removeprefix('http://').rpartition(':')[0]}:{self.grpc_port}"
