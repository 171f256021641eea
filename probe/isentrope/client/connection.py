"""The HTTP connection of a client: the token, TLS, pages of a list, and failures as `ApiError`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from types import NoneType
from typing import Any, Self, TypeVar, cast

import httpx

from isentrope.client.calls import Call
from isentrope.client.credentials import advice_on, bearer_of, ssl_context
from isentrope.client.proxies import proxy_of
from isentrope_wire import environment
from isentrope_wire.answers import ErrorBody, Page
from isentrope_wire.errors import IsentropeError
from isentrope_wire.numbers import read

_A = TypeVar("_A")

_PAGE_ITEMS = 500
_EXPORT_SECONDS = 600.0


class ApiError(IsentropeError):
    """A request to the server failed. The message is the server's own where it sent one."""

    def __init__(self, message: str, status: int | None = None, code: str = "") -> None:
        """`status` is the HTTP status of the answer, None: there was none; `code` that of the
        server's error body, such as `not_found`, or `unreachable`."""
        super().__init__(message)
        self.status = status
        self.code = code


class ControlConflict(ApiError):
    """The control changed after the version that the request builds on."""


class _Unreachable(ApiError, ConnectionError):
    """There was no answer, or none in time. Users catch it as ApiError or as ConnectionError."""


class Connection:
    """Sends calls to one server with one token. Usable as a context manager; methods are
    thread-safe."""

    def __init__(
        self, url: str | None = None, token: str | None = None, *, timeout_seconds: float = 10.0
    ) -> None:
        """
        Args:
            url: The server's address; None: ISENTROPE_URL.
            token: None: ISENTROPE_TOKEN, or the owner's token of a server with the same home.
            timeout_seconds: The longest wait for a part of an answer.

        Raises:
            ConfigurationError: The token has characters that no token has, or a certificate file
                or the environment's proxy can't be used.
            ApiError: The address is none.
        """
        bearer = bearer_of(token or environment.token())
        self.url = (url or environment.url()).strip().rstrip("/")
        with _failures(self.url):
            self._http = httpx.Client(
                headers={} if bearer is None else {"Authorization": bearer},
                **way_to(self.url, timeout_seconds),
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

    def ask(self, call: Call[_A]) -> _A:
        """Send one call.

        Raises:
            ApiError: There was no answer, or it is an error.
        """
        with _failures(self.url):
            try:
                response = self._http.request(**_request(call))
            except httpx.RemoteProtocolError:
                # A connection kept open across the server's restart: the first use finds it closed.
                response = self._http.request(**_request(call))
        return _answer(call, response, self.url)

    def items(self, call: Call[Page[_A]], limit: int | None = None) -> Iterator[_A]:
        """The items of a list, page by page; with a limit no more than that."""
        return islice(self._items(call, limit), limit)

    def _items(self, call: Call[Page[_A]], limit: int | None) -> Iterator[_A]:
        next_call: Call[Page[_A]] | None = _first_page(call, limit)
        while next_call is not None:
            page = self.ask(next_call)
            yield from page.items
            next_call = _next_page(next_call, page)

    @contextmanager
    def _stream(self, call: Call[Any]) -> Iterator[httpx.Response]:
        """An answer that is read as it arrives."""
        # Its turn may come later: a server writes two exports at a time.
        timeout = httpx.Timeout(self._http.timeout.connect, read=_EXPORT_SECONDS)
        with _failures(self.url), self._http.stream(**_request(call), timeout=timeout) as response:
            if not response.is_success:
                response.read()
                raise _error(response, self.url)
            yield response


def way_to(url: str, timeout_seconds: float = 10.0) -> dict[str, Any]:
    """Arguments of an httpx client that sends calls to the server at `url`: address, wait, trusted
    CAs, proxy.
    ConfigurationError: a certificate file or the proxy can't be used."""
    proxy = proxy_of(url)
    return {
        "base_url": f"{url}/api/v1/",
        "timeout": timeout_seconds,
        "verify": ssl_context() if url.startswith("https://") else True,
        # Else httpx reads NO_PROXY itself, without ranges, and fails where it has one of IPv6.
        "trust_env": False,
        "proxy": proxy and proxy.address,
    }


class AsyncClient:
    """Sends the calls of `isentrope.client.calls` over an asynchronous HTTP client of the caller's.

    runs = await AsyncClient(httpx.AsyncClient(base_url="http://127.0.0.1:7070/api/v1/",
    headers=...)).ask(calls.runs())"""

    def __init__(self, http: httpx.AsyncClient, authorization: str | None = None) -> None:
        """`authorization` is the header of each call; None: the HTTP client's own."""
        self._http = http
        if authorization is None:
            self._headers = {}
        else:
            self._headers = {"Authorization": authorization}

    async def ask(self, call: Call[_A]) -> _A:
        """As `Connection.ask`."""
        url = str(self._http.base_url)
        with _failures(url):
            response = await self._http.request(**_request(call, self._headers))
        return _answer(call, response, url)

    async def newest(self, call: Call[Page[_A]], limit: int) -> list[_A]:
        """The first items of a list, at most a page of them."""
        return (await self.ask(_first_page(call, limit))).items

    async def every(self, call: Call[Page[_A]]) -> list[_A]:
        """All items of a list, page by page."""
        found: list[_A] = []
        next_call: Call[Page[_A]] | None = _first_page(call, None)
        while next_call is not None:
            page = await self.ask(next_call)
            found += page.items
            next_call = _next_page(next_call, page)
        return found


def _request(call: Call[Any], headers: Mapping[str, str] | None = None) -> dict[str, Any]:
    given = {name: value for name, value in call.query.items() if value is not None}
    query = {
        name: value if isinstance(value, str | int | float) else list(value)
        for name, value in given.items()
    }
    body = {}
    if call.body is not None:
        body = {"json": call.body}
    return {
        "method": call.verb,
        "url": call.path,
        "params": query,
        "headers": {**call.headers, **(headers or {})},
        **body,
    }


def _first_page(call: Call[Page[_A]], limit: int | None) -> Call[Page[_A]]:
    if limit is None:
        size = _PAGE_ITEMS
    else:
        size = min(limit, _PAGE_ITEMS)
    return replace(call, query={**call.query, "limit": size})


def _next_page(call: Call[Page[_A]], page: Page[_A]) -> Call[Page[_A]] | None:
    if page.next_cursor is None:
        return None
    return replace(call, query={**call.query, "cursor": page.next_cursor})


@contextmanager
def _failures(url: str) -> Iterator[None]:
    """Turns every failure on the way to the server and back into an `ApiError`."""
    try:
        yield
    except (httpx.UnsupportedProtocol, httpx.InvalidURL) as error:
        raise _Unreachable(
            f"{url} is no address of a server ({error}): it needs http:// or https:// in front,"
            " such as http://127.0.0.1:7070.",
            code="unreachable",
        ) from error
    except httpx.HTTPError as error:
        proxy = proxy_of(url)
        advice = advice_on(str(error))
        if not advice and proxy is None:
            advice = "Start it with `isentrope up`, or point ISENTROPE_URL at it."
        elif not advice:
            advice = (
                f"The proxy {proxy} is on the way: name the server's host in NO_PROXY "
                "if it is to be asked directly."
            )
        raise _Unreachable(
            f"The server at {url} gives no answer ({str(error) or type(error).__name__}). {advice}",
            code="unreachable",
        ) from error


def _answer(call: Call[_A], response: httpx.Response, url: str) -> _A:
    if not response.is_success:
        raise _error(response, url)
    if call.answer is NoneType:
        return cast(_A, None)
    try:
        return read(call.answer, response.json())
    except ValueError as error:
        raise _unexpected(response, url) from error


def _error(response: httpx.Response, url: str) -> ApiError:
    status = response.status_code
    try:
        detail = read(ErrorBody, response.json()).error
    except ValueError:
        return _unexpected(response, url)
    return (ControlConflict if status == httpx.codes.PRECONDITION_FAILED else ApiError)(
        detail.message, status, detail.code
    )


def _unexpected(response: httpx.Response, url: str) -> ApiError:
    """An answer that no Isentrope server gave, by its form."""
    status, proxy = response.status_code, proxy_of(url)
    came = f"{url} answered {status} {response.reason_phrase}, not as an Isentrope server does"
    message = f"{came}: another program is there, or a proxy in front of it answered."
    if proxy is not None:
        message = (
            f"{came}. The proxy {proxy} is on the way and may have answered: "
            "name the server's host in NO_PROXY if it is to be asked directly."
        )
    return ApiError(message, status, "unexpected_answer")
