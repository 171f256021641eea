"""The view of `isentrope watch RUN`: what is read from the server, the frame drawn of it, the loop.

`look_at` asks the server, `frame` is pure, `watch_run` prints one frame, or draws frames until `q`
is pressed and pushes the suggested control where a person confirms it.
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
from dataclasses import dataclass, field

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
from isentrope_wire import metrics
from isentrope_wire.answers import Gap, HealthLevel, RunDetail, Status
from isentrope_wire.control import Control
from isentrope_wire.control_answers import Verdict
from isentrope_wire.diagnosis.health import Diagnosis, Suggestion
from isentrope_wire.numbers import MINUS, fixed, percent, printable

_OBSERVED = (metrics.ENTROPY_UNSEEN_CHANGE, metrics.ENTROPY_OBSERVED_CHANGE)
_CHARTED = (metrics.ENTROPY_MEAN, metrics.HOLD_TARGET, metrics.ENTROPY_PREDICTED_CHANGE, *_OBSERVED)
_LATEST = frozenset(
    {metrics.ENTROPY_PREDICTED_CHANGE, *_OBSERVED, metrics.REWARD_MEAN, metrics.CLIP_FRACTION}
)
_POINTS = 300
_MOST_GAPS = 100
_REFRESH_SECONDS = 1.0

_HEALTH = {
    HealthLevel.NO_DATA: ("No data yet", "dim"),
    HealthLevel.HEALTHY: ("Healthy", "green"),
    HealthLevel.WATCH: ("Watch", "yellow"),
    HealthLevel.ACT: ("Act", "bold red"),
    HealthLevel.HOLDING: ("Holding", "cyan"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What a frame shows: the server's answers about a run. Changes in nats a step, shares in [0,
    1]."""

    run: RunDetail
    diagnosis: Diagnosis
    latest: Mapping[str, float] = field(default_factory=dict)
    """The newest value of each of the metrics that are shown, where it was measured."""
    gaps: Sequence[Gap] = ()
    series: Mapping[str, Mapping[int, float]] = field(default_factory=dict)
    """Metric -> step -> value, of the metrics of `_CHARTED` that were reported."""


def look_at(client: Client, run: str) -> Look:
    """The run as it is now."""
    answer = client.series(run, _CHARTED, points=_POINTS).series
    return Look(
        run=client.run(run),
        diagnosis=client.diagnosis(run),
        latest={item.name: item.value for item in client.latest(run) if item.name in _LATEST},
        gaps=client.gaps(run, limit=_MOST_GAPS),
        series={
            name: dict(zip(columns.step, columns.value, strict=True))
            for name, columns in answer.items()
        },
    )


def frame(look: Look, *, width: int, height: int | None, note: str = "") -> RenderableType:
    """One picture of a run, `width` characters wide (below 100 the entropy alone is drawn) and
    `height` lines high,
    None: of no terminal. `note` is the last lines: the keys, a question, an answer."""
    series = look.series
    diagnosis, suggestion = look.diagnosis, look.diagnosis.suggestion
    word, style = _HEALTH[diagnosis.level]
    status = look.run.status
    if status is not Status.RUNNING:  # as the page and the list of runs say
        word, style = (
            status.capitalize(),
            {Status.FAILED: "bold red", Status.SILENT: "yellow"}.get(status, "dim"),
        )
    health = Text.assemble(
        (f"{word}  ", style), printable(diagnosis.message.removeprefix(f"{word}: "))
    )
    trust = diagnosis.prediction_trust
    below_it = {
        "Cause": diagnosis.cause.message if diagnosis.cause else "",
        "Suggested": f"{suggestion.message} ({_control_of(suggestion)})" if suggestion else "",
        "Prediction": "" if trust is None else trust.message,
        "Verdict": _verdict_in_words(diagnosis.verdict),
    }
    for name, text in below_it.items():
        if text:
            health.append(f"\n{name}: ", style="bold").append(printable(text))
    title = Text(printable(f"{look.run.name}  {look.run.id}"))
    texts: list[RenderableType] = [
        Panel(health, title=title, title_align="left", border_style=style),
        _facts(look),
    ]
    below = []
    if note:
        below = [Text("\n".join(map(printable, note.split("\n"))), style="bold")]
    taken = sum(len(Console(width=width, height=25).render_lines(one)) for one in (*texts, *below))
    room = 14
    if height is not None:
        room = height - taken
    charts: list[RenderableType] = []
    if room >= 6 and series.get(metrics.ENTROPY_MEAN):
        size = (width // 2 - 1 if width >= 100 else width, min(room, 24))
        entropy = {
            "entropy": series[metrics.ENTROPY_MEAN],
            "target": series.get(metrics.HOLD_TARGET, {}),
        }
        if diagnosis.early_level is not None:
            entropy["early level"] = dict.fromkeys(
                series[metrics.ENTROPY_MEAN], diagnosis.early_level
            )
        changes = {
            "observed": (
                series.get(metrics.ENTROPY_UNSEEN_CHANGE)
                or series.get(metrics.ENTROPY_OBSERVED_CHANGE, {})
            ),
            "predicted": series.get(metrics.ENTROPY_PREDICTED_CHANGE, {}),
        }
        charts.append(_chart("Entropy, nats", entropy, *size))
        if width >= 100:
            change = _chart("Entropy change, nats a step", changes, *size)
            charts = [Columns([*charts, change], padding=(0, 1))]
    return Group(*texts, *charts, *below)


def _control_of(suggestion: Suggestion) -> str:
    return control_in_words(Control.from_document(suggestion.control))


def _verdict_in_words(verdict: Verdict | None) -> str:
    if verdict is None:
        return ""
    if verdict.promised is None:
        promised = ""
    else:
        promised = f" (promised {fixed(verdict.promised, 4)})"
    return f"version {verdict.version}: {verdict.message}{promised}"


def _facts(look: Look) -> Table:
    run, latest, diagnosis = look.run, look.latest, look.diagnosis
    control = run.control
    # The last line of a traceback is the error.
    status = ": ".join([run.status, *run.error.strip().splitlines()[-1:]])
    active = control.active
    if active is None or active.version == control.version:
        running = ""
    else:
        running = f"; version {active.version} is active"
    if diagnosis.early_level is None:
        of_early = ""
    else:
        of_early = f", early level {_number(diagnosis.early_level)}"
    lost = sum(gap.last_seq - gap.first_seq + 1 for gap in look.gaps)
    rows = [
        ("status", status, "last report", age_in_words(run.last_report_at)),
        ("step", step_in_words(run), "records lost", str(lost)),
        (
            "entropy",
            f"{_number(diagnosis.entropy)}{of_early}",
            "share lost",
            _percent(diagnosis.share_lost),
        ),
        (
            "predicted",
            _number(latest.get(metrics.ENTROPY_PREDICTED_CHANGE)),
            "observed",
            _number(metrics.measured_change(latest)),
        ),
        (
            "reward",
            _number(latest.get(metrics.REWARD_MEAN)),
            "clipped",
            _percent(latest.get(metrics.CLIP_FRACTION)),
        ),
        (
            "control",
            control_in_words(control),
            f"version {control.version}",
            f"{control.state}{running}",
        ),
    ]
    table = Table.grid(padding=(0, 2))
    for style in ("dim", "", "dim", ""):
        table.add_column(style=style)
    for row in rows:
        table.add_row(*(Text(printable(cell)) for cell in row))
    return table


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.4g}".replace("-", MINUS)


