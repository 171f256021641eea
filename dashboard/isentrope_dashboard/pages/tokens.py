"""Tokens: the rollouts of a step in running text, where the pull on the entropy comes from, and
tokens that recur."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import dash_mantine_components as dmc
from dash import html
from dash.development.base_component import Component

from isentrope.client import calls
from isentrope.client.connection import AsyncClient
from isentrope_dashboard.components import basics, token_text
from isentrope_dashboard.figures.chart import EMPTY
from isentrope_dashboard.formatting import change, count, number, percent
from isentrope_dashboard.live import Part, Values
from isentrope_dashboard.pages.steps import NO_STEP, PARAM, chosen_step, report_of
from isentrope_dashboard.view import View
from isentrope_wire.answers import (
    RecurringToken,
    RecurringTokens,
    Rollouts,
    SeriesColumns,
    StepReport,
    TopTokens,
)
from isentrope_wire.diagnosis.pull import CAUSE_STEPS, MEANINGS, QUADRANTS
from isentrope_wire.metrics import (
    CHANGE_BY_ENTROPY_BONUS,
    CHANGE_BY_INTERVENTION,
    CHANGE_POSITIVE_HIGH,
    ENTROPY_GAIN,
    ENTROPY_PREDICTED_BY_MOMENTUM,
    ENTROPY_PREDICTED_CHANGE,
    INFLUENCES,
    TOKEN_COUNT,
)
from isentrope_wire.reports import (
    ADVANTAGES,
    DROPPED_PARTS,
    ENTROPY_GRADIENT,
    LOSS_GRADIENT,
    PREDICTION_BASIS,
)

RECURRING_STEPS = 10
BESIDE = "beside"
"""In the address: a second step, whose rollouts of the same prompts are shown beside those of the
first."""
INSIDE = {
    CHANGE_BY_INTERVENTION: "The control's share",
    CHANGE_BY_ENTROPY_BONUS: "The loss's entropy bonus",
}
"""Parts of the unit prediction that the parts by the signs of A and S_c have inside them."""
FEW = 0.2
"""Share of the pull; where the listed tokens make less, they do not explain it."""
IF_MU = "Share of them that Clip_V would keep with this µ on both sides and the scope all tokens"
_ONE_STEP = basics.button("One step", **{"data-show": json.dumps({BESIDE: None})})
NOTHING_MEASURED = (
    "The step's report has no split by the signs of advantage and score: its tokens were not gated."
)
NO_PULL = (
    "No token moved the entropy in this step: no advantage differs from 0, as where each group has"
    " one reward."
)
GATE_TOKENS = "This step reported no tokens: scores and advantages were not passed to gate()."


async def read(client: AsyncClient, view: View) -> Values:
    run_id = view.run_id or ""
    run = await client.ask(calls.run(run_id))
    step = await chosen_step(client, run, view)
    wanted = None if view.whole_number(PARAM) is None else step  # the newest that has any
    audit = INFLUENCES[CHANGE_POSITIVE_HIGH]
    # Steps with the same prompts are looked for where the reader stays: not again with each new
    # step.
    stays, beside = wanted is not None or run.status.is_over, view.whole_number(BESIDE)
    active = (run.control.active or run.control).control
    chosen = token_text.Filter.read(view, active.mu_low or active.mu_high or 1.0)
    rollouts, top, recurring, audited = await asyncio.gather(
        client.ask(calls.rollouts(run_id, step=wanted, also_in=stays)),
        client.ask(calls.tokens(run_id, step=wanted)),
        client.ask(
            calls.recurring_tokens(run_id, steps=RECURRING_STEPS, step=wanted, mu=chosen.mu)
        ),
        client.ask(
            calls.series(
                run_id, [audit, TOKEN_COUNT], from_step=max(0, (step or 0) - CAUSE_STEPS + 1)
            )
        ),
    )
    newest = step
    if wanted is None and audited.series.get(audit, EMPTY).step:
        step = audited.series[audit].step[-1]
    report = await report_of(client, run_id, step)
    order = view.query.get("by", "")
    how_many: Any
    by = token_text.coloured_by(rollouts.items)
    if beside is None:
        context, how_many = _context(rollouts, top, chosen, order)
    else:
        other = await client.ask(calls.rollouts(run_id, step=beside))
        by = token_text.coloured_by([*rollouts.items, *other.items])
        rows = token_text.side_by_side(rollouts, other, chosen, order) or [
            _sentence("These steps have no rollouts of one prompt.")
        ]
        steps = " and ".join(count(each) for each in sorted((rollouts.step or 0, beside)))
        context, how_many = [html.Div(rows)], [f"steps {steps} ", _ONE_STEP]
    if not rollouts.items and not top.items and run.step is None:
        context = [_sentence(NO_STEP)]
    return {
        "token-context": context,
        "token-count": how_many,
        "token-pull": quadrant_bars(
            report, NO_STEP if run.step is None else NOTHING_MEASURED, newest=newest
        ),
        "recurring": recurring_rows(recurring, chosen),
        "recurring-sum": sum_in_words(recurring, chosen, audited.series.get(TOKEN_COUNT, EMPTY)),
        "recurring-steps": _steps_words(recurring),
        "token-legend": token_text.legend(chosen.mu, by),
    }


def _context(
    rollouts: Rollouts, top: TopTokens, chosen: token_text.Filter, order: str
) -> tuple[list[Any], str]:
    """The running text, or what there is instead of it; and of which step and how much of it is
    shown."""
    if rollouts.items:
        rows = token_text.rollout_rows(rollouts, chosen, order)
        if rows:
            body = html.Div(rows)
        else:
            body = _sentence(
                f"None of the {len(rollouts.items)} rollouts that this step reports has tokens"
                " that pass the filters: look at another step."
            )
        return [body], _how_many(rollouts.step, len(rows), len(rollouts.items), "rollout")
    if not top.items:
        return [_sentence(GATE_TOKENS)], ""
    if not any(token.contribution for token in top.items):
        return [_sentence(NO_PULL)], f"step {count(top.step)}"
    why = "This step has no running text; these are its top contributing tokens."
    if all(token.text is None for token in top.items):
        why = "This step has no running text: Probe(tokenizer=...) gives it."
    table = html.Div(token_text.top_token_table(top, chosen), className="token-scroll", tabIndex=0)
    return [_sentence(why), table], _how_many(top.step, len(top.items), len(top.items), "token")


def _how_many(step: int | None, shown: int, of: int, what: str) -> str:
    part = f"{shown} of {of}" if shown < of else str(of)
    return f"step {count(step)}, {part} {what}{'s' * (of != 1)}"


def _sentence(words: str) -> html.P:
    return html.P(words, className="dim token-sentence")


_BASES = {
    ENTROPY_GRADIENT: "the entropy's gradient",
    LOSS_GRADIENT: "the loss's gradient",
    ADVANTAGES: "the advantages",
}


def sources_of(report: StepReport | None) -> list[str]:
    """What the step's prediction was made from, and what its report lacks, by its labels."""
    words: list[str] = []
    if report is None:
        return words
    if (basis := report.labels.get(PREDICTION_BASIS)) in _BASES:
        words.append(f"Predicted from {_BASES[basis]}.")
    if DROPPED_PARTS in report.labels:
        words.append(f"Not reported: {report.labels[DROPPED_PARTS]}.")
    return words


