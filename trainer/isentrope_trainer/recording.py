"""A recorded run as one file: an xz-compressed tar of the messages that its probe sent, in their order.

    run               RunStarted: what the run is
    control-VERSION   a control that was pushed while it ran
    step-NUMBER       StepReport: all that was measured in one step

Messages are serialised as on the wire. `record.py` makes the recording that comes with the package; nothing here needs
torch.
"""

from __future__ import annotations

import io
import tarfile
from dataclasses import dataclass
from pathlib import Path

from isentrope_wire.codec import decode_control, decode_payload, encode_control, encode_payload
from isentrope_wire.reports import ControlSnapshot, Payload, RunStarted, StepReport

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
    members |= {f"control-{snapshot.version}": encode_control(snapshot) for snapshot in recording.pushed}
    members |= {f"step-{report.step:04}": encode_payload(report) for report in recording.reports}
    with tarfile.open(path, "w:xz") as archive:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))


def read_recording(path: Path) -> Recording:
    """Read what `write_recording` wrote.

    Raises:
        OSError, tarfile.TarError, CodecError: it is something else.
    """
    messages: list[Payload] = []
    pushed: list[ControlSnapshot] = []
    with tarfile.open(path, "r:xz") as archive:
        for member in archive:
            file = archive.extractfile(member)
            content = b"" if file is None else file.read()
            if member.name.startswith("control-"):
                pushed.append(decode_control(content))
            else:
                messages.append(decode_payload(content))
    run, *reports = messages
    assert isinstance(run, RunStarted), "the first member is the run"
    return Recording(run, tuple(pushed), tuple(report for report in reports if isinstance(report, StepReport)))
