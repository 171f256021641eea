"""The overview of a run: the health line with a button that tries the cure, four numbers and four
charts; beside them the control card (`pages.control`). The numbers are medians of the last five
steps against the early level, as in the diagnosis: a single step can't mislead them."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias
from urllib.parse import urlencode

from dash import html
from dash.development.base_component import Component

from isentrope.client import calls
from isentrope.client.connection import AsyncClient
from isentrope_dashboard.components.basics import (
    icon,
    plain,
    row,
    sparkline,
    text,
    unbroken,
)
from isentrope_dashboard.components.control_effects import hold_in_words
from isentrope_dashboard.components.header import STATUS, look_of
from isentrope_dashboard.figures.chart import EMPTY, smoothed
from isentrope_dashboard.figures.panel import Forecast
from isentrope_dashboard.figures.panels import OVERVIEW
from isentrope_dashboard.formatting import (
    LEVEL,
    MISSING,
    changes,
    number,
    pace,
    percent,
    significant,
)
from isentrope_dashboard.live import Part, Values
from isentrope_dashboard.pages import charts, compare, control
from isentrope_dashboard.view import View
from isentrope_wire import metrics
from isentrope_wire.answers import Alert, HealthLevel, RunDetail, SeriesColumns, Status
from isentrope_wire.control import Control
from isentrope_wire.diagnosis.check_states import CheckState, CheckStatus
from isentrope_wire.diagnosis.effect import PROMISED_STEPS
from isentrope_wire.diagnosis.health import PRICE, Diagnosis
from isentrope_wire.diagnosis.health.sentences import begin_small
from isentrope_wire.diagnosis.outlook import Outlook
from isentrope_wire.diagnosis.pull import MEANINGS, Cause
from isentrope_wire.reports import ALERT_KINDS, AlertLevel

FIRST_STEPS = 10
LAST_STEPS = 20


async def read(client: AsyncClient, view: View) -> Values:
    run_id = view.run_id or ""
    run = await client.ask(calls.run(run_id))
    wanted = control.wanted_of(view, run)
    is_offer = control.is_offer(run, wanted)
    asked = wanted if isinstance(wanted, Control) and not is_offer else None
    has_curves = is_offer or (asked is not None and asked.hold is None)
    outlook, me, history, alerts = await asyncio.gather(
        client.ask(calls.outlook(run_id, asked, curves=has_curves)),
        client.ask(calls.me()),
        client.newest(calls.control_history(run_id), charts.MARKS),
        client.newest(calls.alerts(run_id), charts.MARKS),
    )
    diagnosis = outlook.diagnosis
    run = replace(run, step=diagnosis.step)  # all that is shown is of this step
    begins = (diagnosis.step or 0) - (diagnosis.lost_in_steps or 0)
    is_live = run.status == Status.RUNNING
    names = [kpi.metric for kpi in KPIS]
    shown, early, newest = await asyncio.gather(
        charts.read_shown(
            client,
            view,
            run,
            OVERVIEW,
            known=(history, alerts),
            is_live=is_live,
            early_level=diagnosis.early_level,
        ),
        client.ask(calls.series(run_id, names, to_step=begins + FIRST_STEPS)),
        client.ask(
            calls.series(
                run_id,
                [*names, metrics.HOLD_BONUS, metrics.HOLD_MU],
                from_step=max(0, (run.step or 0) - LAST_STEPS + 1),
                to_step=run.step,
            )
        ),
    )
    shown = await compare.read_seeds(client, view, run, shown, charts.CHART_POINTS)
    if is_live:
        active = (run.control.active or run.control).control
        tried = None
        if asked is not None and changes(asked, active):
            tried = asked
        shown = replace(shown, forecasts=forecasts(outlook, tried))
    is_over = run.status.is_over
    acting, since = run.control.active, 0
    if acting is not None and acting.applied_step is not None:
        since = acting.applied_step
    newest_values = {
        name: columns.value[-1]
        for name, columns in newest.series.items()
        if columns.step and columns.step[-1] == run.step
    }
    acts = hold_in_words(newest_values)
    nothing = {}
    if is_over:  # of the change its panel says what it needs
        nothing = {panel.name: "None was reported" for panel in OVERVIEW if panel.name != "change"}
    return {
        "health": health_line(diagnosis, run, alerts),
        "kpis": kpi_cards(
            diagnosis, early.series, shown.series, newest.series, is_over=is_over, since=since
        ),
        **{
            f"chart-{panel.name}": charts.figure(panel, shown, nothing.get(panel.name, ""))
            for panel in OVERVIEW
        },
        "trust": trust_in_words(diagnosis),
        **control.card_values(run, me, history, alerts, acts),
        **control.form_values(view, run, wanted, outlook, shown.scale),
    }


def _tone_of(diagnosis: Diagnosis) -> str:
    """Colour of what goes on as now: that of a loss only where it goes away from the early
    level."""
    mean, lost = diagnosis.mean_pace, diagnosis.share_lost
    is_urgent = diagnosis.level in (HealthLevel.ACT, HealthLevel.WATCH)
    goes_away = mean is not None and lost is not None and mean.value * lost < 0
    if is_urgent and goes_away:
        return "act"
    return "hold"


def forecasts(outlook: Outlook, tried: Control | None = None) -> list[Forecast]:
    """Where the entropy goes: as now, and under the control that the form tries, else under the
    suggested one. The form's line is the browser's own: of the charts it takes the room."""
    diagnosis, mean = outlook.diagnosis, outlook.diagnosis.mean_pace
    score = diagnosis.forecast_score
    lines = [
        Forecast(
            label="as now",
            course=diagnosis.forecast,
            pace=None if mean is None else mean.value,
            entropy=diagnosis.entropy,
            tone=_tone_of(diagnosis),
            has_band=True,
            is_drawn=score is None or score.is_better,
        )
    ]
    if tried is not None and outlook.preview is not None:
        lines.append(Forecast.read(outlook.preview, tried))
    elif diagnosis.suggestion is not None and outlook.suggested is not None:
        suggested = Control.from_document(diagnosis.suggestion.control)
        lines.append(Forecast.read(outlook.suggested, suggested))
    return lines


PLACES = [
    html.Div(id="kpis", className="kpis"),
    html.Div([*map(charts.panel_card, OVERVIEW)], className="charts"),
]
PART = Part(
    name="overview",
    read=read,
    properties=control.PROPERTIES,
    layout=html.Div(
        [
            html.Div(id="health", className="health-place"),
            html.Div(
                [html.Div(id="checks"), html.Div(id="trust", className="dim ellipsis")],
                className="row checks-line small num",
            ),
            html.Div(PLACES, className="overview-left"),
        ],
        className="overview",
    ),
)
"""The overview's left column; the control card is mounted beside it."""


