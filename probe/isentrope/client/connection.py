"""One connection to a server's REST API: the token, TLS, pages of lists, and what failures are called."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Any, BinaryIO, Self
from urllib.parse import quote

import httpx

from isentrope.client.credentials import Credentials, advice_on
from isentrope.errors import ConfigurationError
from isentrope_wire import environment
from isentrope_wire.errors import IsentropeError

Json = dict[str, Any]

_TOKEN = re.compile(r"[A-Za-z0-9._~+/=-]+")
_PAGE_ITEMS = 500
_SILENCE_SECONDS = 45.0


class ServerUnreachable(IsentropeError, ConnectionError):
    """No answer, or none in time."""


class NotAllowed(IsentropeError, PermissionError):
    """The token is missing, wrong, or of a scope that doesn't allow this."""


class ScopeTooSmall(NotAllowed):
    """The server knows the token; its scope doesn't allow this."""


class NotFound(IsentropeError, KeyError):
    """The server has no such run or step."""

    def __str__(self) -> str:
        # KeyError would show the sentence in quotation marks.
        return str(self.args[0])


class RequestRefused(IsentropeError, ValueError):
    """The server understood and says no: a control that can't be applied, a parameter out of range."""


class ControlConflict(RequestRefused):
    """Somebody else changed the control since it was last read."""


class ServerFailed(IsentropeError, RuntimeError):
    """The server answered with a failure of its own, or with something that is no Isentrope server's answer."""


class RestConnection:
    """Asks one server, with one token. Usable as a context manager; methods are thread-safe."""

    def __init__(self, url: str | None = None, token: str | None = None, *, timeout_seconds: float = 10.0) -> None:
        """
        Args:
            url: the server's address; None: ISENTROPE_URL.
            token: None: ISENTROPE_TOKEN, or the owner's token of a server with the same home.

        Raises:
            ConfigurationError: no server could have given out such a token, or a certificate file can't be used.
        """
        token = token or environment.token()
        if token and not _TOKEN.fullmatch(token):
            raise ConfigurationError(
                "A token consists of letters, digits and the signs . _ ~ + / = - alone, and this one has others. "
                "Check ISENTROPE_TOKEN, or the file owner-token in ISENTROPE_HOME."
            )
        self.url = (url or environment.url()).rstrip("/")
        self._http = httpx.Client(
            base_url=f"{self.url}/api/v1/",
            headers={"Authorization": f"Bearer {token}"} if token else {},
            timeout=timeout_seconds,
            verify=Credentials.from_environment().ssl_context() if self.url.startswith("https://") else True,
            # The environment names proxies.
            trust_env=not environment.is_on_this_machine(self.url),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Give the connections back."""
        self._http.close()

    def _all(self, path: str) -> list[Json]:
        """The items of a list that comes whole."""
        items: list[Json] = self._json("GET", path)["items"]
        return items

    def _items(self, path: str, params: Mapping[str, object], limit: int | None = None) -> Iterable[Json]:
        """A list's items, page by page; of a limit no more than so many."""
        cursor: str | None = None
        while True:
            size = _PAGE_ITEMS if limit is None else min(limit, _PAGE_ITEMS)
            page = self._json("GET", path, params={**params, "cursor": cursor, "limit": size})
            yield from page["items"]
            cursor = page.get("next_cursor")
            limit = None if limit is None else limit - len(page["items"])
            if cursor is None or (limit is not None and limit <= 0):
                return

    def _download(self, path: str, params: Mapping[str, Any], file: BinaryIO) -> int:
        count = 0
        with self._answering(), self._http.stream("GET", path, params=params) as response:
            if not response.is_success:
                response.read()
                _checked(response, self.url)
            for data in response.iter_bytes():
                count += file.write(data)
        return count

    @contextmanager
    def _stream(self, path: str, params: Mapping[str, Any]) -> Iterator[Iterator[str]]:
        """The lines of an answer without an end."""
        given = {name: value for name, value in params.items() if value is not None}
        # Pings come every 15 s; whatever is silent for longer is gone.
        patience = httpx.Timeout(self._http.timeout.connect, read=_SILENCE_SECONDS)
        with self._answering(), self._http.stream("GET", path, params=given, timeout=patience) as response:
            if not response.is_success:
                response.read()
                _checked(response, self.url)
            yield response.iter_lines()

    def _done(self, verb: str, path: str) -> None:
        """A request whose answer has no body."""
        with self._answering():
            response = self._send(verb, path)
        if response.status_code != httpx.codes.NO_CONTENT:
            _checked(response, self.url)

    def _json(
        self,
        verb: str,
        path: str,
        *,
        params: Mapping[str, Any] | None = None,
        json: object | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Json:
        given = {name: value for name, value in (params or {}).items() if value is not None}
        with self._answering():
            response = self._send(verb, path, params=given, json=json, headers=headers)
        return _checked(response, self.url)

    @contextmanager
    def _answering(self) -> Iterator[None]:
        """
        Raises:
            ServerUnreachable: whatever went wrong on the way to the server or back.
        """
        try:
            yield
        except httpx.UnsupportedProtocol as error:
            raise ServerUnreachable(
                f"{self.url} is no address of a server: it needs http:// or https:// in front, such as http://127.0.0.1:7070."
            ) from error
        except httpx.HTTPError as error:
            advice = advice_on(str(error)) or "Start it with `isentrope up`, or point ISENTROPE_URL at it."
            raise ServerUnreachable(
                f"The server at {self.url} gives no answer ({error or type(error).__name__}). {advice}"
            ) from error
        except httpx.InvalidURL as error:
            raise ServerUnreachable(f"{self.url} is no address of a server ({error}).") from error

    def _send(self, verb: str, path: str, **request: Any) -> httpx.Response:
        try:
            return self._http.request(verb, path, **request)
        except httpx.RemoteProtocolError:
            # A connection kept open across the server's restart: the first use finds it closed.
            return self._http.request(verb, path, **request)


def _checked(response: httpx.Response, url: str) -> Json:
    try:
        body = response.json()
    except ValueError:
        body = None
    if response.is_success and isinstance(body, dict):
        return body
    message = _error_message(body)
    match response.status_code:
        case 401 | 403:
            refusal = ScopeTooSmall if response.status_code == 403 else NotAllowed
            raise refusal(f"The server at {url} refuses the token: {message or 'no reason given'}")
        case 404 if message:
            raise NotFound(message)
        case 412:
            raise ControlConflict(message or "Somebody else changed the control; read it again.")
        case status if 400 <= status < 500 and message:
            raise RequestRefused(message)
    raise ServerFailed(
        f"The server at {url} answered {response.status_code}: {message or 'not an answer of an Isentrope server'}"
    )


def _error_message(body: object) -> str | None:
    match body:
        case {"error": {"message": str(message)}}:
            return message
        case _:
            return None


def segment(identifier: str) -> str:
    """An id as a part of an address."""
    return quote(identifier, safe="")
