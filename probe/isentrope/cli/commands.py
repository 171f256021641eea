"""The commands that need neither torch nor a server's code: runs, metrics, export, delete, control,
watch, sync, mcp, doctor.

Help must be quick, so what a command needs is imported when it runs.
"""

from __future__ import annotations

import difflib
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from isentrope.cli import printing
from isentrope_wire.answers import HealthLevel, RunOrder, Status
from isentrope_wire.control import GUARDS, TARGETS, Control, Hold, Scope
from isentrope_wire.errors import IsentropeError
from isentrope_wire.methods import METHODS, name_and_value
from isentrope_wire.numbers import plain_json, printable

if TYPE_CHECKING:
    from isentrope.client.client import Client
    from isentrope.transport.sync import SyncResult
    from isentrope_wire.control_answers import ControlVersion, RunControl

_HOLD_BOUNDS = [field.name for field in fields(Hold) if field.name not in TARGETS]

_WITH_REVERT = {"reason", "guard"}

_NO_RUN = (
    "No run has reported to this server yet. Call isentrope.attach(trainer) or build an "
    "isentrope.Probe in your script, or see one with `isentrope demo`."
)
_NO_RUN_CHOSEN = "No run passes these filters."

_ON_OFF: Mapping[object, object] = {"on": True, "off": False, None: False}

as_json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
url_option = click.option(
    "--url", help="The server's address.  [default: ISENTROPE_URL, or the home's server]"
)


@click.command()
@click.option(
    "--project", "projects", multiple=True, help="Only runs of this project; may be repeated."
)
@click.option(
    "--status", "statuses", type=click.Choice([*map(str, Status)]), multiple=True,
    help="Only runs with this status; may be repeated.",
)  # fmt: skip
@click.option("--tag", "tags", multiple=True, help="Only runs with this tag; may be repeated.")
@click.option(
    "--level", "levels", type=click.Choice([*map(str, HealthLevel)]), multiple=True,
    help="Only running runs of this level of health; may be repeated.",
)  # fmt: skip
@click.option(
    "--query", "-q", help="Only runs with this text in id, name, project, a tag or the error."
)
@click.option(
    "--order",
    type=click.Choice([str(order) for order in RunOrder]),
    default=str(RunOrder.NEWEST),
    show_default=True,
    help="The newest first, or runs that need attention first.",
)
@click.option("--limit", type=click.IntRange(min=1), help="Only so many.  [default: all]")
@as_json_option
@url_option
def runs(
    projects: tuple[str, ...],
    statuses: tuple[str, ...],
    tags: tuple[str, ...],
    levels: tuple[str, ...],
    query: str | None,
    order: str,
    limit: int | None,
    as_json: bool,
    url: str | None,
) -> None:
    """List runs with their health."""
    with _client(url) as client:
        found = client.runs(
            project=projects,
            status=statuses,
            tag=tags,
            level=levels,
            q=query,
            order=order,
            limit=limit,
        )
    if as_json:
        click.echo(printing.format_json([asdict(run) for run in found]))
        return
    rows = [
        [
            run.id,
            run.name,
            run.project,
            run.status,
            *printing.health_in_words(run),
            printing.step_in_words(run),
            printing.age_in_words(run.last_report_at),
        ]
        for run in found
    ]
    if not rows:
        chosen = any((projects, statuses, tags, levels, query))
        click.echo(_NO_RUN_CHOSEN if chosen else _NO_RUN, err=True)
        return
    printing.print_table(
        ["id", "name", "project", "status", "health", "entropy lost", "step", "last report"], rows
    )


