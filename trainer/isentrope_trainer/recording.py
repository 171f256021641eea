"""A recorded run: as one file, and shown again by a server as a new run. Nothing here needs torch.

The file is an xz-compressed tar of the messages that the run's probe sent, in their order,
serialised as on the wire:

    run               RunStarted: what the run is
    control-VERSION   a control that was pushed while it ran
    step-NUMBER       StepReport: all that was measured in one step

`record.py` makes the recording that comes with the package.
"""

from __future__ import annotations

import io
import tarfile
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import isentrope
from isentrope.transport import ReadyMessage, Transport, open_transport
from isentrope_wire import environment
from isentrope_wire.codec import decode_control, decode_payload, encode_control, encode_payload
from isentrope_wire.errors import IsentropeError
from isentrope_wire.reports import (
    ControlOutcome,
    ControlSnapshot,
    OutcomeState,
    Payload,
    RunFinished,
    RunStarted,
    StepReport,
)

SHIPPED = Path(__file__).with_name("recorded_run.tar.xz")


@dataclass(frozen=True, slots=True)
class Recording:
    """What a real run reported."""

    run: RunStarted
    pushed: tuple[ControlSnapshot, ...]
    """The controls that were asked for while it ran; their outcomes are in the reports."""
    reports: tuple[StepReport, ...]


def write_recording(recording: Recording, path: Path) -> None:
    """Write the file; the same recording gives the same bytes."""
    members = {"run": encode_payload(recording.run)}
    members |= {
        f"control-{snapshot.version}": encode_control(snapshot) for snapshot in recording.pushed
    }
    members |= {f"step-{report.step:04}": encode_payload(report) for report in recording.reports}
    with tarfile.open(path, "w:xz") as archive:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))


def read_recording(path: Path) -> Recording:
    messages: list[Payload] = []
    pushed: list[ControlSnapshot] = []
    with tarfile.open(path, "r:xz") as archive:
        for member in archive:
            file = archive.extractfile(member)
            content = b""
            if file is not None:
                content = file.read()
            if member.name.startswith("control-"):
                pushed.append(decode_control(content))
            else:
                messages.append(decode_payload(content))
    run, *reports = messages
    assert isinstance(run, RunStarted), "the first member is the run"
    return Recording(
        run, tuple(pushed), tuple(report for report in reports if isinstance(report, StepReport))
    )


_PUSH_SECONDS = 30.0
_POLL_SECONDS = 0.05


def replay(
    recording: Recording, *, steps_per_second: float, announce: Callable[[str], None]
) -> None:
    """Report a recorded run to the server that `ISENTROPE_URL` and `ISENTROPE_GRPC` name, and
    announce the new run's id. A control that was pushed while it was recorded is pushed again, and
    applied at the same step;
    IsentropeError: the server didn't take it. Any other is rejected: what was trained can't
        change."""
    now, initial = time.time(), recording.run.initial_control
    run = replace(
        recording.run,
        run_id=f"recording-{uuid.uuid4().hex[:6]}",
        incarnation=uuid.uuid4().hex,
        started_at=now,
        initial_control=None if initial is None else replace(initial, requested_at=now),
    )
    transport = open_transport(
        run, mode="online", home=environment.home(), grpc_target=environment.grpc_target()
    )
    announce(run.run_id)
    finish = partial(RunFinished, status="failed", error="The replay was interrupted.")
    try:
        _send(recording, run.run_id, transport, steps_per_second)
        finish = partial(RunFinished, status="finished", step=recording.reports[-1].step)
    finally:
        transport.put(ReadyMessage(finish(finished_at=time.time())))
        transport.close()


def _send(recording: Recording, run_id: str, transport: Transport, steps_per_second: float) -> None:
    """Send all reports, each when it is due."""
    controls = {snapshot.version: snapshot.control.to_document() for snapshot in recording.pushed}
    # The server's number of each recorded control: people may have pushed others in between.
    versions = {0: 0}
    rejected: set[int] = set()
    began = time.monotonic()
    for count, report in enumerate(recording.reports):
        time.sleep(max(began + count / steps_per_second - time.monotonic(), 0.0))
        outcomes: list[ControlOutcome] = []
        for recorded in report.outcomes:
            version = versions[recorded.version] = _push(
                controls[recorded.version], run_id, transport
            )
            outcomes.append(replace(recorded, version=version, at=time.time()))
        requested = transport.requested_control()
        if requested is not None and requested.version not in rejected | set(versions.values()):
            rejected.add(requested.version)
            message = (
                "This run is a recording, which no control can change. `isentrope demo` trains one"
                " that obeys."
            )
            outcomes.append(
                ControlOutcome(
                    version=requested.version,
                    state=OutcomeState.REJECTED,
                    at=time.time(),
                    code="recording",
                    message=message,
                )
            )
        transport.put(
            partial(
                replace,
                report,
                recorded_at=time.time(),
                control_version=versions[report.control_version],
                outcomes=tuple(outcomes),
                scalars={**report.scalars, **transport.statistics().scalars()},
            )
        )


def _push(document: Mapping[str, Any], run_id: str, transport: Transport) -> int:
    """Ask for a control as a person does, and wait until it has come down. Returns the server's
    number of it."""
    version, deadline, reason = (
        None,
        time.monotonic() + _PUSH_SECONDS,
        "the probe did not receive it",
    )
    with isentrope.Client() as client:
        while time.monotonic() < deadline:
            requested = transport.requested_control()
            if version is not None and requested is not None and requested.version >= version:
                return version
            if version is None:
                try:
                    version = int(client.set_control(run_id, **document).version)
                except IsentropeError as error:
                    # The server does not know the run yet, or the control changed meanwhile.
                    reason = str(error)
            time.sleep(_POLL_SECONDS)
    raise IsentropeError(
        f"The recorded control could not be pushed again within {_PUSH_SECONDS:g} s: {reason}"
    )
