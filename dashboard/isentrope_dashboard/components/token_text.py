"""Rollouts as running text whose tokens are coloured by what they do to the entropy, and tables of
tokens.

A token's text is untrusted: it is only ever a child or an attribute of a component, never markup.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, Literal

from dash import html
from dash.development.base_component import Component

from isentrope_dashboard.components.basics import S_C, native, table, text
from isentrope_dashboard.formatting import MISSING, change, count, number, percent
from isentrope_dashboard.view import View
from isentrope_wire.answers import Rollouts, TopTokens
from isentrope_wire.diagnosis.pull import MEANINGS
from isentrope_wire.reports import Rollout

LEAST_SHOWN = 0.03
"""Tokens below this share of the page's largest contribution are plain text, except clipped
ones."""
FAINTEST, STRONGEST = 0.1, 0.54  # text on a stronger ground is hard to read in the dark
"""Opacity of a token's ground."""
NOTHING_VISIBLE = "·"
MOST_MU = 100
MOST_OTHERS = 6
"""Other steps with a prompt that are offered: the first ones and the last."""


PARTS = {
    "": "All tokens",
    **{
        part.removeprefix("change/"): words.capitalize().replace(" tokens", "")
        for part, words in MEANINGS.items()
    },
    "negative": "All punished",
    "positive": "All rewarded",
}
"""Tokens by the signs of advantage and score, as the address names them, and in words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """Which tokens the reader wants to see."""

    text: str = ""
    sign: str = "both"
    """`both`, `down` or `up`."""
    kept: str = "all"
    """`all`, `kept` or `clipped`."""
    part: str = ""
    """A key of PARTS."""
    mu: float = math.inf
    """No filter, but a look: tokens whose |S_c| is beyond it, in standard deviations, are
    outlined."""

    @classmethod
    def read(cls, view: View, usual_mu: float = 1.0) -> Filter:
        """As the address has it; without a µ in it, that of the control that acts."""
        query = view.query
        try:
            mu = float(query.get("mu", usual_mu))
        except ValueError:
            mu = usual_mu
        return cls(
            mu=mu if 0 <= mu <= MOST_MU else usual_mu,
            text=query.get("q", ""),
            sign=query.get("sign", "both"),
            kept=query.get("kept", "all"),
            part=query.get("a", ""),
        )

    def passes(
        self,
        words: str | None,
        contribution: float,
        kept_share: float,
        advantage: float | None = None,
        score: float | None = None,
    ) -> bool:
        """Whether the reader wants to see a token, or several of one text. The contribution is
        below 0 where it pulls the entropy down; the kept share is 1 if none was clipped."""
        of_advantage, _, of_score = self.part.partition("_")
        return (
            self.text.casefold() in (words or "").casefold()
            and not (self.sign == "down" and contribution >= 0)
            and not (self.sign == "up" and contribution <= 0)
            and not (self.kept == "kept" and kept_share == 0)
            and not (self.kept == "clipped" and kept_share == 1)
            and not (of_advantage == "positive" and advantage is not None and advantage <= 0)
            and not (of_advantage == "negative" and advantage is not None and advantage >= 0)
            and not (of_score == "high" and score is not None and score <= 0)
            and not (of_score == "low" and score is not None and score > 0)
        )


def visible(words: str | None) -> str:
    """Text with every character visible: what is not printable, or turns the reading direction, by
    its number."""
    if words is None:
        return MISSING
    known = {" ": "␣", "\n": "⏎", "\t": "⇥"}
    return (
        "".join(known.get(c) or (c if c.isprintable() else f"\\u{ord(c):04x}") for c in words)
        or NOTHING_VISIBLE
    )


def name_of(words: str | None, token_id: int | None) -> str:
    """A token in a table: its text, or id; both where the text does not tell it from others, as of
    a part of a character."""
    if words is not None and "\ufffd" not in words:
        return visible(words)
    own_id = f"id {MISSING if token_id is None else token_id}"
    if words is None:
        return own_id
    return f"{visible(words)} {own_id}"


def readable(words: str) -> str:
    """Running text: lines stay, what can't be printed or turns the reading direction is shown by
    its number."""
    plain = words.replace("\t", " ")
    return "".join(c if c.isprintable() or c == "\n" else f"\\u{ord(c):04x}" for c in plain)


def pull_of(lowering: float | None, raising: float | None) -> float | None:
    """What shares are of: the contributions of all tokens that move the entropy the way it goes, as
    a positive number."""
    if lowering is None or raising is None:
        return None
    return max(-lowering, raising) or None


def probability(logprob: float) -> str:
    """Probability of a token; a very small one as a power of ten."""
    value = math.exp(min(logprob, 0.0))
    if value >= 0.001:
        return number(value)
    return f"{value:.0e}".replace("e-0", "e−").replace("e-", "e−")


def share_words(share: float | None) -> str:
    """A signed share of the pull."""
    if share is None or not math.isfinite(share):
        return number(share)
    words = percent(share, 1 if abs(share) >= 0.001 else 2)
    if share > 0:
        return f"+{words}"
    return words


def _sigmas(score: float, std: float | None) -> str:
    if std:
        return f"{number(score / std, 1, signed=True)} σ"
    return f"{number(score, signed=True)} nats"


ORDERS = (
    ("", "Largest pull first"),
    ("-reward", "Highest reward first"),
    ("reward", "Lowest reward first"),
    ("-advantage", "Highest advantage first"),
    ("advantage", "Lowest advantage first"),
    ("prompt", "By prompt"),
)


def sort_rollouts(items: Sequence[Rollout], order: str) -> list[Rollout]:
    """The rollouts as the reader wants them; those without the value last, equal ones by their
    pull."""
    name = order.removeprefix("-")
    known = [item for item in items if getattr(item, name, None) is not None]
    ordered = []
    if known:
        ordered = sorted(known, key=attrgetter(name), reverse=order != name)
    return [*ordered, *(item for item in items if item not in known)]


def coloured_by(items: Sequence[Rollout]) -> Literal["influences", "contributions"]:
    """What says how a token moves the entropy: its influence where the steps have it, else g
    S_c."""
    if items and all(item.influences for item in items):
        return "influences"
    return "contributions"


def rollout_rows(
    answer: Rollouts, wanted: Filter, order: str = "", *scale: Rollouts
) -> list[Component]:
    """The rollouts that have a token which passes the filter, or whose texts have the words that
    are looked for. Colours are shares of the largest effect here and in `scale`."""
    every = [item for one in (answer, *scale) for item in one.items]
    by = coloured_by(every)
    sizes = [abs(value) for item in every for value in getattr(item, by) if value is not None]
    largest = max((size for size in sizes if math.isfinite(size)), default=0.0)
    rows: list[Component] = []
    items = sort_rollouts(answer.items, order)
    if not order and (wanted.sign != "both" or wanted.part):
        items.sort(key=lambda item: -_pull_shown(item, wanted, by))
    for item in items:
        words, found = _running_text(item, answer, wanted, by, largest, has_focus=not rows)
        whole = "\n".join([item.prompt or "", "".join(item.texts), item.answer or ""])
        if not found and wanted.text and wanted.text.casefold() in whole.casefold():
            words, found = _running_text(
                item, answer, replace(wanted, text=""), by, largest, has_focus=not rows
            )
        if found:
            parts = [_about(item)]
            if item.prompt is not None:
                parts.append(_prompt(item.prompt, answer))
            parts.append(html.Div(words, className="rollout-text"))
            if item.answer:
                expected = [text("expected ", "dim"), readable(item.answer)]
                parts.append(html.Div(expected, className="rollout-answer"))
            rows.append(html.Div(parts, className="rollout"))
    return rows


def _pull_shown(item: Rollout, wanted: Filter, by: str) -> float:
    """Sum of the sizes of a rollout's effects that pass the filter."""
    effects: Sequence[float | None] = getattr(item, by)
    tokens = zip(item.texts, effects, item.kept, item.vocab_centered_scores, strict=True)
    return sum(
        abs(effect)
        for words, effect, kept, score in tokens
        if effect is not None
        and wanted.passes(words, effect, float(kept is not False), item.advantage, score)
    )