async def _read_checks(client: AsyncClient, view: View) -> Values:
    checks = await client.ask(calls.checks(view.run_id or ""))
    return {"checks": checks_line(checks.items)}


CHECKS = Part(name="checks", read=_read_checks, is_slow=True)
"""The line under the health line: its place is the overview's."""


def checks_line(checks: Sequence[CheckState]) -> html.Details:
    """What the checks found, and a list of those that have no data with what would give it."""
    found = [check for check in checks if check.status == CheckStatus.FOUND]
    without = [check for check in checks if check.needs]
    words = f"{len(checks) - len(without)} of {len(checks)} checks have data"
    if found:
        words += f"; found: {', '.join(begin_small(check.title) for check in found)}"
    rows = []
    first_with = dict[str, str]()
    for check in found:
        cure = check.cure
        if cure in check.message:
            cure = ""
        elif cure in first_with:
            cure = f"What to do: as for {begin_small(first_with[cure])}."
        else:
            first_with[cure] = check.title
        rows.append((check.title, f"Step {check.step}: {check.message} {cure}"))
    rows += [
        (check.title, check.message) for check in checks if check.status == CheckStatus.FOLLOWS
    ]
    rows += [(check.title, f"No data: needs {check.needs}.") for check in without]
    listed = [html.Div([html.B(title), " ", text(said, "dim")]) for title, said in rows]
    return html.Details([html.Summary(words), html.Div(listed, className="card")])


