"""Small charts over steps: where the pull on the entropy comes from, covariances, and how far the policy is from those whose
samples it trains on. What a run never reported is a sentence instead of a chart (`Panel.needs`)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from isentrope_dashboard import theme
from isentrope_dashboard.figures.chart import EMPTY, Chart, percent_texts, tick_texts, ticks, value_range
from isentrope_dashboard.figures.overview import Shown
from isentrope_dashboard.formatting import change, number, percent
from isentrope_wire.answers import SeriesColumns
from isentrope_wire.metrics import (
    CHANGE_BY_ENTROPY_BONUS,
    CHANGE_BY_INTERVENTION,
    CHANGE_BY_KL_PENALTY,
    CHANGE_BY_POLICY_LOSS,
    CHANGE_NEGATIVE_HIGH,
    CHANGE_NEGATIVE_LOW,
    CHANGE_POSITIVE_HIGH,
    CHANGE_POSITIVE_LOW,
    COVARIANCE_GROUP,
    COVARIANCE_GROUP_EASY,
    COVARIANCE_GROUP_HARD,
    COVARIANCE_GROUP_MIDDLE,
    COVARIANCE_TOP,
    ENTROPY_UNIT_PREDICTED_CHANGE,
    KL_OLD,
    KL_REFERENCE,
    RATIO_EFFECTIVE_SAMPLE_SIZE,
    RATIO_EFFECTIVE_SEQUENCES,
    RATIO_MAX,
    RATIO_MEAN,
    RATIO_QUANTILES,
    SAMPLER_EFFECTIVE_SAMPLE_SIZE,
    SAMPLER_EFFECTIVE_SEQUENCES,
    SAMPLER_KL_K1,
    SAMPLER_KL_K3,
)

Series = Mapping[str, SeriesColumns]

HEIGHT, LABEL_PIXELS = 196, 13
"""Of a chart, and the least distance of two labels."""
MARGIN = {"l": 48, "r": 104, "t": 8, "b": 24}


@dataclass(frozen=True, slots=True)
class Line:
    """One metric in a panel, with its label at the line's end."""

    metric: str
    label: str
    """Plotly's markup."""
    color: str
    """By its name in the theme, or the number of one of its lines."""
    dash: str = "solid"


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One chart of several metrics."""

    name: str
    title: str
    unit: str
    lines: Sequence[Line]
    needs: str
    """What a run must report for it, in a sentence."""
    says: str
    """What it shows, read by screen readers."""
    signs: Sequence[str] = ()
    """There is something to see when one of these was measured; empty: any of its lines."""
    written: Callable[[float | None], str] = number
    log: bool = False
    share: bool = False
    """Of a whole: the axis ends at 100 %."""
    at_rest: float | None = None
    """The value of every line where there is nothing to see; a run that never leaves it by REST has no chart."""
    rest: str = ""
    """What it means that there is nothing to see, in a sentence."""


REST = 1e-3


@dataclass(frozen=True, slots=True)
class Quadrant:
    """Tokens by the signs of their advantage A and score S_c, and what their update does to the entropy."""

    metric: str
    advantage: str
    score: str
    meaning: str
    lowers: bool

    @property
    def markup(self) -> str:
        signs = {"<": "&lt;", ">": "&gt;"}
        return f"A {signs[self.advantage]} 0, S<sub>c</sub> {signs[self.score]} 0"


QUADRANTS = (
    Quadrant(CHANGE_NEGATIVE_LOW, "<", "<", "unlikely tokens, punished", True),
    Quadrant(CHANGE_POSITIVE_HIGH, ">", ">", "likely tokens, rewarded", True),
    Quadrant(CHANGE_POSITIVE_LOW, ">", "<", "unlikely tokens, rewarded", False),
    Quadrant(CHANGE_NEGATIVE_HIGH, "<", ">", "likely tokens, punished", False),
)
_TOP = ("0.02 %", "0.2 %", "2 %", "20 %", "50 %", "all")
_DASHES = ("solid", "5px,3px")

PANELS: Mapping[str, Panel] = {
    panel.name: panel
    for panel in (
        Panel(
            name="quadrants",
            title="Where the pull comes from",
            unit="nats per unit gain",
            lines=[
                *(
                    Line(quadrant.metric, quadrant.markup, "act" if quadrant.lowers else "up", _DASHES[number % 2])
                    for number, quadrant in enumerate(QUADRANTS)
                ),
                Line(ENTROPY_UNIT_PREDICTED_CHANGE, "sum", "observed"),
            ],
            needs="Pass the advantages to gate().",
            says="The unit prediction over steps, split by the signs of advantage and score",
            written=change,
        ),
        Panel(
            name="mechanisms",
            title="What each mechanism changes",
            unit="nats per unit gain",
            lines=[
                Line(CHANGE_BY_POLICY_LOSS, "policy loss", "act"),
                Line(CHANGE_BY_INTERVENTION, "control", "hold"),
                Line(CHANGE_BY_KL_PENALTY, "KL penalty", "upper", "5px,3px"),
                Line(CHANGE_BY_ENTROPY_BONUS, "entropy bonus", "up", "2px,2px"),
                Line(ENTROPY_UNIT_PREDICTED_CHANGE, "sum", "observed"),
            ],
            signs=(CHANGE_BY_INTERVENTION, CHANGE_BY_KL_PENALTY, CHANGE_BY_ENTROPY_BONUS),
            needs="Pass the advantages to gate().",
            rest="So far all of the prediction comes from the policy loss; an active control, a KL term and an entropy bonus "
            "get a line each.",
            says="The unit prediction over steps, split by mechanism",
            written=change,
        ),
        Panel(
            name="ratios",
            title="Importance ratio",
            unit="policy to the one that sampled, log scale",
            lines=[
                Line(RATIO_MAX, "largest", "act"),
                Line(RATIO_MEAN, "mean", "iris"),
                *(
                    Line(name, "median" if share == 0.5 else f"{100 * share:g} % below", "observed", dash)
                    for (name, share), dash in zip(RATIO_QUANTILES.items(), ("2px,2px", "solid", "5px,3px"), strict=True)
                ),
            ],
            needs="Pass old_logprobs= or sampler_logprobs= to gate().",
            says="Mean, largest and quantiles of the importance ratio over steps",
            log=True,
            at_rest=1.0,
            rest=f"All within {REST} of 1: every step trains on samples of the current policy.",
        ),
        Panel(
            name="kl",
            title="KL divergence",
            unit="nats a token",
            lines=[
                Line(KL_OLD, "old policy", "iris"),
                Line(KL_REFERENCE, "reference", "hold", "5px,3px"),
                Line(SAMPLER_KL_K3, "sampler, k3", "act"),
                Line(SAMPLER_KL_K1, "sampler, k1", "upper", "2px,2px"),
            ],
            needs="Pass old_logprobs=, sampler_logprobs= or ref_logprobs= to gate().",
            says="KL divergence of the policy from the old policy, the reference and the sampler over steps",
            written=change,
            at_rest=0.0,
            rest=f"All below {REST} nats: trainer, old policy and sampler are one policy.",
        ),
        Panel(
            name="samples",
            title="Effective sample size",
            unit="share that counts",
            lines=[
                Line(RATIO_EFFECTIVE_SAMPLE_SIZE, "tokens", "iris"),
                Line(RATIO_EFFECTIVE_SEQUENCES, "sequences", "iris", "5px,3px"),
                Line(SAMPLER_EFFECTIVE_SAMPLE_SIZE, "tokens, sampler", "act"),
                Line(SAMPLER_EFFECTIVE_SEQUENCES, "seq., sampler", "act", "5px,3px"),
            ],
            needs="Pass old_logprobs= or sampler_logprobs= to gate().",
            says="Effective sample size of the importance ratios over steps",
            written=percent,
            share=True,
            at_rest=1.0,
            rest="100 %: all samples count alike.",
        ),
        Panel(
            name="covariance",
            title="Covariance of log p and A",
            unit="mean of the largest, log scale; gaps where it is below 0",
            lines=[
                Line(metric, f"top {share}" if share != "all" else share, str(number), theme.DASHES[number])
                for number, (metric, share) in enumerate(zip(COVARIANCE_TOP, _TOP, strict=True))
            ],
            needs="Pass the advantages to gate().",
            says="Mean of the largest covariances of log-prob and advantage over steps, for several shares of the tokens",
            log=True,
        ),
        Panel(
            name="difficulty",
            title="Covariance within groups",
            unit="nats, by difficulty",
            lines=[
                Line(COVARIANCE_GROUP_EASY, "easy groups", "hold"),
                Line(COVARIANCE_GROUP_MIDDLE, "between", "upper", "5px,3px"),
                Line(COVARIANCE_GROUP_HARD, "hard groups", "act", "2px,2px"),
                Line(COVARIANCE_GROUP, "all groups", "observed"),
            ],
            needs="Pass groups= to gate(): which sequences are rollouts of one prompt.",
            says="Covariance of a sequence's log-prob and advantage within its group over steps, by the group's difficulty",
        ),
    )
}  # fmt: skip
METRICS = tuple(dict.fromkeys(line.metric for panel in PANELS.values() for line in panel.lines))


def absent(panel: Panel, series: Series) -> str:
    """Why a panel has nothing to show; empty where it has."""
    measured = {line.metric: series[line.metric] for line in panel.lines if series.get(line.metric, EMPTY).step}
    if not measured:
        return panel.needs
    values = [value for columns in measured.values() for value in columns.value if math.isfinite(value)]
    rests = panel.at_rest is not None and all(abs(value - panel.at_rest) < REST for value in values)
    return panel.rest if rests or (panel.signs and not measured.keys() & set(panel.signs)) else ""


def panel_figure(panel: Panel, series: Series, shown: Shown, chosen: int | None) -> dict[str, Any]:
    """The panel's lines with their labels at the right, and a line at the chosen step."""
    chart = Chart(shown.scheme, shown.scale)
    chart.layout["margin"] = MARGIN
    chart.x_axis(*shown.ends, most=6)
    found = [(line, series[line.metric]) for line in panel.lines if series.get(line.metric, EMPTY).step]
    place: Callable[[float], float]
    if panel.log:
        low, high = _log_axis(chart, [columns for _, columns in found])

        def place(value: float) -> float:
            return (math.log10(value) - low) / (high - low) if value > 0 else -1.0
    else:
        low, high = value_range(
            [columns for _, columns in found], from_zero=panel.share, low=None if panel.share else 0.0
        )
        high = min(high, 1.02) if panel.share else high
        chart.y_axis(low, high, written=percent_texts if panel.share else tick_texts, most=5, zeroline=True)

        def place(value: float) -> float:
            return (value - low) / (high - low)

    for mark in shown.marks:
        if mark.kind == "control":
            chart.mark(mark.step, chart.ink["faint"])
    if chosen is not None:
        chart.mark(chosen, chart.ink["zero"], dash="solid")
    ends = []
    for line, columns in found:
        color = theme.LINES[shown.scheme][int(line.color)] if line.color.isdecimal() else chart.ink[line.color]
        drawn = columns if not panel.log else _positive(columns)
        chart.line(
            drawn, name=line.label, color=color, width=1.6, dash=line.dash, smooth=shown.smooth, written=panel.written
        )
        last = next((value for value in reversed(drawn.value) if math.isfinite(value)), None)
        if last is not None:
            ends.append((place(last), line.label, color))
    room = LABEL_PIXELS / (HEIGHT - MARGIN["t"] - MARGIN["b"])
    for y, (_, words, color) in zip(apart([y for y, _, _ in ends], room), ends, strict=True):
        chart.label(words, at=1, xanchor="left", xshift=5, y=y, yref="paper", yanchor="middle", color=color)
    return chart.figure()