@click.command()
@click.argument("run")
@click.argument("named", nargs=-1, metavar="[METRIC]...")
@click.option(
    "--name",
    "-n",
    "names",
    multiple=True,
    help="A metric; may be repeated. Without a metric: list the names.",
)
@click.option("--from-step", type=click.IntRange(min=0), help="The first step.")
@click.option("--to-step", type=click.IntRange(min=0), help="The last step.")
@click.option(
    "--points", type=click.IntRange(min=1), help="Reduce longer series to this many points."
)
@as_json_option
@url_option
def metrics(
    run: str,
    named: tuple[str, ...],
    names: tuple[str, ...],
    from_step: int | None,
    to_step: int | None,
    points: int | None,
    as_json: bool,
    url: str | None,
) -> None:
    """Print metrics of RUN over its steps, or the names of its metrics."""
    names = (*named, *names)
    if from_step is not None and to_step is not None and from_step > to_step:
        raise click.UsageError(
            f"--from-step must not be above --to-step, got {from_step} and {to_step}."
        )
    with _client(url) as client:
        if not names:
            found = client.metric_names(run)
            click.echo(json.dumps(found, indent=2) if as_json else "\n".join(map(printable, found)))
            return
        columns = client.metrics(run, names, from_step=from_step, to_step=to_step, points=points)
        _name_unknown_metrics(
            client, run, [name for name in names if all(value is None for value in columns[name])]
        )
    if as_json:
        click.echo(json.dumps(plain_json(columns)))
        return
    printing.print_table(
        list(columns),
        [[printing.cell(value) for value in row] for row in zip(*columns.values(), strict=True)],
    )


def _name_unknown_metrics(client: Client, run: str, without_values: Sequence[str]) -> None:
    """Warn of mistyped names: their columns are empty, as those of a metric that was not
    measured."""
    known = []
    if without_values:
        known = client.metric_names(run)
    for name in set(without_values).difference(known):
        nearest = difflib.get_close_matches(name, known, n=1)
        meant = ""
        if nearest:
            meant = f" Did you mean {nearest[0]}?"
        click.echo(f"Run {run} has not reported {name!r} so far.{meant}", err=True)


@click.command()
@click.argument("runs", nargs=-1, required=True, metavar="RUN...")
@click.option(
    "--format",
    "file_format",
    type=click.Choice(["parquet", "csv", "jsonl"]),
    default="parquet",
    show_default=True,
    help="Format of the file.",
)
@click.option(
    "--out",
    type=click.Path(dir_okay=False),
    help="The file; - is stdout.  [default: RUN.FORMAT, of several runs.FORMAT]",
)
@click.option(
    "--name", "--names", "-n", "names", multiple=True, help="Only this metric; may be repeated."
)
@click.option("--labels", is_flag=True, help="Add each report's control version and labels.")
@as_json_option
@url_option
def export(
    runs: tuple[str, ...],
    file_format: str,
    out: str | None,
    names: tuple[str, ...],
    labels: bool,
    as_json: bool,
    url: str | None,
) -> None:
    """Write all reports of each RUN to a file: a row per report, of every rank and attempt, with
    every metric. Of several runs a column says whose it is."""
    of: str | tuple[str, ...] = runs
    stem = "runs"
    if len(runs) == 1:
        of = stem = runs[0]
    with _client(url) as client:
        if out == "-":
            client.export(
                of, sys.stdout.buffer, format=file_format, names=names or None, labels=labels
            )
            return
        path = Path(out or f"{stem}.{file_format}")
        count = client.export(of, path, format=file_format, names=names or None, labels=labels)
    click.echo(json.dumps({"path": str(path), "bytes": count}) if as_json else str(path))


@click.command()
@click.argument("runs", nargs=-1, required=True, metavar="RUN...")
@click.option("--yes", is_flag=True, help="Do not ask.")
@url_option
def delete(runs: tuple[str, ...], yes: bool, url: str | None) -> None:
    """Delete each RUN with all its reports, for good. A run that still reports is refused."""
    with _client(url) as client:
        meant = {run: client.run(run) for run in runs}
        for run in meant.values():
            words = (run.id, run.name, str(run.status), printing.step_in_words(run))
            click.echo(printable("  ".join(words)), err=True)
        if not yes:
            click.confirm("Delete with all reports?", abort=True, err=True)
        for run_id in meant:
            client.delete(run_id)
            click.echo(f"Deleted {printable(run_id)}")