def trust_in_words(diagnosis: Diagnosis) -> str:
    """What the prediction is good for now."""
    trust = diagnosis.prediction_trust
    if trust is None:
        return ""
    return f"Prediction: {trust.message}"


TRY = "try"
LOSS_SHOWN = 0.1
"""Of the early entropy; less is the noise of a few steps."""


def health_line(diagnosis: Diagnosis, run: RunDetail, alerts: Sequence[Alert] = ()) -> html.Div:
    """The line of a run; of one that is over, how it ended, what became of its entropy and the
    worst of its alerts."""
    word, look, drawing = look_of(diagnosis.level, diagnosis.share_lost)
    message, lost = diagnosis.message, _lost_beside(diagnosis)
    if (
        run.status.is_over or run.status == Status.SILENT
    ):  # as its badge and the list say; its health asks for no action
        word, tone, _ = STATUS[run.status]
        drawing, look, lost = "alert" if tone == "act" else "clock", tone, []
        message = message.removeprefix(f"{word}: ")
        if run.status.is_over:
            message = _name_worst(message, alerts)
        if not run.error:  # it may begin with a name, such as torch.OutOfMemoryError
            message = _sentence(message)
    message = unbroken(message)
    if run.status == Status.FAILED:
        cure = []
    else:
        cure = _cure(diagnosis)
    buttons: list[Any] = []
    link = None
    if diagnosis.cause is not None:
        quadrant = diagnosis.cause.quadrant.removeprefix("change/")
        shown = {"tab": "tokens", "a": quadrant, "sign": _way(diagnosis)}
        if diagnosis.cause.influence_step is not None:
            shown["step"] = str(diagnosis.cause.influence_step)
        link = (shown, "See the tokens")
    if run.status == Status.FAILED:
        link = ({"tab": "config"}, "See the last output")
    if link is not None:
        shown, label = link
        href, show = f"?{urlencode(shown)}", json.dumps(shown)
        buttons.append(html.A(label, href=href, className="dim", **{"data-show": show}))
    if diagnosis.suggestion is not None:
        suggested = Control.from_document(diagnosis.suggestion.control)
        fill = json.dumps(control.fill_of(suggested))
        words = ["Try it", icon("arrow", 14)]
        buttons.append(
            html.Button(
                words, id=TRY, type="button", className="button main", **{"data-fill": fill}
            )
        )
    return html.Div(
        [
            html.Div([html.Div([icon(drawing, 18), word]), *lost], className="flag"),
            html.Div(
                [
                    html.Div(
                        _link_check(message),
                        className="why num",
                        title=_all_in_words(message, diagnosis),
                    ),
                    html.Div(cure, className="cure num", title=plain(cure)),
                ],
                className="spacer",
            ),
            *buttons,
        ],
        className=f"health {look}".strip(),
        role="status",
        **{"data-step": "" if run.step is None else run.step},
    )


def _link_check(message: str) -> list[Any]:
    """The message, whose `see the check` opens the list of the checks."""
    before, words, after = message.partition("see the check")
    if not words:
        return [message]
    return [before, html.Button(words, type="button", className="link show-checks"), after]


def _name_worst(message: str, alerts: Sequence[Alert]) -> str:
    """The message with the newest alert of level act before what else was found."""
    worst = next((alert for alert in alerts if alert.level == AlertLevel.ACT), None)
    if worst is None:
        return message
    kind = ALERT_KINDS.get(worst.kind, worst.kind)
    if kind.lower() in message.lower():
        return message
    said, found, rest = message.partition(" Found at step")
    return f"{said} Worst alert, at step {worst.step:,}: {begin_small(kind)}.{found}{rest}"


def _lost_beside(diagnosis: Diagnosis) -> list[Component]:
    """`38 % lost` beside a word that sounds as if nothing was."""
    lost = diagnosis.share_lost
    is_green = diagnosis.level in (HealthLevel.HEALTHY, HealthLevel.HOLDING)
    if not is_green or lost is None or lost < LOSS_SHOWN:
        return []
    return [html.Small(f"{percent(lost, 0)} lost")]


