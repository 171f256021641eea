"""How the commands print what the server answered: words, cells, tables and JSON."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from isentrope_wire.answers import Status
from isentrope_wire.control import ControlFields, Hold
from isentrope_wire.diagnosis.course import name_end
from isentrope_wire.numbers import plain_json, printable

if TYPE_CHECKING:
    from isentrope_wire.answers import RecurringToken, RunSummary
    from isentrope_wire.control_answers import ControlVersion, Estimate
    from isentrope_wire.diagnosis.health import Preview


def control_in_words(item: ControlFields) -> str:
    """The document of a control in one line, without its reason: `clip_v µ⁻ 1 µ⁺ 1 scope
    negative`."""
    thresholds = [
        f"{sign} {mu:g}"
        for sign, mu in (("µ⁻", item.mu_low), ("µ⁺", item.mu_high))
        if mu is not None
    ]
    words = [item.method, *thresholds]
    words += [
        f"{name} {'off' if value is None else cell(value)}"
        for name, value in item.parameters.items()
    ]
    if thresholds or item.scope != "all":
        words.append(f"scope {item.scope}")
    if item.hold:
        hold = Hold.from_document(item.hold)
        words.append(
            f"holding {hold.target_in_words} with µ {hold.mu_min:g} to {hold.mu_max:g} side"
            f" {hold.side}"
        )
    return " ".join(words)


def control_line(item: ControlVersion) -> str:
    """A version of a control with what became of it, in one line."""
    words = [f"version {item.version}:", control_in_words(item), item.state]
    if item.applied_step is not None:
        words.append(f"at step {item.applied_step}")
    if item.code:
        words.append(f"({item.code}: {item.message})")
    words.append(f"by {item.author}" + (f", because: {item.reason}" if item.reason else ""))
    return " ".join(words)


def preview_lines(preview: Preview) -> list[str]:
    """What a control would do: its sentence, and what that leaves out of clipped tokens and pace
    before and after; warnings."""
    lines, message = [preview.message], preview.message.lower()
    if preview.clip_fraction is not None and "clips" not in message:
        lines.append(f"clips: {100 * preview.clip_fraction:.3g} % of the tokens")
    if preview.pace is not None and "ΔH" not in preview.message:
        before, after = _pace_in_words(preview.unchanged), _pace_in_words(preview.pace)
        lines.append(f"pace: {before} -> {after} nats a step")
    lines += [f"warning: {text}" for text in preview.warnings if text not in preview.message]
    return [*lines, "Nothing was pushed."]


def _pace_in_words(pace: Estimate | None) -> str:
    if pace is None:
        return "not known"
    return f"{pace.value:+.3g}"


def health_in_words(run: RunSummary) -> tuple[str, str]:
    """The level of a running run, or how an ended one came out, and the share of its early entropy
    that is lost: `act` or `ended, collapsed`, `52 %`."""
    if run.digest is None:
        return "-", "-"
    lost = run.digest.share_lost
    if run.status is Status.RUNNING:
        level = str(run.digest.level)
    elif run.status.is_over:
        level = ", ".join(word for word in ("ended", name_end(lost)) if word)
    else:
        level = "-"
    return level, "-" if lost is None else f"{100 * lost:.0f} %"


def step_in_words(run: RunSummary) -> str:
    """The newest step, and behind it how many are planned where that is known: `12/150`."""
    if run.step is None:
        return "-"
    if run.planned_steps:
        return f"{run.step}/{run.planned_steps}"
    return str(run.step)


def age_in_words(at: float | None) -> str:
    """`5 s ago`, of a time in seconds since the Unix epoch; `never` of None."""
    if at is None:
        return "never"
    seconds = max(0.0, time.time() - at)
    for unit_seconds, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= unit_seconds:
            return f"{seconds / unit_seconds:.0f} {unit} ago"
    return f"{seconds:.0f} s ago"


def cell(value: object) -> str:
    """A value of a table; `-` where it was not measured."""
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.6g}"
    return str(value)


def top_token_row(item: RecurringToken) -> list[str]:
    """Text, direction, share of the pull, times, probability, S_c in standard deviations, share
    kept."""
    direction = "raises"
    if item.contribution < 0:
        direction = "lowers"
    text = f"id {cell(item.token_id)}"
    if item.text is not None:
        text = json.dumps(item.text, ensure_ascii=False)
    return [
        text,
        direction,
        _percent(item.share),
        str(item.times),
        f"{item.mean_probability:.3f}",
        "-" if item.mean_score is None else f"{item.mean_score:+.1f}",
        _percent(item.kept_share),
    ]


def _percent(share: float | None) -> str:
    if share is None:
        return "-"
    return f"{100 * abs(share):.3g} %"


def format_json(answer: object) -> str:
    """An answer as indented JSON, in which NaN is a text."""
    return json.dumps(plain_json(answer), indent=2)


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print columns of texts under a header."""
    table = [[printable(text) for text in row] for row in (header, *rows)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for row in table:
        cells = map(str.ljust, row, widths)
        click.echo("  ".join(cells).rstrip())
