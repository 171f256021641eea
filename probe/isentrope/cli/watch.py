"""The view of `isentrope watch RUN`: what is read from the server, the numbers shown, the frame drawn of them, the loop.

`numbers_of` and `frame` are pure. `RunReader` asks the server for what is new, `watch_run` prints one frame, or draws frames
until `q` is pressed and pushes the suggested control where a person confirms it.
"""

from __future__ import annotations

import math
import os
import select
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

import plotext
from rich.columns import Columns
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from isentrope.cli.printing import age_in_words, control_in_words, step_in_words
from isentrope.client.client import Client
from isentrope.client.connection import ApiError, ControlConflict
from isentrope_wire.answers import Alert, Gap, RunDetail, SeriesAnswer, SeriesColumns, Status
from isentrope_wire.control import Control
from isentrope_wire.control_answers import RunControl, State
from isentrope_wire.metrics import (
    CLIP_FRACTION,
    ENTROPY_MEAN,
    ENTROPY_OBSERVED_CHANGE,
    ENTROPY_PREDICTED_CHANGE,
    ENTROPY_SHARE_LOST,
    HOLD_TARGET,
    REWARD_MEAN,
    EarlyLevel,
)
from isentrope_wire.numbers import printable
from isentrope_wire.reports import AlertLevel

Series = Mapping[str, Mapping[int, float]]
"""Metric -> step -> value."""

_CHARTED = (ENTROPY_MEAN, HOLD_TARGET, ENTROPY_PREDICTED_CHANGE, ENTROPY_OBSERVED_CHANGE)
_POINTS = 300
"""Of each series, at first; a terminal has no more columns to show. Three times as many are read again, reduced."""
_ALERTS = 100
"""The newest ones, among which the newest of a collapse or an explosion is looked for."""
_REFRESH_SECONDS = 1.0
_STEPS_OF_EARLY_LEVEL = 50
"""The early level is read from this many steps after the first: not every step need have measured the entropy."""


class Health(StrEnum):
    """What the health line says."""

    NO_DATA = "No data yet"
    HEALTHY = "Healthy"
    WATCH = "Watch"
    ACT = "Act"