def _percent(value: float | None) -> str:
    if value is None:
        return "-"
    return percent(value, 1)


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
        places = [low]
        if low < high:
            places = [low, (low + high) / 2, high]
        figure.ruler("y").ticks(places, [_number(place) for place in places])
        few = sorted({min(steps), (min(steps) + max(steps)) // 2, max(steps)})
        figure.ruler("x").ticks(few, [str(step) for step in few])
    return Text.from_ansi(figure.build().string().rstrip("\n"), no_wrap=True)


def watch_run(client: Client, run: str, *, live: bool, quiet: bool) -> Look:
    """Show a run, and return what was shown last: live until `q` is pressed, where there is a
    terminal. ApiError: the run can't be read; while frames are drawn, a server that gives no answer
    is waited for."""
    look = look_at(client, run)
    console = Console()
    if live and console.is_terminal:
        with _keys() as pressed, suppress(KeyboardInterrupt):
            _draw_until_quit(client, look, lambda: look_at(client, run), console, pressed)
    elif not quiet:
        plain = Console(color_system=None, highlight=False)
        plain.print(frame(look, width=plain.width, height=None))
    return look


def _draw_until_quit(
    client: Client,
    look: Look,
    read: Callable[[], Look],
    console: Console,
    pressed: Callable[[float], str],
) -> None:
    note = lost = ""
    asked: Look | None = None  # what was shown when `p` was pressed
    with Live(console=console, screen=True, auto_refresh=False) as screen:
        due = time.monotonic() + _REFRESH_SECONDS
        while True:
            below = "\n".join(filter(None, (lost, note))) or "p pushes the suggestion, q quits"
            drawn = frame(look, width=console.width, height=console.height, note=below)
            screen.update(drawn, refresh=True)
            for key in pressed(max(0.0, due - time.monotonic())):
                if key == "q":
                    return
                if asked is not None:
                    note = "Nothing was pushed."
                    if key == "y":
                        note = _push(client, asked)
                    asked, due = None, time.monotonic()
                elif key == "p":
                    asked, note = _question(look)
            if time.monotonic() < due:
                continue
            try:
                look, lost = read(), ""
            except ApiError as error:
                if error.status is not None and error.status < 500:
                    raise  # the token was revoked, or the run deleted
                lost = f"Server lost, trying again: {error}"
            due = time.monotonic() + _REFRESH_SECONDS


def _question(look: Look) -> tuple[Look | None, str]:
    """What is asked about, if there is something, and the line to show."""
    suggestion = look.diagnosis.suggestion
    if suggestion is None:
        return None, "No control is suggested."
    ends = ""
    if look.run.control.hold:
        ends = " It ends the hold."
    return look, f"Push {_control_of(suggestion)}?{ends} y/n"


def _push(client: Client, asked: Look) -> str:
    """Push the suggestion on the version that was shown beside it; the line to show."""
    assert asked.diagnosis.suggestion is not None
    document = asked.diagnosis.suggestion.control
    try:
        item = client.set_control(asked.run.id, **document, if_version=asked.run.control.version)
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
    """A function that returns the keys pressed within some seconds; without a terminal to read from
    it waits."""
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