def quadrant_bars(
    report: StepReport | None,
    absent: str = NOTHING_MEASURED,
    *,
    newest: int | None = None,
) -> list[Component]:
    """What made the step's predicted change: influences, else parts of the unit prediction times
    the gain, by the signs of A and S_c, each with its share of the pull; and the rest of the
    prediction. Without a gain, the parts in nats per unit gain alone.

    Args:
        absent: said where there are none.
        newest: the step that the bar above is of; the report is an older one's where that alone
            has influences.
    """
    scalars: Mapping[str, float] = {}
    if report is not None:
        scalars = report.scalars
    has_influences = bool(INFLUENCES.values() & scalars.keys())
    sums: Mapping[str, str] = {part: part for part in MEANINGS}
    gain, predicted = scalars.get(ENTROPY_GAIN, 0.0), scalars.get(ENTROPY_PREDICTED_CHANGE)
    has_gain = math.isfinite(gain) and gain > 0
    scale = gain if has_gain else 1.0
    of, unit, factor = ["g ", *basics.S_C], f"nats: times the gain of {number(gain, 2)}", scale
    if has_influences:
        sums, of, unit, factor = INFLUENCES, ["influence"], "nats", 1.0
    elif not has_gain or predicted is None:
        unit, factor, scale, predicted = "nats per unit gain", 1.0, 1.0, None
    known = {part: scalars.get(sums[part]) for part in MEANINGS}
    values = {
        part: factor * value
        for part, value in known.items()
        if value is not None and math.isfinite(value)
    }
    if report is None or not values:
        return [_sentence(absent)]
    lowering = -sum(value for value in values.values() if value < 0)
    raising = sum(value for value in values.values() if value > 0)
    pull = max(lowering, raising)
    rest = None
    if predicted is not None and math.isfinite(predicted):
        rest = predicted - sum(values.values())
    inside = {
        words: scale * scalars[part]
        for part, words in INSIDE.items()
        if scalars.get(part) and math.isfinite(scalars[part]) and (has_gain or not has_influences)
    }
    drawn = [0.0, *values.values(), *inside.values(), rest or 0.0]
    low, reach = min(drawn), (max(drawn) - min(drawn)) or 1.0
    older = []
    if newest is not None and newest != report.step:
        said = (
            f"Of step {count(report.step)}, the newest with influences; above is {count(newest)}."
        )
        older = [html.P(said, className="warning small token-sentence")]
    heading = ["By ", *of, f", step {count(report.step)}, {unit}"]
    rows = [
        html.Div(heading, className="dim small num"),
        *older,
        *(_sentence(words) for words in sources_of(report)),
    ]
    for part, value in values.items():
        share = ""
        if pull and (value < 0) == (lowering >= raising):
            share = f"{percent(abs(value) / pull, 0)} of the pull"
        shown = {"a": part.removeprefix("change/"), "sign": "both"}
        name = html.Button(
            MEANINGS[part].capitalize(),
            type="button",
            className="link",
            **{"data-show": json.dumps(shown)},
        )
        signs = html.Div(basics.write_symbols(QUADRANTS[part]), className="dim small")
        rows.append(_pull_row([name, signs], value, share, low, reach))
    for what, value in inside.items():
        name_inside = [html.Div(what), basics.text("within the four above", "dim small")]
        rows.append(_pull_row(name_inside, value, "", low, reach, look=" inside"))
    if rest is not None:
        words: list[Any] = [html.Div("Momentum and the rest")]
        momentum = scalars.get(ENTROPY_PREDICTED_BY_MOMENTUM)
        if momentum is not None:
            words.append(basics.text(f"momentum alone {change(momentum)}", "dim small num"))
        rows.append(_pull_row(words, rest, "", low, reach))
        total = [html.B("Predicted ΔH"), basics.spacer(), html.B(change(predicted))]
        rows.append(html.Div(total, className="row num"))
    return rows


