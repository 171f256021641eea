"""Sends alerts to people who are not looking at the pages: by webhook, Slack, mail ..., through the
Apprise library.

A task looks for new alerts every few seconds, so that nothing waits for it while reports are
stored. The database is the queue: an alert is due at a destination until `notified` has its run,
kind, level and step as sent. So each is sent once, also after a restart, and by one of several
servers that share a database. An attempt that fails is repeated twice."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import quote

from isentrope_server.backend import Backend, attempt
from isentrope_server.settings import Settings
from isentrope_server.store.reports import notices
from isentrope_server.store.reports.notices import DueNotice
from isentrope_wire.answers import Destination
from isentrope_wire.reports import ALERT_KINDS, AlertLevel

_log = logging.getLogger(__name__)

_SECONDS_BETWEEN_LOOKS = 2.0
_AT_ONCE = 20
"""Notices a destination gets in one round."""
_SEND_SECONDS = 60.0
"""Longest wait for a destination."""
_TEST_SECONDS = 10.0
"""Longest wait while a person waits for the answer."""
_OLDEST_SECONDS = 6 * 3_600.0
"""An alert of a step recorded earlier is not sent: it may be of a spool that was uploaded much
later."""


async def keep_sending(backend: Backend, url: str) -> None:
    """Send new alerts to a destination, again and again."""
    while True:
        await attempt(send_due(backend, url), what="Notifying")
        await asyncio.sleep(_SECONDS_BETWEEN_LOOKS)


async def send_due(backend: Backend, url: str) -> None:
    """Send the alerts that are due at `url`, an address as Apprise reads it."""
    destination, now = hashlib.sha256(url.encode()).hexdigest()[:32], time.time()
    due = await backend.read(
        lambda connection: notices.due_notices(
            connection, destination, since=now - _OLDEST_SECONDS, now=now, limit=_AT_ONCE
        )
    )
    for notice in due:
        await _send(backend, url, notice, destination)


async def _send(backend: Backend, url: str, notice: DueNotice, destination: str) -> None:
    if not await backend.write(
        lambda t: notices.claim_notice(t.connection, notice, destination, now=time.time()),
        run_id=notice.run_id,
    ):
        return
    kind = "warning"
    if notice.alert.level is AlertLevel.ACT:
        kind = "failure"
    body = body_of(notice, backend.settings.pages_url)
    if await _sent(url, title_of(notice), body, kind):
        await backend.write(
            lambda t: notices.note_sent(t.connection, notice, destination), run_id=notice.run_id
        )


async def send_tests(settings: Settings) -> list[Destination]:
    """Send a word to every destination, and say which took it."""
    title, body = (
        "Isentrope: a test",
        f"Alerts of {settings.pages_url} are sent here.",
    )
    taken = await asyncio.gather(
        *(_sent(url, title, body, "info", seconds=_TEST_SECONDS) for url in settings.notify)
    )
    return [
        replace(one, delivered=took)
        for one, took in zip(destinations(settings), taken, strict=True)
    ]


def destinations(settings: Settings) -> list[Destination]:
    """Where alerts are sent, without the addresses, which may hold a password."""
    return [Destination(service=_service(url), delivered=None) for url in settings.notify]


def _service(url: str) -> str:
    return url.split("://")[0]


async def _sent(
    url: str, title: str, body: str, kind: str, *, seconds: float = _SEND_SECONDS
) -> bool:
    # An extra; the settings check that it is installed.
    from apprise import Apprise, NotifyType  # noqa: PLC0415

    sender = Apprise()
    sender.add(url)
    try:
        async with asyncio.timeout(seconds):
            sent = bool(
                await sender.async_notify(title=title, body=body, notify_type=NotifyType(kind))
            )
    except TimeoutError:
        sent = False
    if not sent:
        _log.warning("The message %r was not taken by %s://...", title, _service(url))
    return sent


def title_of(notice: DueNotice) -> str:
    """The alert in a line."""
    alert = notice.alert
    return (
        f"{alert.level.capitalize()}: {ALERT_KINDS.get(alert.kind, alert.kind)} in"
        f" {notice.run_name}, step {alert.step}"
    )


def body_of(notice: DueNotice, address: str) -> str:
    """The alert in lines: what was found, its cause, the suggested control, and a link to the pages
    at `address`."""
    alert = notice.alert
    lines = [alert.message]
    if alert.cause is not None:
        lines.append(alert.cause.message)
    if alert.kind == "overshoot":
        lines.append(f"Suggested: isentrope control {notice.run_id} --revert")
    elif alert.suggestion is not None:
        lines.append(f"Suggested: isentrope control {notice.run_id} {_options(alert.suggestion)}")
    lines.append(f"{address.rstrip('/')}/runs/{quote(notice.run_id, safe='')}")
    return "\n".join(lines)


def _options(control: Mapping[str, Any]) -> str:
    names = ("method", "mu_low", "mu_high", "scope")
    return " ".join(
        f"--{name.replace('_', '-')} {control[name]}" for name in names if control[name] is not None
    )