def _prompt(prompt: str, answer: Rollouts) -> html.Div:
    """The prompt, and the steps beside which it can be looked at."""
    shown = answer.also_in.get(prompt, [])
    if len(shown) > MOST_OTHERS:
        shown = [*shown[: MOST_OTHERS - 1], shown[-1]]
    buttons = [
        html.Button(
            count(step),
            type="button",
            className="link num",
            title=f"Steps {count(answer.step)} and {count(step)} side by side",
            **{"data-show": json.dumps({"step": answer.step, "beside": step})},
        )
        for step in shown
    ]
    also = []
    if shown:
        also = [html.Div(["also in step ", *buttons], className="also-in")]
    return html.Div([readable(prompt.strip()), *also], className="rollout-prompt")


def side_by_side(
    first: Rollouts, second: Rollouts, wanted: Filter, order: str = ""
) -> list[Component]:
    """The rollouts of two steps, for each prompt that both have: the earlier step at the left."""
    both = sorted((first, second), key=lambda rollouts: rollouts.step or 0)
    rows: list[Component] = []
    for prompt in dict.fromkeys(item.prompt for item in first.items if item.prompt):
        of_prompt = [
            replace(one, also_in={}, items=[item for item in one.items if item.prompt == prompt])
            for one in both
        ]
        if all(one.items for one in of_prompt):
            sides = [
                html.Div(
                    [html.B(f"Step {count(one.step)}"), *rollout_rows(one, wanted, order, *both)]
                )
                for one in of_prompt
            ]
            rows.append(
                html.Div(
                    [html.Div(readable(prompt.strip()), className="rollout-prompt"), *sides],
                    className="two-steps",
                )
            )
    return rows