@click.command()
@click.argument("run")
@click.option(
    "--method", type=click.Choice(list(METHODS)), help="Start a new control with this method."
)
@click.option(
    "--mu-low",
    type=float,
    help="µ⁻ in standard deviations: where the lower side clips.  [default: never]",
)
@click.option(
    "--mu-high",
    type=float,
    help="µ⁺ in standard deviations: where the upper side clips.  [default: never]",
)
@click.option(
    "--scope",
    type=click.Choice([str(scope) for scope in Scope]),
    help="The tokens that the method acts on.  [default: all]",
)
@click.option(
    "--parameter",
    "-p",
    "parameters",
    multiple=True,
    metavar="NAME=VALUE",
    help=(
        "A parameter of the method, such as ratio=0.001; may be repeated. preset=trinity sets those"
        " not given."
    ),
)
@click.option(
    "--hold-target",
    metavar="NATS|SHARE%|CURVE",
    help=(
        "Hold the mean entropy at this value, at a share of its early level such as 75%, on a "
        "curve of steps such as '1:100% 200:25%', or on a line from now on such as "
        "'100% to 40% over 300 steps'."
    ),
)
@click.option(
    "--hold",
    "hold_fields",
    multiple=True,
    metavar="NAME=VALUE",
    help=(
        f"Another field of the hold, such as side=raise; one of {', '.join(_HOLD_BOUNDS)}. May be"
        " repeated."
    ),
)
@click.option("--no-hold", is_flag=True, help="End the hold; the thresholds stay as they are.")
@click.option(
    "--revert",
    is_flag=True,
    help="Take the newest change back: to the control applied before it, else to none.",
)
@click.option("--reason", help="The reason, kept in the history.")
@click.option(
    "--guard",
    type=click.Choice(GUARDS),
    help="Where the control does harm: only alert, or take it back.  [default: alert]",
)
@click.option(
    "--expires-in",
    type=click.IntRange(min=1),
    metavar="SECONDS",
    help=(
        "Reject the change when no step begins in time."
        "  [default: 600, and at least three of the run's steps]"
    ),
)
@click.option(
    "--suggested",
    is_flag=True,
    help="Push the control that the health line suggests, or say why there is none.",
)
@click.option("--dry-run", is_flag=True, help="Print what the change would do; nothing is pushed.")
@click.option(
    "--wait",
    is_flag=True,
    help="Wait for the trainer's answer; exit status 1 unless it is APPLIED.",
)
@click.option(
    "--wait-seconds",
    type=click.FloatRange(min=0),
    default=60.0,
    show_default=True,
    help="How long to wait at most.",
)
@as_json_option
@url_option
def control(
    run: str,
    parameters: tuple[str, ...],
    hold_target: str | None,
    hold_fields: tuple[str, ...],
    no_hold: bool,
    revert: bool,
    suggested: bool,
    dry_run: bool,
    expires_in: int | None,
    wait: bool,
    wait_seconds: float,
    as_json: bool,
    url: str | None,
    **given: Any,
) -> None:
    """Show the control of RUN, or change it.

    With --method, the options describe the new control completely. Without it, they change the
    newest control. --revert takes the newest change back; twice, it brings it again."""
    changes = {name: value for name, value in given.items() if value is not None}
    hold = {name: _ON_OFF.get(value, value) for name, value in _named(hold_fields).items()}
    if hold_target is not None:
        hold["target"] = hold_target
    if no_hold and hold:
        raise click.UsageError(
            "--no-hold ends a hold, --hold-target and --hold start or change one: give one or the"
            " other."
        )
    if no_hold or hold:
        changes["hold"] = hold or None
    if parameters:
        changes["parameters"] = _named(parameters)
    if revert and not set(changes) <= _WITH_REVERT:
        raise click.UsageError(
            "--revert takes the whole control back: "
            "only --reason, --guard, --expires-in and --wait go with it."
        )
    if suggested and (revert or not set(changes) <= _WITH_REVERT):
        raise click.UsageError(
            "--suggested is a whole control: only --reason, --guard, --expires-in, --wait and"
            " --dry-run go with it."
        )
    if dry_run and (revert or wait or expires_in is not None):
        raise click.UsageError(
            "--dry-run pushes nothing: --revert, --wait and --expires-in do not go with it."
        )
    if not changes and not revert and not suggested:
        if wait or dry_run or expires_in is not None:
            raise click.UsageError(
                "--wait, --dry-run and --expires-in go with a change: "
                "give --method, --mu-low, --revert or another."
            )
        _show_control(run, as_json, url)
        return
    if "method" in changes:
        # Otherwise the newest control, which only the server knows, decides what the changes may
        # be.
        Control.from_document(changes)
    with _client(url) as client:
        if suggested:
            changes = _suggested_control(client, run) | changes
        if dry_run:
            _preview_control(client, run, changes, as_json)
            return
        if revert:
            item = _revert_control(client, run, changes, expires_in)
        else:
            before = client.control(run)
            item = _change_control(client, run, before, changes, expires_in)
            for warning in item.warnings:
                click.echo(printable(f"warning: {warning}"), err=True)
            if not no_hold:
                _warn_of_ended_hold(before, item)
        if wait:
            item = client.wait_for_control(run, item.version, timeout_seconds=wait_seconds)
            if not item.state.is_final:
                raise click.ClickException(
                    f"Control version {item.version} of run {run} is still {item.state} after"
                    f" {wait_seconds:g} s. It is applied if the trainer reaches a step boundary"
                    " before it expires."
                )
    click.echo(
        printing.format_json(asdict(item)) if as_json else printable(printing.control_line(item))
    )
    if wait and item.state != "APPLIED":
        raise click.exceptions.Exit(1)