def _pull_row(
    name: list[Any], value: float, share: str, low: float, reach: float, look: str = ""
) -> html.Div:
    """A bar from 0 to `value`, on an axis that begins at `low` and is `reach` long."""
    zero, width = -100 * low / reach, 100 * abs(value) / reach
    left, side = zero, "up"
    if value < 0:
        left, side = zero - width, "down"
    bars = [
        html.I(className="zero", style={"left": f"{zero:.1f}%"}),
        html.I(className=side + look, style={"width": f"{width:.1f}%", "left": f"{left:.1f}%"}),
    ]
    said = [html.B(change(value)), html.Div(share, className="dim small")]
    return html.Div(
        [
            html.Div(name),
            html.Div(bars, className="pull-bar", **{"aria-hidden": "true"}),
            html.Div(said, className="num pull-value"),
        ],
        className="pull-row",
    )


def recurring_rows(recurring: RecurringTokens, chosen: token_text.Filter) -> list[dict[str, Any]]:
    """Rows of the grid: shares as parts of one, None where not measured."""
    items = [item for item in recurring.items if _is_shown(item, chosen)]
    return [
        {
            "id": f"{item.token_id}-{item.text}",
            "token": token_text.name_of(item.text, item.token_id),
            "lowers": item.contribution < 0,
            "share": item.share,
            "contribution": item.contribution,
            "times": item.times,
            "p": item.mean_probability,
            "score": item.mean_score,
            "kept": item.kept_share,
            "kept_if": None if item.beyond_share is None else 1 - item.beyond_share,
        }
        for item in items
    ]


def _is_shown(item: RecurringToken, chosen: token_text.Filter) -> bool:
    """Whether a text passes the filters. A contribution is −g S_c: its sign and that of the mean
    score tell the advantage's."""
    score = item.mean_score
    if score is None:
        return chosen.passes(item.text, item.contribution, item.kept_share)
    advantage = -item.contribution * score
    return chosen.passes(item.text, item.contribution, item.kept_share, advantage, score)


def sum_in_words(
    recurring: RecurringTokens, chosen: token_text.Filter, counts: SeriesColumns
) -> str:
    """Which share of the pull the listed tokens make together, and over how many tokens of the same
    steps the rest of it is spread."""
    if not recurring.items:
        return ""
    lowers = recurring.items[0].contribution < 0
    listed = [
        item
        for item in recurring.items
        if (item.contribution < 0) == lowers and item.share is not None and _is_shown(item, chosen)
    ]
    if not listed and chosen.part:
        return (
            "None is among the 16 tokens of a step that contribute most: many pull a little each."
        )
    if not listed:
        return ""
    share = sum(abs(item.share or 0.0) for item in listed)
    way = "raise"
    if lowers:
        way = "lower"
    words = f"The {count(len(listed))} listed that {way} it make {percent(share)} of the pull"
    tokens = {step: int(value) for step, value in zip(counts.step, counts.value, strict=True)}
    if tokens.keys() >= set(recurring.steps):
        others = sum(tokens[step] for step in recurring.steps) - sum(item.times for item in listed)
        words += f"; the rest is spread over {count(others)} other tokens of these steps"
    if share < FEW:
        words += ". It is a kind of tokens that pulls, not a few words: choose one above"
    return f"{words}."