def _about(item: Rollout) -> html.Div:
    rank = ""
    if item.rank:
        rank = f" · rank {item.rank}"
    lines = [
        html.Div(html.B(f"Rollout {MISSING if item.sequence is None else item.sequence}{rank}"))
    ]
    if item.reward is not None:
        lines.append(html.Div(["reward ", html.Span(number(item.reward, 2), className="strong")]))
    lines += [
        html.Div([f"{name} ", html.Span(number(part, 2), className="strong")], className="part")
        for name, part in sorted(item.rewards.items())
    ]
    lines.append(
        html.Div(
            ["advantage ", html.Span(number(item.advantage, 2, signed=True), className="strong")]
        )
    )
    return html.Div(lines, className="rollout-about dim num")


def _running_text(
    item: Rollout, answer: Rollouts, wanted: Filter, by: str, largest: float, *, has_focus: bool
) -> tuple[list[Any], int]:
    """The text with its tokens, and how many of them pass the filter. The first one can be reached
    by the Tab key."""
    pieces: list[Any] = []
    if item.cut_before:
        pieces.append("… ")
    pull, found = pull_of(answer.lowering, answer.raising), 0
    row = ""
    if item.sequence is not None:
        row = f"row {item.sequence}, "
    for index, words in enumerate(item.texts):
        contribution, kept = item.contributions[index], item.kept[index]
        effect = getattr(item, by)[index]
        logprob, score = item.logprobs[index], item.vocab_centered_scores[index]
        look = _look(effect or 0, kept, score, answer.score_std, wanted.mu)
        is_outlined = look.endswith(("clipped", "over-mu"))
        shown = effect is not None and (is_outlined or abs(effect) >= LEAST_SHOWN * largest > 0)
        if (
            not shown
            or contribution is None
            or not wanted.passes(words, effect, float(kept is not False), item.advantage, score)
        ):
            _add_text(pieces, readable(words))
            continue
        own = words.lstrip(" ") or words
        _add_text(pieces, " " * (len(words) - len(own)))
        strength = 0.0
        if largest:
            strength = abs(effect) / largest
        share = ("Contribution", change(contribution))
        if pull:
            share = ("Share of the pull", share_words(contribution / pull))
        gradient = "kept"
        if not kept:
            gradient = "clipped"
        elif is_outlined:
            gradient = f"clipped if µ {wanted.mu:g}"
        facts = [("Part of the next character", gradient)]
        if words:
            facts = [(f"“{visible(words)}”", gradient)]
        if by == "influences":
            facts.append(("Influence", change(effect)))
        p, sigmas, letters, tab_index = MISSING, MISSING, visible(own), -1
        if logprob is not None:
            p = probability(logprob)
        if score is not None:
            sigmas = _sigmas(score, answer.score_std)
        if own.strip(" \n"):
            letters = readable(own).strip("\n")
        if has_focus and not found:
            tab_index = 0
        facts += [
            share,
            ("Probability p", p),
            ("Score S_c", sigmas),
            ("Advantage A", number(item.advantage, 2, signed=True)),
            ("Position", f"{row}token {item.first_position + index}"),
        ]
        opacity = FAINTEST + (STRONGEST - FAINTEST) * math.sqrt(min(strength, 1.0))
        pieces.append(
            html.Span(
                letters,
                className=look,
                style={"--strength": round(opacity, 2)},
                tabIndex=tab_index,
                **{
                    "data-facts": "\n".join(f"{name}\t{value}" for name, value in facts),
                    "aria-describedby": "token-card",
                },
            )
        )
        if own.endswith("\n"):
            _add_text(pieces, "\n")
        found += 1
    if item.cut_after:
        _add_text(pieces, " …")
    return pieces, found


