"""What is written about a reproduction: a picture and a table of each figure, and REPRODUCTION.md
over all of them."""

from __future__ import annotations

import csv
import os
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path

from isentrope_papers import drawing
from isentrope_papers.evidence import correct_for_many_tests
from isentrope_papers.figure import PAPERS, Check, Figure, Results, Row, RunsMissing
from isentrope_papers.runs import NotReported

PICTURES = "reproduction"
"""Folder of pictures and tables, beside REPRODUCTION.md."""


class Outcome(StrEnum):
    """A verdict in a word."""

    HOLDS = "holds"
    PARTLY = "holds partly"
    NOT_HERE = "does not hold here"
    NOT_MEASURED = "not measured"


@dataclass(frozen=True, slots=True)
class Judged:
    """A figure with its verdict, once picture and table are written."""

    figure: Figure
    checks: Sequence[Check] = ()
    not_measured: str = ""
    """Why there are no checks, and neither picture nor table."""

    @property
    def outcome(self) -> Outcome:
        """A claim holds where all of its checks do, partly where some do."""
        if self.not_measured:
            return Outcome.NOT_MEASURED
        met = {check.holds for check in self.checks}
        if len(met) == 2:
            return Outcome.PARTLY
        if met == {True}:
            return Outcome.HOLDS
        return Outcome.NOT_HERE

    @property
    def number(self) -> str:
        """Number of the first check, and how many hold or hold the other way round."""
        met, opposite = (
            sum(check.holds for check in self.checks),
            sum(check.opposite for check in self.checks),
        )
        against = ""
        if opposite:
            against = f", the opposite of {opposite}"
        if self.checks:
            return f"{self.checks[0].number} ({met} of {len(self.checks)} checks{against})"
        return ""

    @property
    def reason(self) -> str:
        """Of what does not hold, or why nothing was measured."""
        reasons = [check.reason for check in self.checks if not check.holds and check.reason]
        return " ".join(dict.fromkeys(reasons)) or self.not_measured

    def document(self) -> dict[str, object]:
        """As `--json` prints it."""
        return {
            "name": self.figure.name,
            "paper": self.figure.paper,
            "figure": self.figure.number,
            "claim": self.figure.claim,
            "verdict": str(self.outcome),
            "number": self.number,
            "checks": [asdict(check) for check in self.checks],
            "reason": self.reason,
        }


def judge(figure: Figure, results: Results, out: Path) -> Judged:
    """Write a figure's picture and table, and judge its claim. A figure none of whose runs were
    finished, or whose runs do not report what it needs, is not measured, with the reason."""
    stem = out / PICTURES / figure.name
    try:
        checks, rows = figure.checks(results), figure.table(results)
        with drawing.style():
            drawing.save(figure.draw(results), stem)
    except (RunsMissing, NotReported) as error:
        return Judged(figure, not_measured=str(error))
    write_table(rows, stem.with_suffix(".csv"))
    return Judged(figure, checks)


def write_table(rows: Sequence[Row], path: Path) -> None:
    """Rows as CSV; a column that a row lacks is empty."""
    path.parent.mkdir(parents=True, exist_ok=True)
    columns = list(dict.fromkeys(column for row in rows for column in row))
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows({column: _cell(value) for column, value in row.items()} for row in rows)


def reproduction(judged: Sequence[Judged], results: Results) -> str:
    """REPRODUCTION.md: the verdicts first, then every figure."""
    parts = ["# The papers' claims, run again", _introduction(judged, results), _verdicts(judged)]
    for folder, paper in PAPERS.items():
        of_paper = [one for one in judged if one.figure.folder == folder]
        title = "Beyond the papers"
        if paper:
            title = f"arXiv {paper}"
        if of_paper:
            parts += [f"## {title}", *map(_section, of_paper)]
    if results.failures:
        parts += [
            "## Runs that failed",
            "\n".join(f"- {failure}" for failure in results.failures.values()),
        ]
    return "\n\n".join(parts) + "\n"