def _cure(diagnosis: Diagnosis) -> list[Any]:
    """The cause in words, and what would stop it; without a suggestion what became of the newest
    control."""
    words: list[Any] = []
    if diagnosis.cause is not None:
        words.append(f"{cause_in_words(diagnosis.cause, _way(diagnosis))} ")
    if diagnosis.suggestion is not None:
        head, _, rest = diagnosis.suggestion.message.partition(":")
        if diagnosis.suggestion.clip_fraction is not None:
            # The paces are in the chart and in the card.
            rest = f" clips {percent(diagnosis.suggestion.clip_fraction)}."
            if PRICE in diagnosis.suggestion.message:
                rest += PRICE
        if rest:
            words += [html.B(f"{head}:"), rest]
        else:
            words += [html.B(head)]
    elif diagnosis.verdict is not None:
        words += [html.B(f"v{diagnosis.verdict.version}: "), unbroken(diagnosis.verdict.message)]
    return words


def _way(diagnosis: Diagnosis) -> str:
    """Where the tokens of a cause pull the entropy: where it goes. By influence unlikely tokens
    that are punished may pull it up, too."""
    if diagnosis.pace is not None and diagnosis.pace.value > 0:
        return "up"
    return "down"


def cause_in_words(cause: Cause, way: str) -> str:
    """`Unlikely tokens that are punished pull it down.`"""
    return _sentence(f"{MEANINGS[cause.quadrant].replace(', ', ' that are ')} pull it {way}")


def _all_in_words(message: str, diagnosis: Diagnosis) -> str:
    """The line in full, with the share of its cause and the score of its forecasts."""
    words = [message]
    if diagnosis.cause is not None:
        words.append(_sentence(diagnosis.cause.message))
    score = diagnosis.forecast_score
    if score is not None and diagnosis.forecast is not None:
        off, nothing = number(score.mean_error), number(score.unchanged_error)
        words.append(
            f"Forecasts of {score.horizon} steps were off by {off} nats on average; that nothing "
            f"changes, by {nothing}."
        )
    return " ".join(words)


def _sentence(words: str) -> str:
    return words[:1].upper() + words[1:] + ("" if words.endswith(".") else ".")


SPARK_POINTS = 60

Against: TypeAlias = tuple[str, str, str]
"""A difference in words, its tone, and what it is counted from."""


@dataclass(frozen=True, slots=True)
class Kpi:
    """A number above the charts, and how it stands against the early level."""

    title: str
    unit: str
    metric: metrics.Metric
    written: Callable[[float | None], str]
    against: Callable[[float | None, float | None], Against]
    """Of the early level and the newest one."""


def sized(value: float | None) -> str:
    """Three decimals; of a size that these can't tell, four digits."""
    is_usual = value is None or value == 0 or 0.01 <= abs(value) < 1e6
    if is_usual:
        return number(value)
    return significant(value)


def _compare_in_percent(early: float | None, now: float | None) -> Against:
    if early is None or now is None or not math.isfinite(now):
        return "", "", "" if early is None else f"early {sized(early)}"
    if early == 0:
        return "", "", "early 0"
    share = (now - early) / abs(early)
    tone = ""
    if share >= 0.05:
        tone = "ok"
    elif share <= -0.25:
        tone = "act"
    return (
        f"{number(100 * share, 0, signed=True)}\N{NO-BREAK SPACE}%",
        tone,
        f"vs early {sized(early)}",
    )


def _compare_in_points(early: float | None, now: float | None) -> Against:
    if early is None or now is None:
        return "", "", "" if early is None else f"early {percent(early)}"
    points = number(100 * (now - early), 1, signed=True)
    return "" if points == "0.0" else f"{points} pt", "", f"early {percent(early)}"


_LAST = f"last {metrics.NEWEST_STEPS} steps"
KPIS = (
    Kpi("Entropy", f"nats, {_LAST}", metrics.ENTROPY_MEAN, number, _compare_in_percent),
    Kpi("Reward", f"mean, {_LAST}", metrics.REWARD_MEAN, sized, _compare_in_percent),
    Kpi("Clipped", _LAST, metrics.CLIP_FRACTION, percent, _compare_in_points),
)