@click.command()
@click.argument("run")
@as_json_option
@url_option
def checks(run: str, as_json: bool, url: str | None) -> None:
    """Show what each check of RUN found, and what would give data to those that have none."""
    with _client(url) as client:
        states = client.checks(run)
    if as_json:
        click.echo(printing.format_json([asdict(state) for state in states]))
        return
    rows = []
    for state in states:
        said = state.needs and f"would need {state.needs}"
        status = str(state.level or state.status).replace("_", " ")
        step = str(state.step or "-")
        rows.append([state.kind, status, step, state.message or said])
    printing.print_table(["check", "status", "step", "what"], rows)


@click.command()
@click.argument("run")
@click.option(
    "--steps",
    type=click.IntRange(1, 100),
    default=10,
    show_default=True,
    help="Look at this many of the newest steps.",
)
@click.option(
    "--limit", type=click.IntRange(min=1), default=16, show_default=True, help="Tokens to print."
)
@as_json_option
@url_option
def top_tokens(run: str, steps: int, limit: int, as_json: bool, url: str | None) -> None:
    """Show which tokens of RUN change the entropy most, those that move it the way the step moves
    it first.

    share: the token's part of the pull, which is the sum over all tokens that pull that way. score:
    S_c over its standard deviation. kept: the share of its occurrences whose gradient took part.
    """
    with _client(url) as client:
        recurring = client.top_tokens(run, steps=steps)
    items = recurring.items[:limit]
    if as_json:
        click.echo(printing.format_json(asdict(replace(recurring, items=items))))
        return
    if not recurring.steps:
        click.echo(f"Run {run} has reported no top tokens yet.")
        return
    click.echo(f"Steps {recurring.steps[0]} to {recurring.steps[-1]}")
    header = ["token", "entropy", "share", "times", "probability", "score", "kept"]
    printing.print_table(header, [printing.top_token_row(item) for item in items])


@click.command()
@click.argument("run")
@click.option(
    "--once", is_flag=True, help="Print one frame as plain text and exit, as without a terminal."
)
@click.option("--json", "as_json", is_flag=True, help="Print the numbers as JSON and exit.")
@url_option
def watch(run: str, once: bool, as_json: bool, url: str | None) -> None:
    """Show RUN live in the terminal: health, entropy, prediction and control, refreshed every
    second.

    Keys: p pushes the suggested control after a confirmation, q quits.
    """
    from isentrope.cli.watch import watch_run
    from isentrope.client.client import Client

    with Client(url, timeout_seconds=3.0) as client:
        numbers = watch_run(client, run, live=not (once or as_json), quiet=as_json)
    if as_json:
        click.echo(printing.format_json(asdict(numbers)))


