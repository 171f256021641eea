"""Tokens: the rollouts of a step in running text, where the pull on the entropy comes from, and
tokens that recur."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Sequence
from typing import Any

import dash_mantine_components as dmc
from dash import html
from dash.development.base_component import Component

from isentrope.client import calls
from isentrope.client.connection import AsyncClient
from isentrope_dashboard.components import basics, token_text
from isentrope_dashboard.figures.chart import EMPTY
from isentrope_dashboard.formatting import change, count, percent
from isentrope_dashboard.live import Part, Values
from isentrope_dashboard.pages.steps import NO_STEP, PARAM, chosen_step, report_of
from isentrope_dashboard.view import View
from isentrope_wire.answers import RecurringTokens, Rollouts, StepReport, TopTokens
from isentrope_wire.diagnosis.pull import CAUSE_STEPS, MEANINGS, QUADRANTS
from isentrope_wire.metrics import CHANGE_POSITIVE_HIGH, INFLUENCES
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
IF_MU = "Share of them that Clip_V would keep with this µ on both sides"
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
        client.ask(calls.series(run_id, audit, from_step=max(0, (step or 0) - CAUSE_STEPS + 1))),
    )
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
        "token-pull": quadrant_bars(report, NO_STEP if run.step is None else NOTHING_MEASURED),
        "recurring": recurring_rows(recurring, chosen),
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
            body = _sentence("No token of these rollouts passes the filters.")
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


def quadrant_bars(report: StepReport | None, absent: str = NOTHING_MEASURED) -> list[Component]:
    """Influences, else parts of the unit prediction, by the signs of A and S_c, each with its share
    of the pull; or why there are none."""
    scalars = {}
    if report is not None:
        scalars = report.scalars
    sums = {}
    if INFLUENCES.values() & scalars.keys():
        sums = INFLUENCES
    known = {part: scalars.get(sums.get(part, part)) for part in MEANINGS}
    values = {
        part: value for part, value in known.items() if value is not None and math.isfinite(value)
    }
    if not values:
        return [_sentence(absent)]
    lowering = -sum(value for value in values.values() if value < 0)
    raising = sum(value for value in values.values() if value > 0)
    pull = max(lowering, raising)
    down, up = abs(min(0.0, *values.values())), max(0.0, *values.values())
    zero = 50.0
    if down + up:
        zero = 100 * down / (down + up)
    of, unit = ["g ", *basics.S_C], "nats per unit gain"
    if sums:
        of, unit = ["influence"], "nats"
    step = None
    if report is not None:
        step = report.step
    heading = ["By ", *of, f", step {count(step)}, {unit}"]
    rows = [
        html.Div(heading, className="dim small num"),
        *(_sentence(words) for words in sources_of(report)),
    ]
    for part, value in values.items():
        width = 0.0
        if down + up:
            width = 100 * abs(value) / (down + up)
        left, side = zero, "up"
        if value < 0:
            left, side = zero - width, "down"
        place = {"width": f"{width:.1f}%", "left": f"{left:.1f}%"}
        share = ""
        if pull and (value < 0) == (lowering >= raising):
            share = f"{percent(abs(value) / pull, 0)} of the pull"
        rows.append(
            html.Div(
                [
                    html.Div(
                        [
                            html.Div(basics.write_symbols(QUADRANTS[part]), className="strong"),
                            basics.text(MEANINGS[part], "dim small"),
                        ]
                    ),
                    html.Div(
                        [
                            html.I(className="zero", style={"left": f"{zero:.1f}%"}),
                            html.I(className=side, style=place),
                        ],
                        className="pull-bar",
                        **{"aria-hidden": "true"},
                    ),
                    html.Div(
                        [html.B(change(value)), html.Div(share, className="dim small")],
                        className="num pull-value",
                    ),
                ],
                className="pull-row",
            )
        )
    return rows


def recurring_rows(recurring: RecurringTokens, chosen: token_text.Filter) -> list[dict[str, Any]]:
    """Rows of the grid: shares as parts of one, None where not measured."""
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
        for item in recurring.items
        if chosen.passes(item.text, item.contribution, item.kept_share)
    ]


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
        "Kept if µ",
        72,
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
        basics.choice(
            "a",
            [("any", "Any A"), ("negative", "A < 0"), ("positive", "A > 0")],
            chosen.advantage,
            "Advantage",
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
