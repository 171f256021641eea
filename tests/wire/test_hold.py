"""What is to be held is checked where it is written down."""

from __future__ import annotations

import math

import pytest

from isentrope_wire.control import Control, Hold, HoldSide
from isentrope_wire.errors import ConfigurationError


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ({}, "hold needs target_entropy"),
        ({"target_entropy": None}, "hold needs target_entropy"),
        ({"target_entropy": 0}, "hold.target_entropy counts nats and must be above 0, got 0"),
        ({"target_entropy": -0.5}, r"hold\.target_entropy.*-0\.5"),
        ({"target_entropy": math.nan}, r"hold\.target_entropy.*nan"),
        ({"target_entropy": 10**400}, r"hold\.target_entropy.*10000"),
        ({"target_entropy": 0.5, "mu_max": -(10**400)}, r"hold\.mu_max"),
        ({"target_entropy": "0.5"}, r"hold\.target_entropy.*'0\.5'"),
        ({"target_entropy": True}, r"hold\.target_entropy.*True"),
        ({"target_entropy": 0.5, "max_change_per_step": 0}, r"hold\.max_change_per_step.* 0"),
        ({"target_entropy": 0.5, "max_change_per_step": math.inf}, r"hold\.max_change_per_step.*inf"),
        ({"target_entropy": 0.5, "mu_min": -1}, r"hold\.mu_min.*-1"),
        ({"target_entropy": 0.5, "mu_min": 3, "mu_max": 2}, "mu_min.*mu_max.*3.*2"),
        ({"target_entropy": 0.5, "side": "up"}, r"hold\.side.*raise, lower, both.*'up'"),
        ({"target_entropy": 0.5, "gain": 1}, "target_entropy.*gain"),
        ([0.5], r"hold.*\[0\.5\]"),
    ],
)
def test_a_wrong_hold_is_refused_with_one_sentence_on_the_field(document: object, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        Control.from_document({"hold": document})


def test_a_hold_is_written_down_with_its_defaults_and_reads_itself() -> None:
    control = Control(hold={"target_entropy": 0.5, "side": "raise", "mu_max": None})
    assert control.hold == {
        "target_entropy": 0.5,
        "max_change_per_step": 0.025,
        "mu_min": 0.0,
        "mu_max": 10.0,
        "side": "raise",
    }
    assert Control.from_document(control.to_document()) == control
    assert control.held == Hold(target_entropy=0.5, max_change_per_step=0.025, side=HoldSide.RAISE)
    assert Control().held is None


def test_only_thresholds_can_be_held_with() -> None:
    assert Control(method="clip_b", hold={"target_entropy": 0.5}).mu_low is None
    with pytest.raises(ConfigurationError, match="kl_cov"):
        Control(method="kl_cov", hold={"target_entropy": 0.5})