def _look(
    contribution: float, kept: bool | None, score: float | None, std: float | None, mu: float
) -> str:
    """The classes of a token: which way it pulls; whether it was clipped, or would be by Clip_V
    with µ on both sides."""
    is_beyond = score is not None and std and abs(score) > mu * std
    classes = ["token", "down" if contribution < 0 else "up"]
    if kept is False:
        classes.append("clipped")
    elif is_beyond:
        classes.append("over-mu")
    return " ".join(classes)


def _add_text(pieces: list[Any], words: str) -> None:
    if words and pieces and isinstance(pieces[-1], str):
        pieces[-1] += words
    elif words:
        pieces.append(words)


def top_token_table(answer: TopTokens, wanted: Filter) -> html.Table:
    """The top contributing tokens by themselves, for a run that reports no running text."""
    pull = pull_of(answer.lowering, answer.raising)
    rows = []
    for token in answer.items:
        score = token.vocab_centered_score
        if not wanted.passes(
            token.text, token.contribution, float(token.kept), token.advantage, score
        ):
            continue
        share = change(token.contribution)
        if pull:
            share = share_words(token.contribution / pull)
        cells = [
            share,
            probability(token.logprob),
            _sigmas(score, answer.score_std),
            number(token.advantage, 2, signed=True),
            count(token.sequence),
            count(token.position),
            "kept" if token.kept else "clipped",
        ]
        look = _look(token.contribution, token.kept, score, answer.score_std, wanted.mu)
        rows.append([html.Span(name_of(token.text, token.token_id), className=look), *cells])
    heads = (
        "Token",
        "Share" if pull else "Contribution",
        "p",
        "Score",
        "A",
        "Row",
        "Position",
        "Gradient",
    )
    return table(heads, rows, "token-table num")


def legend(mu: float, by: str) -> list[Any]:
    """What the looks of a token mean (of colours: `coloured_by`), and the µ that some of them are
    about."""
    says = {
        "aria-label": "µ of Clip_V",
        "title": "A threshold of Clip_V, on both sides",
        "data-param": "mu",
        "data-value": mu,
    }
    return [
        html.Span(["by influence"] if by == "influences" else ["by g ", *S_C], className="dim"),
        text("entropy down", "dim"),
        html.Span(className="token-scale", **{"aria-hidden": "true"}),
        text("up", "dim"),
        html.Span(className="rule"),
        html.Span("token", className="token clipped"),
        text("clipped", "dim"),
        html.Span("token", className="token over-mu"),
        text("clipped if µ", "dim"),
        native("input", type="number", min=0, max=MOST_MU, step=0.5, className="mu", **says),
    ]