def _steps_words(recurring: RecurringTokens) -> str:
    steps = recurring.steps
    if not steps:
        return ""
    if len(steps) > 1:
        return f"steps {count(steps[0])} to {count(steps[-1])}"
    return f"step {count(steps[0])}"


def _number(field: str, name: str, width: int, written: str, **more: Any) -> dict[str, Any]:
    return {
        "field": field,
        "headerName": name,
        "width": width,
        **basics.RIGHT,
        "valueFormatter": {"function": f"params.value == null ? '–' : {written}"},
        **more,
    }


COLUMNS: Sequence[dict[str, Any]] = (
    {
        "field": "token",
        "headerName": "Token",
        "flex": 1,
        "minWidth": 92,
        "tooltipField": "token",
        "cellClass": "mono recurring-token",
        "cellClassRules": {"down": "params.data.lowers", "up": "!params.data.lowers"},
    },
    _number(
        "share",
        "Share of pull",
        104,
        "(params.value < 0 ? 'lowers ' : 'raises ') + d3.format(Math.abs(params.value) < 0.001 ?"
        " '.2f' : '.1f')(100 * Math.abs(params.value)) + ' %'",
    ),
    _number("times", "Times", 50, "params.value"),
    _number("p", "p", 64, "params.value < 0.0005 ? '< 0.001' : d3.format('.3f')(params.value)"),
    _number(
        "score",
        "Score",
        62,
        "((params.value > 0 ? '+' : '') + d3.format('.1f')(params.value)).replace('-', '−') + ' σ'",
    ),
    _number("kept", "Kept", 54, "d3.format('.0f')(100 * params.value) + ' %'"),
    _number(
        "kept_if",
        "Kept if µ, all",
        92,
        "d3.format('.0f')(100 * params.value) + ' %'",
        headerTooltip=IF_MU,
    ),
)


async def layout(_client: AsyncClient, view: View) -> Component:
    """Filters over two columns: running text, and beside it the pull and the recurring tokens."""
    chosen = token_text.Filter.read(view)
    find = basics.search("q", chosen.text, "Search texts", width=176)
    order = dmc.Select(
        id={"param": "by"},
        data=[{"value": value, "label": words} for value, words in token_text.ORDERS],
        value=view.query.get("by", ""),
        size="xs",
        w=186,
        **{"aria-label": "Order of the rollouts"},
    )
    filters = basics.row(
        find,
        basics.choice(
            "sign",
            [("both", "Both signs"), ("down", "Pulls down"), ("up", "Raises")],
            chosen.sign,
            "Effect",
        ),
        basics.choice(
            "kept",
            [("all", "Kept and clipped"), ("kept", "Kept"), ("clipped", "Clipped")],
            chosen.kept,
            "Gradient",
        ),
        dmc.Select(
            id={"param": "a"},
            data=[{"value": part, "label": words} for part, words in token_text.PARTS.items()],
            value=chosen.part,
            size="xs",
            w=150,
            allowDeselect=False,
            **{"aria-label": "Tokens by advantage and score"},
        ),
        basics.spacer(),
        html.Div(id="token-legend", className="row small token-legend"),
        name="token-filters",
    )
    context = basics.card(
        html.Div(id="token-context"),
        # Filled by the browser, beside the token that is chosen.
        html.Div(id="token-card", className="token-card", role="tooltip", hidden=True),
        title=["In context", html.Span("Rollouts that contribute most", className="unit")],
        beside=basics.row(html.Span(id="token-count", className="dim num small"), order),
        name="token-rollouts",
    )
    pull = basics.card(
        html.Div(id="token-pull"), title="Where the pull comes from", name="token-side"
    )
    tokens = basics.grid(
        "recurring",
        COLUMNS,
        row_id="id",
        empty="No token recurs, or none passes the filters",
        className="recurring-grid",
        defaultColDef={"resizable": False},
        dashGridOptions={"rowHeight": 31, "headerHeight": 28},
    )
    recurring = basics.card(
        html.Div(id="recurring-sum", className="dim small recurring-sum"),
        tokens,
        title="Recurring tokens",
        beside=html.Span(id="recurring-steps", className="dim small num"),
        name="token-side recurring-card",
    )
    return html.Div(
        [
            filters,
            html.Div(
                [context, html.Div([pull, recurring], className="token-column")],
                className="token-columns",
            ),
        ],
        className="tokens",
    )


PART = Part(name="tokens", read=read, layout=layout, properties={"recurring": "rowData"})