def kpi_card(
    kpi: Kpi, first: SeriesColumns, course: SeriesColumns, now: float | None
) -> html.Section:
    """The card of a number: `first` has the values of the run's first steps, not reduced; `course`
    those that the charts show."""
    level = metrics.EarlyLevel()  # as the alerts define it
    for value in filter(math.isfinite, first.value):
        level.add(value)
    return _card_of(kpi.title, kpi.unit, kpi.written(now), kpi.against(level.level, now), course)


def kpi_cards(
    diagnosis: Diagnosis,
    early: Mapping[str, SeriesColumns],
    shown: Mapping[str, SeriesColumns],
    newest: Mapping[str, SeriesColumns],
    *,
    is_over: bool = False,
    since: int = 0,
) -> list[html.Section]:
    """Entropy, reward, pace and clipped share; this of the steps under the control that acts
    `since` a step."""
    levels = {name: metrics.newest_level(columns.value) for name, columns in newest.items()}
    entropy = levels.get(metrics.ENTROPY_MEAN)
    if entropy is not None and math.isfinite(entropy):
        levels[metrics.ENTROPY_MEAN] = diagnosis.entropy
    clipped = newest.get(metrics.CLIP_FRACTION, EMPTY)
    under = [
        value for step, value in zip(clipped.step, clipped.value, strict=True) if step >= since
    ]
    kpis = KPIS
    if len(under) < metrics.NEWEST_STEPS and len(under) < len(clipped.value) and under:
        levels[metrics.CLIP_FRACTION] = metrics.newest_level(under)
        steps = f"{len(under)} step{'s' * (len(under) > 1)} under the control"
        kpis = (*KPIS[:-1], replace(KPIS[-1], unit=steps))
    cards = [
        kpi_card(
            kpi,
            early.get(kpi.metric, EMPTY),
            shown.get(kpi.metric, EMPTY),
            levels.get(kpi.metric),
        )
        for kpi in kpis
    ]
    course = shown.get(metrics.ENTROPY_PREDICTED_CHANGE, EMPTY)
    why_none = ""
    if is_over:
        why_none = "the run is over"
    return [*cards[:2], pace_card(diagnosis, course, why_none=why_none), *cards[2:]]


def pace_card(diagnosis: Diagnosis, course: SeriesColumns, *, why_none: str = "") -> html.Section:
    """The mean pace of the next steps as a share of the entropy: the one that charts, suggestions
    and verdicts are about. Without a clear trend it is not written large."""
    unit = f"next {PROMISED_STEPS} steps"
    if diagnosis.mean_pace is None or not diagnosis.entropy:
        return _card_of("Pace", unit, MISSING, ("", "", why_none), course)
    nats, entropy = diagnosis.mean_pace.value, diagnosis.entropy
    words = pace(nats, entropy)
    if words == LEVEL:
        moves = "under 1\N{NO-BREAK SPACE}% in 50 steps"
        return _card_of("Pace", unit, LEVEL, ("", "", moves), course)
    if diagnosis.pace is not None and not diagnosis.pace.direction:
        return _card_of("Pace", unit, "unclear", ("", "", f"about {words} nats a step"), course)
    share = f"{number(100 * nats / entropy, 1, signed=True)}\N{NO-BREAK SPACE}% a step"
    return _card_of("Pace", unit, share, ("", "", f"{words} nats a step"), course)


def _card_of(
    title: str, unit: str, value: str, against: Against, course: SeriesColumns
) -> html.Section:
    difference, tone, early = against
    words = html.Div(
        [
            html.Div([html.H2(title, className="kpi-title"), text(unit, "dim")], className="row"),
            html.Div(value, className="kpi-value"),
            row(
                html.Span(difference, className=f"difference {tone}".strip()),
                html.Span(early, className="small dim num"),
            ),
        ],
        className="kpi-words",
    )
    stride = math.ceil(len(course.step) / SPARK_POINTS) or 1
    drawing = sparkline(smoothed(course, 3)[::-stride][::-1])
    line = html.I(className="spark iris", style={"--drawing": drawing})
    return html.Section([words, line], className="card kpi")