def apart(places: Sequence[float], room: float) -> list[float]:
    """Places in [0, 1], moved as little as needed so that any two are `room` apart; their order stays."""
    order = sorted(range(len(places)), key=lambda index: places[index])
    moved = [min(1.0, max(0.0, places[index])) for index in order]
    for index in range(1, len(moved)):
        moved[index] = max(moved[index], moved[index - 1] + room)
    top = 1.0
    for index in reversed(range(len(moved))):
        moved[index] = min(moved[index], top)
        top = moved[index] - room
    answer = [0.0] * len(places)
    for place, index in zip(moved, order, strict=True):
        answer[index] = place
    return answer


def _positive(columns: SeriesColumns) -> SeriesColumns:
    values = [value if value > 0 else math.nan for value in columns.value]
    return SeriesColumns(step=columns.step, value=values, min=None, max=None)


def _log_axis(chart: Chart, series: Sequence[SeriesColumns]) -> tuple[float, float]:
    """A logarithmic y axis over the positive values; returns its ends as powers of ten."""
    values = [value for columns in series for value in columns.value if math.isfinite(value) and value > 0] or [1.0]
    low, high = math.log10(min(values)), math.log10(max(values))
    room = 0.06 * (high - low) or 0.02
    low, high = low - room, high + room
    decades = range(math.ceil(low), math.floor(high) + 1)
    if high - low >= 1.2:
        places = [10.0**power for power in decades]
    else:
        places = [value for value in ticks(10**low, 10**high, 5) if value > 0]
    texts = [f"{value:.6g}" if value >= 1e-4 else f"{value:.0e}".replace("e-0", "e−") for value in places]
    chart.layout["yaxis"] = {"type": "log", "range": [low, high], "tickvals": places, "ticktext": texts}
    return low, high
