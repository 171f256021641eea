"""The tab of tokens: running text, filters, where the pull comes from, tokens that recur."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest
from playwright.sync_api import expect
from plotly.io.json import to_json_plotly

from isentrope.client import calls
from isentrope_dashboard.components import token_text
from isentrope_dashboard.figures.chart import EMPTY
from isentrope_dashboard.formatting import percent
from isentrope_dashboard.pages import tokens
from isentrope_dashboard.view import View
from isentrope_wire.answers import Rollouts, SeriesColumns
from isentrope_wire.answers import StepReport as AnsweredStep
from isentrope_wire.reports import DROPPED_PARTS, PREDICTION_BASIS, Rollout, StepReport
from tests.dashboard.conftest import OpenPage, Site
from tests.dashboard.made_answers import words

HOSTILE = "<img src=x onerror=alert(1)>"


def rollout(*parts: tuple[str, float | None, bool | None], **known: Any) -> Rollout:
    """Of tokens with a text, a contribution and whether they are kept; p = 1/2 and S_c = 0.2
    each."""
    texts, contributions, kept = (list(column) for column in zip(*parts, strict=True))
    of_counted = [None if value is None else 1.0 for value in contributions]
    return Rollout(
        **{
            "rank": 0,
            "sequence": 7,
            "first_position": 20,
            "cut_before": False,
            "cut_after": False,
            "advantage": -1.25,
            "reward": 0.0,
            "absolute_contribution": 1.0,
            "texts": texts,
            "kept": kept,
            "contributions": contributions,
            "logprobs": [value and -math.log(2) for value in of_counted],
            "vocab_centered_scores": [value and 0.2 for value in of_counted],
            **known,
        }
    )


def answer(*items: Rollout, **known: Any) -> Rollouts:
    return Rollouts(
        **{
            "step": 5,
            "items": list(items),
            "score_std": 0.1,
            "lowering": -2.0,
            "raising": 0.5,
            **known,
        }
    )


WAIT = rollout(
    (" Then", 0.001, True),
    (" wait", -0.5, False),
    ("!", None, None),
    (" so", 0.25, True),
    (" it", -0.1, True),
)


def shown(*items: Rollout, **wanted: Any) -> list[dict[str, Any]]:
    """Every coloured token of the rows: its properties."""
    rows = json.loads(
        to_json_plotly(token_text.rollout_rows(answer(*items), token_text.Filter(**wanted)))
    )
    pieces = [piece for row in rows for piece in row["props"]["children"][1]["props"]["children"]]
    return [piece["props"] for piece in pieces if isinstance(piece, dict)]


def test_tokens_that_contribute_are_marked_and_the_rest_is_text() -> None:
    row = json.loads(to_json_plotly(token_text.rollout_rows(answer(WAIT), token_text.Filter())))[0]
    pieces = row["props"]["children"][1]["props"]["children"]
    words = [piece if isinstance(piece, str) else [piece["props"]["children"]] for piece in pieces]
    assert words == [" Then ", ["wait"], "! ", ["so"], " ", ["it"]]
    marked = shown(WAIT)
    assert [token["className"] for token in marked] == [
        "token down clipped",
        "token up",
        "token down",
    ]
    assert [token["tabIndex"] for token in marked] == [0, -1, -1]
    strengths = [token["style"]["--strength"] for token in marked]
    assert strengths[0] > strengths[1] > strengths[2]


def test_what_a_threshold_would_clip_is_outlined() -> None:
    item = replace(WAIT, vocab_centered_scores=(0.19, 0.3, None, -0.21, 0.2))
    looks = {token["children"]: token["className"] for token in shown(item, mu=2.0)}
    assert looks == {"wait": "token down clipped", "so": "token up over-mu", "it": "token down"}
    assert "Then" in [
        token["children"] for token in shown(item, mu=1.0)
    ]  # however little it contributes


def test_a_token_has_its_numbers() -> None:
    assert shown(WAIT)[0]["data-facts"].split("\n") == [
        "“␣wait”\tclipped",
        "Share of the pull\t−25.0\N{NO-BREAK SPACE}%",
        "Probability p\t0.500",
        "Score S_c\t+2.0 σ",
        "Advantage A\t−1.25",
        "Position\trow 7, token 21",
    ]


def test_influences_colour_where_every_step_shown_has_them() -> None:
    measured = replace(WAIT, influences=(0.0, 1e-4, None, -4e-4, 0.0))
    assert [one["className"] for one in shown(measured)] == ["token up clipped", "token down"]
    (so,) = shown(measured, sign="down")
    assert so["children"] == "so"
    assert "Influence\t−0.0004" in so["data-facts"]
    assert "Influence" not in shown(measured, WAIT)[0]["data-facts"]
    assert "by influence" in words(token_text.legend(1.0, token_text.coloured_by([measured])))
    assert "by influence" not in words(
        token_text.legend(1.0, token_text.coloured_by([measured, WAIT]))
    )


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ({"sign": "down"}, ["wait", "it"]),
        ({"sign": "up"}, ["so"]),
        ({"kept": "clipped"}, ["wait"]),
        ({"kept": "kept"}, ["so", "it"]),
        ({"text": "WAI"}, ["wait"]),
        ({"part": "negative", "sign": "up"}, ["so"]),
        ({"part": "negative_high"}, ["wait", "so", "it"]),
        ({"part": "negative_low"}, []),
        ({"part": "positive"}, []),
    ],
)
def test_filters(wanted: dict[str, str], found: list[str]) -> None:
    assert [token["children"] for token in shown(WAIT, **wanted)] == found


def test_filters_come_from_the_address() -> None:
    view = View(query={"q": "x", "sign": "up", "kept": "clipped", "a": "negative"})
    assert token_text.Filter.read(view) == token_text.Filter(
        text="x", sign="up", kept="clipped", part="negative", mu=1.0
    )
    assert token_text.Filter.read(view, 3.0).mu == 3.0
    assert token_text.Filter.read(View(query={"mu": "2.5"}), 3.0).mu == 2.5


def test_what_is_cut_shows_it_and_what_is_invisible_can_be_seen() -> None:
    item = rollout(
        ("", -0.5, True),
        (" ", -0.4, True),
        ("\n\n", -0.4, True),
        ("\u202e", -0.3, True),
        cut_before=True,
        cut_after=True,
    )
    row = json.loads(to_json_plotly(token_text.rollout_rows(answer(item), token_text.Filter())))[0]
    pieces = row["props"]["children"][1]["props"]["children"]
    assert [
        piece if isinstance(piece, str) else [piece["props"]["children"]] for piece in pieces
    ] == [
        "… ",
        ["·"],
        ["␣"],
        ["⏎⏎"],
        "\n",
        ["\\u202e"],
        " …",
    ]


def test_numbers_are_written_as_shares_and_probabilities() -> None:
    assert token_text.share_words(-0.024) == "−2.4\N{NO-BREAK SPACE}%"
    assert token_text.share_words(0.0004) == "+0.04\N{NO-BREAK SPACE}%"
    assert token_text.probability(math.log(0.012)) == "0.012"
    assert token_text.probability(math.log(2e-5)) == "2e−5"
    assert token_text.pull_of(-2.0, 0.5) == 2.0
    assert token_text.pull_of(None, 0.5) is None
    assert token_text.pull_of(0.0, 0.0) is None
    assert token_text.visible(None) == "–"
    assert token_text.readable("a\tb\u200bc") == "a b\\u200bc"
    assert [token_text.name_of(*one) for one in (("a ", 5), (None, 5), ("\ufffd", 5))] == [
        "a␣",
        "id 5",
        "\ufffd id 5",
    ]


def with_rollouts(report: StepReport) -> StepReport:
    return replace(
        report,
        rollouts=(replace(WAIT, cut_after=True, texts=(" Then", HOSTILE, "!", " so", " it")),),
    )


def test_the_tab_shows_the_step_of_the_address(site: Site) -> None:
    run = site.run(
        12,
        change=lambda report: (
            with_rollouts(report) if report.step <= 8 else replace(report, rollouts=())
        ),
    )
    values = site.values(tokens.PART, f"/runs/{run}?tab=tokens&step=6&mu=9")
    assert HOSTILE in words(values["token-context"])
    assert values["token-count"] == "step 6, 1 rollout"
    assert values["recurring-steps"] == "steps 1 to 6"
    filtered = site.values(tokens.PART, f"/runs/{run}?tab=tokens&step=6&q=nowhere")
    assert filtered["token-count"] == "step 6, 0 of 1 rollout"
    newest = site.values(tokens.PART, f"/runs/{run}?tab=tokens")
    assert newest["token-count"] == "step 8, 1 rollout"
    without = site.values(tokens.PART, f"/runs/{run}?tab=tokens&step=12")
    table = to_json_plotly(without["token-context"])
    reported = site.client.ask(calls.tokens(run, step=12))
    assert table.count('"Tr"') == len(reported.items) + 1
    assert len(without["recurring"]) == len(
        site.client.ask(calls.recurring_tokens(run, steps=10)).items
    )


def test_the_pull_is_split_by_quadrant(site: Site) -> None:
    audited = {
        "influence/negative_low": -0.003,
        "influence/positive_high": -0.001,
        "influence/positive_low": 0.002,
    }
    run = site.run(
        3,
        change=lambda one: replace(
            one, scalars={**one.scalars, **(audited if one.step == 2 else {})}
        ),
    )
    scalars = site.client.step(run, 3).scalars
    for address, step, of, sums in (
        ("", 2, "influence", audited),
        ("&step=3", 3, "g S c", scalars),
    ):
        down = [
            value
            for name, value in sums.items()
            if name.endswith(("/negative_low", "/positive_high"))
        ]
        shown = words(site.values(tokens.PART, f"/runs/{run}?tab=tokens{address}")["token-pull"])
        assert f"By {of} , step {step}, " in " ".join(shown.split())
        for value in down:
            assert (
                f"{abs(value) / -sum(down):.0%}".removesuffix("%")
                + "\N{NO-BREAK SPACE}% of the pull"
                in shown
            )
    assert "of the pull" not in to_json_plotly(tokens.quadrant_bars(None))


def step_of(**scalars: float) -> AnsweredStep:
    return AnsweredStep(
        step=3, recorded_at=1.0, received_at=1.0, control_version=0, incarnation="i", rank=0,
        scalars={name.replace("__", "/"): value for name, value in scalars.items()},
        histograms=[], labels={PREDICTION_BASIS: "loss_gradient", DROPPED_PARTS: "texts"},
    )  # fmt: skip


PARTS = {"negative_low": -0.004, "positive_high": -0.001, "positive_low": 0.002}


@pytest.mark.parametrize(
    ("kind", "gain", "predicted", "rest"),
    [
        ("influence", {}, -0.007, "−0.0040"),
        ("change", {"entropy__gain": 0.5}, -0.007, "−0.0055"),
        ("change", {}, -0.007, None),
        ("change", {"entropy__gain": -0.5}, -0.007, None),
    ],
)
def test_the_parts_add_up_to_the_prediction(
    kind: str, gain: dict[str, float], predicted: float, rest: str | None
) -> None:
    parts = {f"{kind}__{name}": value for name, value in PARTS.items()}
    report = step_of(**parts, **gain, entropy__predicted_change=predicted)
    said = " ".join(words(tokens.quadrant_bars(report)).split())
    assert ("Predicted ΔH" in said) == (rest is not None)
    if rest is not None:
        assert said.endswith(f"Momentum and the rest {rest} Predicted ΔH −0.0070")
    assert "the newest with influences" not in said
    acts = step_of(**parts, **gain, change__by_intervention=0.002)
    older = " ".join(words(tokens.quadrant_bars(acts, newest=9)).split())
    assert "Of step 3, the newest with influences; above is 9." in older
    assert ("The control's share" in older) == (kind == "change")


def test_the_list_says_what_it_makes_together(site: Site) -> None:
    run = site.run(8)
    recurring = site.client.ask(calls.recurring_tokens(run, steps=3))
    counts = {step: site.client.step(run, step).scalars["token/count"] for step in recurring.steps}
    listed = [item for item in recurring.items if item.contribution < 0]
    share = sum(abs(item.share or 0) for item in listed)
    others = int(sum(counts.values())) - sum(item.times for item in listed)
    column = SeriesColumns(step=[*counts], value=[*counts.values()], min=None, max=None)
    said = tokens.sum_in_words(recurring, token_text.Filter(), column)
    assert said.startswith(f"The {len(listed)} listed that lower it make {percent(share)} of the")
    assert f"over {others:,} other tokens" in said
    assert ("a kind of tokens" in said) == (share < tokens.FEW)
    assert "spread" not in tokens.sum_in_words(recurring, token_text.Filter(), EMPTY)
    assert tokens.sum_in_words(recurring, token_text.Filter(sign="up"), column) == ""
    none = token_text.Filter(sign="up", part="negative_low")
    assert tokens.sum_in_words(recurring, none, column).startswith("None is among the 16")


def test_a_filter_puts_what_it_shows_first() -> None:
    loud = rollout((" so", 0.9, True), (" it", -0.1, True), sequence=1)
    quiet = rollout((" wait", -0.4, True), sequence=2)
    for sign, first in (("both", 1), ("down", 2), ("up", 1)):
        rows = token_text.rollout_rows(answer(loud, quiet), token_text.Filter(sign=sign))
        assert words(rows[0]).startswith(f"Rollout {first} ")


def test_a_step_says_its_basis_and_what_it_lacks() -> None:
    assert tokens.sources_of(step_of()) == [
        "Predicted from the loss's gradient.",
        "Not reported: texts.",
    ]
    assert tokens.sources_of(None) == []


def test_a_run_without_tokens_is_a_sentence(site: Site) -> None:
    def of(report: StepReport) -> StepReport:
        unmoved = tuple(replace(one, contribution=0.0) for one in report.tokens)
        return replace(report, tokens=unmoved if report.step == 2 else (), rollouts=())

    address = f"/runs/{site.run(2, change=of)}?tab=tokens&step="
    values = site.values(tokens.PART, f"{address}1")
    assert tokens.GATE_TOKENS in to_json_plotly(values["token-context"])
    assert values["recurring"] == []
    assert words(site.values(tokens.PART, f"{address}2")["token-context"]) == tokens.NO_PULL


def test_two_steps_are_side_by_side_for_one_prompt(site: Site) -> None:
    def asked(report: StepReport) -> StepReport:
        items = [
            replace(
                WAIT,
                prompt="7 8 9" if report.step % 3 == 0 else f"of {report.step}",
                reward=float(report.step),
            )
        ]
        return replace(report, rollouts=tuple(items))

    run = site.run(9, change=asked)
    one = site.values(tokens.PART, f"/runs/{run}?tab=tokens&step=6")["token-context"]
    assert "7 8 9 also in step 3 9" in " ".join(words(one).split())
    both = site.values(tokens.PART, f"/runs/{run}?tab=tokens&step=6&beside=3")
    shown = " ".join(words(both["token-context"]).split())
    assert shown.startswith("7 8 9 Step 3 Rollout 7 reward 3.00")
    assert "Step 6 Rollout 7 reward 6.00" in shown
    none = site.values(tokens.PART, f"/runs/{run}?tab=tokens&step=6&beside=4")
    assert "Rollout" not in words(none["token-context"])


def test_recurring_tokens_say_what_a_threshold_would_keep(site: Site) -> None:
    run = site.run(8)
    address = f"/runs/{run}?tab=tokens&step=8&mu="
    reported = [
        (token.text, abs(token.vocab_centered_score) / of_step.score_std)
        for of_step in (site.client.ask(calls.tokens(run, step=step)) for step in range(1, 9))
        for token in of_step.items
        if of_step.score_std
    ]
    for mu in (0.0, 4.0, 100.0):
        for row in site.values(tokens.PART, address + str(mu))["recurring"]:
            scores = [score for text, score in reported if token_text.visible(text) == row["token"]]
            assert row["kept_if"] == pytest.approx(
                sum(score <= mu for score in scores) / len(scores)
            )


@pytest.mark.browser
def test_tokens_are_reached_from_a_chart_and_by_keys(site: Site, open_page: OpenPage) -> None:
    run = site.run(12, change=with_rollouts)
    page = open_page(f"/runs/{run}")
    page.locator("#chart-reward .nsewdrag").first.click(position={"x": 10, "y": 150})
    expect(page.get_by_role("tab", name="Tokens")).to_have_attribute("aria-selected", "true")
    assert "step=" in page.url
    found = page.locator("[data-facts]")
    expect(found).to_have_count(4)
    assert page.locator(".rollout-text img").count() == 0
    found.nth(1).focus()
    card = page.locator("#token-card")
    expect(card).to_contain_text(token_text.visible(HOSTILE))
    assert card.locator("img").count() == 0
    page.keyboard.press("ArrowRight")
    expect(card).to_contain_text("so")
    page.keyboard.press("Escape")
    expect(card).to_be_hidden()
    expect(page.locator("#recurring .ag-row").first).to_be_visible()
    page.get_by_placeholder("Search texts").fill("it")
    expect(found).to_have_count(1)


@pytest.mark.browser
def test_the_diagnosis_opens_the_tokens_of_its_cause(site: Site, open_page: OpenPage) -> None:
    page = open_page(f"/runs/{site.run(56)}")
    page.get_by_text("See the tokens").click()
    kind = page.get_by_label("Tokens by advantage and score", exact=True).first
    expect(kind).to_have_value("Unlikely, punished")
    expect(page.get_by_label("Pulls down")).to_be_checked()
    page.get_by_role("button", name="Likely tokens, rewarded", exact=True).click()
    expect(kind).to_have_value("Likely, rewarded")
    expect(page.get_by_label("Both signs")).to_be_checked()
    page.go_back()
    expect(page.locator("#health")).to_be_visible()


def test_a_rollout_has_its_prompt_and_the_parts_of_its_reward() -> None:
    asked = replace(
        WAIT, prompt="<b>7 8 9", answer="24", reward=0.5, rewards={"format": 0.25}, advantage=2.0
    )
    (row,) = token_text.rollout_rows(answer(asked), token_text.Filter())
    assert (
        " ".join(words(row).split())
        == "Rollout 7 reward 0.50 format 0.25 advantage +2.00 <b>7 8 9 Then wait ! so it"
        " expected 24"
    )
    assert len(token_text.rollout_rows(answer(asked, WAIT), token_text.Filter(text="8 9"))) == 1
    assert (
        len(token_text.rollout_rows(answer(asked, WAIT), token_text.Filter(text="then wait"))) == 2
    )
    unknown = replace(WAIT, reward=None)
    for order, first in {
        "": unknown,
        "-reward": asked,
        "reward": WAIT,
        "advantage": unknown,
        "prompt": asked,
    }.items():
        assert token_text.sort_rollouts([unknown, asked, WAIT], order)[0] == first
    assert token_text.sort_rollouts([unknown, asked, WAIT], "reward")[-1] == unknown
