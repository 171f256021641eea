"""`isentrope diagnose`: what the log of a run says about why it does not learn.

Nothing is stored and no server is needed. The steps pass the checks that judge a live run, in
order, so what is found is what would have rung, and when."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import click

from isentrope.cli.log_files import Steps, read_log
from isentrope.statistics.alerts import AlertWatch
from isentrope_wire import metrics
from isentrope_wire.diagnosis.check_states import ENTROPY_NEEDED
from isentrope_wire.diagnosis.checks import cure_of, missing, reason_for_health
from isentrope_wire.diagnosis.course import DIRECTIONS
from isentrope_wire.diagnosis.rules.finding import LEAST
from isentrope_wire.errors import ConfigurationError
from isentrope_wire.numbers import plain_json, printable
from isentrope_wire.reports import ALERT_KINDS, Alert, AlertLevel

_CURE_OF_ENTROPY = "Lower the learning rate; in the next run hold the entropy, or clip."
"""Of a log: it has no run that a control could be pushed to."""
_EXAMPLES = (metrics.REWARD_MEAN.also[0], metrics.REWARD_MEAN, metrics.ENTROPY_MEAN)
_ORDER = ("healthy", str(AlertLevel.WATCH), str(AlertLevel.ACT))


@dataclass(slots=True, kw_only=True)
class Found:
    """One finding of a log."""

    kind: str
    level: str
    """watch or act: the highest it came to."""
    step: int
    """At which it rang first."""
    level_step: int
    """At which it came to its highest level: that of the message and the evidence."""
    since: int
    """Step from which on it held."""
    message: str
    """Of the time it rang at its highest level."""
    cause: str | None
    certainty: float | None
    """Probability that it is no scatter; null where it is not a matter of scatter."""
    evidence: dict[str, float]
    cure: str
    """What to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogDiagnosis:
    """What a log says, the first finding in time first."""

    level: str
    """healthy, watch or act."""
    message: str
    first_step: int
    last_step: int
    steps: int
    findings: list[Found]
    follows: dict[str, str]
    """Kinds that were found and follow from a finding, each with that one."""
    no_data: dict[str, str]
    """Kinds that were not judged, each with what it would need."""


def diagnosis_of(steps: Steps) -> LogDiagnosis:
    """What the steps of a log say.

    Raises:
        ConfigurationError: none of its names is known.
    """
    watch = AlertWatch()
    findings: dict[str, Found] = {}
    for step, scalars in steps:
        for alert in watch.step(step, scalars, {}):
            _add(findings, step, alert)
    if not watch.measures.traces and not watch.measures.held_out:
        names = sorted({name for _, scalars in steps[:20] for name in scalars})
        raise ConfigurationError(
            f"None of the log's names is known, such as {', '.join(names[:5])}. Expected those of "
            "TRL, verl, OpenRLHF, slime, prime-rl or Isentrope, such as "
            f"{', '.join(_EXAMPLES)}; all stand in docs/checks.md."
        )
    no_data = {check.kind: check.needs for check in missing(watch.measures)}
    if watch.measures.trace(metrics.ENTROPY_MEAN) is None:
        no_data |= dict.fromkeys(DIRECTIONS, ENTROPY_NEEDED)
    in_order = sorted(findings.values(), key=lambda finding: finding.step)
    level = max((finding.level for finding in in_order), key=_ORDER.index, default="healthy")
    if in_order:
        message = f"First: {in_order[0].message}"
    elif len(steps) < LEAST:
        message = f"Nothing found, but {len(steps)} steps are few: checks judge from {LEAST} on."
    else:
        message = reason_for_health(watch.measures) or "Nothing found."
    return LogDiagnosis(
        level=level,
        message=message,
        first_step=steps[0][0],
        last_step=steps[-1][0],
        steps=len(steps),
        findings=in_order,
        follows={kind: by for kind, by in watch.following.items() if kind not in findings},
        no_data=no_data,
    )


def _add(findings: dict[str, Found], step: int, alert: Alert) -> None:
    numbers = dict(alert.evidence)
    since, certainty = numbers.pop("since", float(step)), numbers.pop("certainty", None)
    cause, level = alert.words.get("cause"), str(alert.level)
    cure = cure_of(alert.kind, cause or "")
    if alert.kind in DIRECTIONS:
        cure = _CURE_OF_ENTROPY
    finding = Found(
        kind=alert.kind,
        level=level,
        step=step,
        level_step=step,
        since=int(since),
        message=alert.message,
        cause=cause,
        certainty=certainty,
        evidence=numbers,
        cure=cure,
    )
    before = findings.setdefault(alert.kind, finding)
    if _ORDER.index(level) > _ORDER.index(before.level):
        finding.step, finding.since = before.step, before.since
        findings[alert.kind] = finding


@click.command()
@click.argument("file", type=click.Path(exists=True, path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option(
    "--fail-on",
    type=click.Choice(["watch", "act"]),
    help="End with status 1 where something of this level, or a higher one, is found.",
)
def diagnose(file: Path, as_json: bool, fail_on: str | None) -> None:
    """Say why the run of a log does not learn: FILE is TRL's trainer_state.json, JSON Lines, CSV,
    or a TensorBoard folder."""
    diagnosis = diagnosis_of(read_log(file))
    if as_json:
        click.echo(json.dumps(plain_json(asdict(diagnosis)), indent=2))
    else:
        click.echo("\n".join(map(printable, _lines_of(diagnosis))))
    if fail_on is not None and _ORDER.index(diagnosis.level) >= _ORDER.index(fail_on):
        raise SystemExit(1)


def _lines_of(diagnosis: LogDiagnosis) -> Sequence[str]:
    span = f"{diagnosis.steps} steps, {diagnosis.first_step} to {diagnosis.last_step}"
    lines = [f"{diagnosis.level.capitalize()} ({span})"]
    if not diagnosis.findings:
        lines.append(diagnosis.message)
    for finding in diagnosis.findings:
        kind = ": ".join(filter(None, [finding.kind, finding.cause]))
        title = ALERT_KINDS.get(finding.kind, finding.kind)
        level = finding.level.capitalize()
        when = f"{level} since step {finding.since}"
        if finding.level_step != finding.step:
            when = f"{level} at step {finding.level_step}, watch since step {finding.since}"
        lines += ["", f"{when}: {title} [{kind}]"]
        lines.append(f"  {finding.message}")
        if finding.cure and finding.cure not in finding.message:
            lines.append(f"  {finding.cure}")
        values = [f"{name} {number:.3g}" for name, number in finding.evidence.items()]
        if finding.certainty is not None:
            values.append(f"sure by {100 * finding.certainty:.1f} %")
        if values:
            lines.append(f"  Evidence: {', '.join(values)}.")
        after = [kind for kind, cause in diagnosis.follows.items() if cause == finding.kind]
        if after:
            lines.append(f"  Follows from it: {', '.join(after)}.")
    if diagnosis.no_data:
        lines += ["", "No data:"]
        lines += [f"  {kind} would need {needs}" for kind, needs in diagnosis.no_data.items()]
    return lines