def _introduction(judged: Sequence[Judged], results: Results) -> str:
    base, seeds, runs = results.plan.base, results.plan.seeds, results.made.values()
    quick = ""
    if results.plan.quick:
        quick = "**A quick pass: small runs that show that everything works, no evidence.** "
    hours = sum(run.made["cpu_seconds"] for run in runs) / 3600
    processors = " and ".join(
        sorted({f"{run.made['processor']}, torch {run.made['torch']}" for run in runs})
    )
    tests, significant, left = correct_for_many_tests(
        [check for one in judged for check in one.checks]
    )
    return (
        f"{quick}Generated by `isentrope reproduce`. {len(runs)} runs of a small language model on"
        f" tasks of reasoning-gym, with {len(seeds)} {'seed' if len(seeds) == 1 else 'seeds'}"
        f" ({', '.join(map(str, seeds))}); unless a figure states otherwise {base.steps} steps of"
        f" {base.prompts} prompts × {base.group_size} completions, learning rate"
        f" {base.learning_rate:g}. Together {hours:.1f} hours of one core on {os.cpu_count()} cores"
        f" of {processors or 'one kind'}. Code: {_commit()}, {datetime.now(UTC):%Y-%m-%d}.\n\nA"
        " claim is split into checks, each with a test over seeds at the level 0.05. It *holds*"
        " where all of them pass, *holds partly* where some do, and *does not hold here* where"
        " none does: here is a model of about a million parameters, so that a claim about large"
        " models can be right and still not hold here. Claims are worded as read in the papers."
        " Likely reasons are a reading of these runs, not tested. With few seeds a test sees large"
        " differences only (with 3, those of 2.3 standard deviations in four of five cases): *not"
        " shown* has the p that shows how close it came, and *the opposite* is significant the"
        f" other way. Of {tests} such tests {significant} are below 0.05, {left} with false"
        " discoveries held at 0.05 (Benjamini and Hochberg). ± is the standard deviation over"
        " seeds; bands show all seeds."
    )


def _verdicts(judged: Sequence[Judged]) -> str:
    lines = ["| figure | claim | verdict | measured |", "|---|---|---|---|"]
    for one in judged:
        figure = one.figure
        if figure.paper:
            where = f"{figure.paper}, {figure.number}"
        else:
            where = figure.number
        lines.append(
            f"| [{figure.name}](#{figure.name}) ({where}) | {_cell(figure.claim)} |"
            f" **{one.outcome}** | {_cell(one.number or one.reason)} |"
        )
    return "\n".join(lines)


def _section(one: Judged) -> str:
    figure = one.figure
    parts = [
        f'<a id="{figure.name}"></a>\n\n### {figure.number}: {figure.title}',
        f"**Claim.** {figure.claim}\n\n**Verdict: {one.outcome}.**",
    ]
    if one.checks:
        lines = ["| check | | measured | test |", "|---|---|---|---|"]
        lines += [
            f"| {_cell(c.statement)} | {c.word if c.holds else f'**{c.word}**'} | {_cell(c.number)}"
            f" | {_cell(c.test)} |"
            for c in one.checks
        ]
        parts.append("\n".join(lines))
    if figure.chosen_late:
        parts.append(f"**Chosen after first results.** {figure.chosen_late}")
    if one.reason:
        parts.append(f"**Likely reason.** {one.reason}" if one.checks else one.reason)
    if not one.not_measured:
        parts.append(
            f"![{figure.title}]({PICTURES}/{figure.name}.png)\n\n"
            f"[SVG]({PICTURES}/{figure.name}.svg) · [CSV]({PICTURES}/{figure.name}.csv)"
        )
    return "\n\n".join(parts)


def _cell(value: object) -> object:
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, str):
        return value.replace("|", "\\|").replace("\n", " ")
    return value


def _commit() -> str:
    asked = ["git", "rev-parse", "--short=12", "HEAD"]
    found = subprocess.run(
        asked, cwd=Path(__file__).parent, capture_output=True, text=True, check=False
    )
    if found.returncode == 0:
        return f"commit {found.stdout.strip()}"
    return "an installed package"