@click.command()
@click.argument(
    "folder",
    metavar="[DIR]",
    required=False,
    type=click.Path(exists=True, file_okay=False, path_type=Path),
)
@click.option(
    "--grpc",
    "target",
    metavar="HOST:PORT",
    help="The server's ingest. [default: ISENTROPE_GRPC, or as spooled]",
)
@click.option(
    "--give-up-after",
    type=click.FloatRange(min=0),
    default=10.0,
    show_default=True,
    metavar="SECONDS",
    help="How long to try to reach the server.",
)
@click.option(
    "--final",
    is_flag=True,
    help="The training has ended: a record that is torn at the end of its spool is lost.",
)
@as_json_option
def sync(
    folder: Path | None, target: str | None, give_up_after: float, final: bool, as_json: bool
) -> None:
    """Upload the spools in DIR that training processes could not deliver. Safe to repeat.

    Without DIR: the spools of this machine's home, ISENTROPE_HOME/spool; and of those delivered in
    the last day (ISENTROPE_KEEP_DELIVERED) what their server lost, where it was restored from a
    backup."""
    import os
    from itertools import chain

    from isentrope.transport.spool_folder import DELIVERED, SPOOLS, find_spool_folders
    from isentrope.transport.sync import SyncOutcome, refill_server, sync_spools
    from isentrope_wire import environment

    home = environment.home()
    if folder is None and not home.exists():
        # Nothing is wrong on a new machine; elsewhere the variable is.
        click.echo(
            f"There is no home {home}: ISENTROPE_HOME names that of the trainings, "
            "or give the folder of their spools.",
            err=True,
        )
    folders = find_spool_folders(folder or home / SPOOLS)
    if folder:
        kept = [one for one in folders if one.is_kept]
    else:
        kept = find_spool_folders(environment.home() / DELIVERED)
    waiting = [one for one in folders if not one.is_kept]
    here = target or os.environ.get("ISENTROPE_GRPC") or None
    results = []
    for result in chain(
        sync_spools(waiting, target=here, give_up_after_seconds=give_up_after, final=final),
        # Another server than their own has none of them, and need not get them.
        refill_server(kept, target=target, give_up_after_seconds=give_up_after),
    ):
        results.append(result)
        if not as_json and result.outcome is not SyncOutcome.LEFT:
            click.echo(_sync_line(result))
    if not results and not as_json:
        click.echo(f"Nothing to deliver in {folder or environment.home() / SPOOLS}")
    if as_json:
        click.echo(json.dumps([asdict(result) for result in results], indent=2))
    left = [result for result in results if result.outcome is SyncOutcome.LEFT]
    if left:
        # A reason that they share, such as a wrong token, is shown once, in the error below.
        if not as_json and len({result.detail for result in left}) > 1:
            click.echo("\n".join(_sync_line(result) for result in left))
        remedy = ""
        if any(result.server_away for result in left):
            remedy = " Start the server, or name another with --grpc."
        raise IsentropeError(
            f"{len(left)} of {len(results)} spools were not delivered. "
            f"Run {left[0].run}: {left[0].detail.rstrip('. ')}.{remedy}"
        )


def _sync_line(result: SyncResult) -> str:
    return printable(f"{result.outcome:<10} {result.run} rank {result.rank}  {result.detail}")


@click.command()
@as_json_option
def doctor(as_json: bool) -> None:
    """Check version, server, token, ingest and spool, and show how to solve problems."""
    from isentrope.cli.doctor import examine

    findings = examine()
    lines = [asdict(one) for one in findings]
    click.echo(json.dumps(lines, indent=2) if as_json else "\n".join(map(str, findings)))
    if not all(finding.ok for finding in findings):
        raise click.exceptions.Exit(1)


@click.command()
@click.option(
    "--http",
    "port",
    type=click.IntRange(1, 65535),
    metavar="PORT",
    help=(
        "Serve http://127.0.0.1:PORT/mcp; each request's bearer token is used.  [default: stdio,"
        " with ISENTROPE_TOKEN]"
    ),
)
@url_option
def mcp(port: int | None, url: str | None) -> None:
    """Serve runs, health and control as tools of an assistant, over the Model Context Protocol."""
    from isentrope.mcp.server import HOST, PATH, serve

    if port is not None:
        click.echo(f"Assistants reach http://{HOST}:{port}{PATH} with their token.", err=True)
    serve(url, port)