_STYLES = {Health.NO_DATA: "dim", Health.HEALTHY: "green", Health.WATCH: "yellow", Health.ACT: "bold red"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What the server answered about a run."""

    run: RunDetail
    latest: Mapping[str, float] = field(default_factory=dict)
    """The newest value of each metric."""
    alerts: Sequence[Alert] = ()
    """Newest first."""
    gaps: Sequence[Gap] = ()
    early_level: float | None = None
    """Of the entropy, in nats."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbers:
    """What a frame shows. Entropies in nats, changes in nats a step, shares in [0, 1]; None: not measured."""

    run: str
    name: str
    status: Status
    error: str
    """Of a failed run."""
    step: str
    """The newest step, with the planned ones where they are known."""
    last_report_at: float | None
    health: Health
    message: str
    """Why the health is what it is."""
    cause: str
    suggestion: dict[str, Any] | None
    """The control that would stop it, where the newest control does not ask for it already."""
    share_lost: float | None
    entropy: float | None
    early_level: float | None
    predicted_change: float | None
    observed_change: float | None
    reward: float | None
    clip_fraction: float | None
    control: RunControl
    lost_records: int


def numbers_of(look: Look) -> Numbers:
    """The numbers of a frame."""
    run, latest = look.run, look.latest
    alert = next((one for one in look.alerts if one.kind in ("collapse", "explosion")), None)
    health, message = _health(run, latest.get(ENTROPY_MEAN), alert)
    suggestion = alert.suggestion if alert else None
    if suggestion is not None and _is_requested(Control.from_document(suggestion), run.control):
        suggestion = None
    return Numbers(
        run=run.id,
        name=run.name,
        status=run.status,
        error=run.error,
        step=step_in_words(run),
        last_report_at=run.last_report_at,
        health=health,
        message=message,
        cause=alert.cause.message if alert and alert.cause else "",
        suggestion=suggestion,
        share_lost=latest.get(ENTROPY_SHARE_LOST),
        entropy=latest.get(ENTROPY_MEAN),
        early_level=look.early_level,
        predicted_change=latest.get(ENTROPY_PREDICTED_CHANGE),
        observed_change=latest.get(ENTROPY_OBSERVED_CHANGE),
        reward=latest.get(REWARD_MEAN),
        clip_fraction=latest.get(CLIP_FRACTION),
        control=run.control,
        lost_records=sum(gap.last_seq - gap.first_seq + 1 for gap in look.gaps),
    )


def _health(run: RunDetail, entropy: float | None, alert: Alert | None) -> tuple[Health, str]:
    if run.step is None:
        return Health.NO_DATA, "The run has not reported a step so far."
    if alert is not None:
        health = Health.ACT if alert.level == AlertLevel.ACT else Health.WATCH
        return health, f"{alert.message} (step {alert.step})"
    if entropy is not None and not math.isfinite(entropy):
        return Health.WATCH, f"The entropy of the newest step is {_number(entropy)}."
    if run.status == Status.SILENT:
        return Health.WATCH, "The run is silent: its process is frozen, ended or cut off."
    return Health.HEALTHY, "No collapse and no explosion so far."


def _is_requested(control: Control, newest: RunControl) -> bool:
    same = {**control.to_document(), "reason": ""} == {**newest.control.to_document(), "reason": ""}
    return same and newest.state not in (State.REJECTED, State.EXPIRED)


def frame(numbers: Numbers, series: Series, *, width: int, height: int | None, note: str = "") -> RenderableType:
    """One picture of a run.

    Args:
        numbers: what the texts show.
        series: what the charts show: the metrics of `_CHARTED`, those that there are.
        width: of the terminal, in characters; below 100 the entropy alone is drawn.
        height: of the terminal, in lines; the charts take what the texts leave. None: of no terminal.
        note: the last lines: the keys, a question, an answer, that the server is lost.
    """
    style = _STYLES[numbers.health]
    health = Text.assemble((f"{numbers.health}  ", style), printable(numbers.message))
    for name, text in (("Cause", printable(numbers.cause)), ("Suggested", _suggested(numbers.suggestion))):
        if text:
            health.append(f"\n{name}: ", style="bold").append(text)
    title = Text(printable(f"{numbers.name}  {numbers.run}"))
    texts: list[RenderableType] = [Panel(health, title=title, title_align="left", border_style=style), _facts(numbers)]
    below = [Text("\n".join(map(printable, note.split("\n"))), style="bold")] if note else []
    taken = sum(len(Console(width=width, height=25).render_lines(one)) for one in (*texts, *below))
    room = 14 if height is None else height - taken
    charts: list[RenderableType] = []
    if room >= 6 and series.get(ENTROPY_MEAN):
        size = (width // 2 - 1 if width >= 100 else width, min(room, 24))
        entropy = {"entropy": series[ENTROPY_MEAN], "target": series.get(HOLD_TARGET, {})}
        if numbers.early_level is not None:
            entropy["early level"] = dict.fromkeys(series[ENTROPY_MEAN], numbers.early_level)
        changes = {
            "observed": series.get(ENTROPY_OBSERVED_CHANGE, {}),
            "predicted": series.get(ENTROPY_PREDICTED_CHANGE, {}),
        }
        charts.append(_chart("Entropy, nats", entropy, *size))
        if width >= 100:
            change = _chart("Entropy change, nats a step", changes, *size)
            charts = [Columns([*charts, change], padding=(0, 1))]
    return Group(*texts, *charts, *below)


def _suggested(suggestion: Mapping[str, Any] | None) -> str:
    return "" if suggestion is None else printable(control_in_words(Control.from_document(suggestion)))


def _facts(numbers: Numbers) -> Table:
    control = numbers.control
    # The last line of a traceback is the error.
    status = ": ".join([numbers.status, *numbers.error.strip().splitlines()[-1:]])
    active = control.active
    running = "" if active is None or active.version == control.version else f"; version {active.version} is active"
    of_early = "" if numbers.early_level is None else f", early level {_number(numbers.early_level)}"
    rows = [
        ("status", status, "last report", age_in_words(numbers.last_report_at)),
        ("step", numbers.step, "records lost", str(numbers.lost_records)),
        ("entropy", f"{_number(numbers.entropy)}{of_early}", "share lost", _percent(numbers.share_lost)),
        ("predicted", _number(numbers.predicted_change), "observed", _number(numbers.observed_change)),
        ("reward", _number(numbers.reward), "clipped", _percent(numbers.clip_fraction)),
        ("control", control_in_words(control), f"version {control.version}", f"{control.state}{running}"),
    ]
    table = Table.grid(padding=(0, 2))
    for row in rows:
        cells = [Text(printable(cell)) for cell in row]
        cells[0].stylize("dim")
        cells[2].stylize("dim")
        table.add_row(*cells)
    return table


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _percent(value: float | None) -> str:
    return f"{100 * value:.1f}%" if value is not None and math.isfinite(value) else _number(value)


def _chart(title: str, lines: Mapping[str, Mapping[int, float]], width: int, height: int) -> Text:
    """Lines over steps; values that are not finite are not drawn."""
    figure = plotext.figure
    figure.clear()
    figure.theme("simple")
    figure.plot_size(width, height)
    legend, steps, values = [], set[int](), set[float]()
    for (name, line), marker in zip(lines.items(), ("braille", ".", "-"), strict=False):
        points = {step: value for step, value in sorted(line.items()) if math.isfinite(value)}
        if points:
            figure.draw(figure.signal(list(points), list(points.values()), marker=marker).lines())
            legend.append(f"{'⠤' if marker == 'braille' else marker} {name}")
            steps.update(points)
            values.update(points.values())
    figure.title("  ".join([title, *legend]))
    if values:
        # plotext's own labels have so few digits that small changes are all 0.0.
        low, high = min(values), max(values)
        places = [low, (low + high) / 2, high] if low < high else [low]
        figure.ruler("y").ticks(places, [_number(place) for place in places])
        few = sorted({min(steps), (min(steps) + max(steps)) // 2, max(steps)})
        figure.ruler("x").ticks(few, [str(step) for step in few])
    return Text.from_ansi(figure.build().string().rstrip("\n"), no_wrap=True)


class RunReader:
    """Reads a run as often as it is asked, and transfers what is new.

    Raises:
        ApiError: from every method, where the server gives no answer or refuses.
    """

    def __init__(self, client: Client, run: str) -> None:
        self.series: dict[str, dict[int, float]] = {}
        self._client = client
        self._run = run
        self._cursor: str | None = None
        self._early_level: float | None = None
        self.look = self.read()

    def read(self) -> Look:
        """The run as it is now."""
        run = self._client.run(self._run)
        answer = self._client.series(self._run, _CHARTED, since=self._cursor, points=_POINTS)
        if self._merge(answer) or self._cursor is None:
            latest = {metric.name: metric.value for metric in self._client.latest(self._run)}
            alerts = self._client.alerts(self._run, limit=_ALERTS)
            gaps = self._client.gaps(self._run)
            self.look = Look(run=run, latest=latest, alerts=alerts, gaps=gaps, early_level=self._read_early_level())
        else:
            self.look = replace(self.look, run=run)
        longest = max(map(len, self.series.values()), default=0)
        self._cursor = None if longest > 3 * _POINTS else answer.cursor
        return self.look

    def _merge(self, answer: SeriesAnswer) -> bool:
        """Add the points that are new; whether there are any."""
        if answer.reset:
            self.series, self._early_level = {}, None
        for name, columns in answer.series.items():
            self.series.setdefault(name, {}).update(zip(columns.step, columns.value, strict=True))
        return answer.reset or any(columns.step for columns in answer.series.values())

    def _read_early_level(self) -> float | None:
        entropies = self.series.get(ENTROPY_MEAN)
        if self._early_level is None and entropies:
            end = min(entropies) + _STEPS_OF_EARLY_LEVEL
            self._early_level = early_level_of(
                self._client.series(self._run, ENTROPY_MEAN, to_step=end).series[ENTROPY_MEAN]
            )
        return self._early_level


def early_level_of(entropies: SeriesColumns) -> float | None:
    """The early level of the entropy from the run's first steps, in nats; None before there are enough of them."""
    early = EarlyLevel()
    for value in entropies.value:
        if math.isfinite(value):
            early.add(value)
    return early.level


def watch_run(client: Client, run: str, *, live: bool, quiet: bool) -> Numbers:
    """Show a run.

    Args:
        client: with a short timeout; a server that does not answer is asked again.
        run: the run's id.
        live: draw frames until `q` is pressed, where there is a terminal.
        quiet: print nothing.

    Returns:
        The numbers shown last.

    Raises:
        ApiError: the run can't be read. While frames are drawn, a server that gives no answer is waited for.
    """
    reader = RunReader(client, run)
    console = Console()
    if live and console.is_terminal:
        with _keys() as pressed, suppress(KeyboardInterrupt):
            _draw_until_quit(client, reader, console, pressed)
    elif not quiet:
        plain = Console(color_system=None, highlight=False)
        numbers = numbers_of(reader.look)
        plain.print(frame(numbers, reader.series, width=plain.width, height=None))
    return numbers_of(reader.look)


def _draw_until_quit(client: Client, reader: RunReader, console: Console, pressed: Callable[[float], str]) -> None:
    note = lost = ""
    asked: Numbers | None = None  # what was shown when `p` was pressed
    with Live(console=console, screen=True, auto_refresh=False) as screen:
        due = time.monotonic() + _REFRESH_SECONDS
        while True:
            numbers = numbers_of(reader.look)
            below = "\n".join(filter(None, (lost, note))) or "p pushes the suggestion, q quits"
            drawn = frame(numbers, reader.series, width=console.width, height=console.height, note=below)
            screen.update(drawn, refresh=True)
            for key in pressed(max(0.0, due - time.monotonic())):
                if key == "q":
                    return
                if asked is not None:
                    note = _push(client, asked) if key == "y" else "Nothing was pushed."
                    asked, due = None, time.monotonic()
                elif key == "p":
                    asked, note = _question(numbers)
            if time.monotonic() < due:
                continue
            try:
                reader.read()
                lost = ""
            except ApiError as error:
                if error.status is not None and error.status < 500:
                    raise  # the token was revoked, or the run deleted
                lost = f"Server lost, trying again: {error}"
            due = time.monotonic() + _REFRESH_SECONDS


def _question(numbers: Numbers) -> tuple[Numbers | None, str]:
    """What is asked about, if there is something, and the line to show."""
    if numbers.suggestion is None:
        return None, "There is no suggested control that is not requested already."
    if numbers.status not in (Status.RUNNING, Status.SILENT):
        return None, f"The run is {numbers.status}: no control reaches it."
    ends = " It ends the hold." if numbers.control.hold else ""
    return numbers, f"Push {_suggested(numbers.suggestion)}?{ends} y/n"


def _push(client: Client, asked: Numbers) -> str:
    """Push the suggestion on the version that was shown beside it; the line to show."""
    document: dict[str, Any] = Control.from_document(asked.suggestion or {}).to_document()
    document["reason"] = document["reason"] or f"isentrope watch: {asked.message}"
    try:
        item = client.set_control(asked.run, **document, if_version=asked.control.version)
    except ControlConflict as error:
        return f"Nothing was pushed, the control changed meanwhile: {error}"
    except ApiError as error:
        return f"Nothing was pushed: {error}"
    return f"Pushed version {item.version}: {item.state}"


def _wait(seconds: float) -> str:
    time.sleep(seconds)
    return ""


@contextmanager
def _keys() -> Iterator[Callable[[float], str]]:
    """A function that returns the keys pressed within some seconds; without a terminal to read from it waits."""
    if not sys.stdin.isatty():
        yield _wait
        return
    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)

    def pressed(seconds: float) -> str:
        readable, _, _ = select.select([terminal], [], [], seconds)
        if not readable:
            return ""
        # Nothing to read: the terminal is gone.
        return os.read(terminal, 64).decode(errors="replace") or "q"

    tty.setcbreak(terminal)
    try:
        yield pressed
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)
