"""What became of a control is a line in the training log."""

from __future__ import annotations

import pytest

from isentrope.steps.acknowledgement import Acknowledgement
from isentrope_wire.control import Control
from isentrope_wire.reports import ControlOutcome, ControlSnapshot, OutcomeState

ACTIVE = ControlSnapshot(
    version=1,
    control=Control(method="clip_v", mu_low=1.67, mu_high=1.67, reason="entropy falls fast"),
    author="owner",
    requested_at=0.0,
)
REVERTED = ControlSnapshot(
    version=2, control=Control(reason="Reverts version 1"), author="owner", requested_at=0.0
)


@pytest.mark.parametrize(
    ("active", "state", "message", "line"),
    [
        (
            ACTIVE,
            "APPLIED",
            "",
            "control v1 Clip_V µ 1.67, all applied (owner: entropy falls fast)",
        ),
        (REVERTED, "APPLIED", "", "control v2 no control applied (owner: Reverts version 1)"),
        (ACTIVE, "REJECTED", "beta is 0.", "control v1 rejected (beta is 0.)"),
        (ACTIVE, "EXPIRED", "too\nlate", "control v1 expired (too\\u000alate)"),
    ],
)
def test_each_outcome_is_logged_once(
    active: ControlSnapshot,
    state: str,
    message: str,
    line: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    outcome = ControlOutcome(
        version=active.version, state=OutcomeState(state), at=0.0, message=message
    )
    acknowledgement = Acknowledgement()
    acknowledgement.log(28, [outcome], active)
    acknowledgement.log(29, [outcome], active)
    assert caplog.messages == [f"isentrope: step 28: {line}"]