def _client(url: str | None) -> Client:
    from isentrope.client.client import Client

    return Client(url)


def _named(parameters: Sequence[str]) -> dict[str, object]:
    return dict(map(name_and_value, parameters))


def _change_control(
    client: Client, run: str, newest: RunControl, changes: Mapping[str, Any], expires_in: int | None
) -> ControlVersion:
    return client.set_control(
        run,
        **_changed_document(newest, changes),
        expires_in_seconds=expires_in,
        if_version=newest.version,
    )


def _changed_document(newest: RunControl, changes: Mapping[str, Any]) -> dict[str, Any]:
    """The document of a whole new control, or of the newest one with changes."""
    base: dict[str, Any] = (
        {} if "method" in changes else newest.control.to_document() | {"reason": ""}
    )
    document = {**base, **changes}
    if "parameters" in changes and base:
        document["parameters"] = {**base["parameters"], **changes["parameters"]}
    if changes.get("hold") and base.get("hold"):
        targets = {}
        if "target" in changes["hold"]:
            targets = dict.fromkeys(TARGETS)
        document["hold"] = {**base["hold"], **targets, **changes["hold"]}
    return document


def _suggested_control(client: Client, run: str) -> dict[str, Any]:
    """The document that the health line suggests."""
    diagnosis = client.diagnosis(run)
    if diagnosis.suggestion is None:
        raise IsentropeError(f"No control is suggested for run {run}. {diagnosis.message}")
    return dict(diagnosis.suggestion.control)


def _preview_control(client: Client, run: str, changes: Mapping[str, Any], as_json: bool) -> None:
    """Print what a change would do."""
    wanted = client.control_from(run, _changed_document(client.control(run), changes))
    preview = client.preview(run, wanted)
    if as_json:
        click.echo(printing.format_json(asdict(preview)))
        return
    click.echo(printable(f"preview: {printing.control_in_words(wanted)}"))
    for line in printing.preview_lines(preview):
        click.echo(printable(line))


def _revert_control(
    client: Client, run: str, changes: Mapping[str, Any], expires_in: int | None
) -> ControlVersion:
    from isentrope_wire.control_answers import version_before, version_to_revert

    history = client.control_history(run)
    newest = version_to_revert(history)
    if newest is None:
        raise IsentropeError(
            f"Run {run} has nothing to revert: no change of its control was applied or waits."
        )
    earlier = version_before(newest, history)
    document: dict[str, Any] = Control().to_document()
    if earlier is not None:
        document = earlier.control.to_document()
    document |= {"reason": f"Reverts version {newest.version}", **changes}
    return client.set_control(
        run, **document, expires_in_seconds=expires_in, if_version=history[0].version
    )


def _warn_of_ended_hold(before: RunControl, item: ControlVersion) -> None:
    """A whole new control without a hold ends the present one."""
    failed = before.state in ("REJECTED", "EXPIRED", "SUPERSEDED")
    current = before.active if failed else before
    if current is not None and current.hold and not item.hold:
        target = Hold.from_document(current.hold).target_in_words
        click.echo(
            f"This ends the hold at {target}; thresholds given without --method keep it.", err=True
        )


def _show_control(run: str, as_json: bool, url: str | None) -> None:
    with _client(url) as client:
        newest = client.control(run)
        dead = ""
        if not as_json:
            dead = _dead_knobs(client, run)
    if as_json:
        click.echo(printing.format_json(asdict(newest)))
        return
    click.echo(printable(printing.control_line(newest)))
    active = newest.active
    if active is not None and active.version != newest.version:
        click.echo(printable(f"active: {printing.control_line(active)}"))
    if active is not None and active.verdict is not None:
        click.echo(printable(f"verdict: {active.verdict.message}"))
    if dead:
        click.echo(printable(f"no effect: {dead}"))


def _dead_knobs(client: Client, run: str) -> str:
    """The knobs that did nothing in the newest step, with the reason."""
    step = client.run(run).step
    if step is None:
        return ""
    return client.step(run, step).labels.get("control/dead", "")
