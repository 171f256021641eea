"""A control document is checked where it is built, and says what is wrong with it."""

from __future__ import annotations

import math

import pytest

from isentrope_wire.control import Control
from isentrope_wire.errors import ControlError


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ({"method": "clip_x"}, "method must be one of none, clip_b"),
        ({"method": "clip_v", "mu_low": -1}, "mu_low .* not negative, got -1"),
        ({"method": "clip_v", "mu_high": math.nan}, "mu_high .* finite"),
        ({"method": "clip_v", "mu_high": math.inf}, "mu_high .* finite"),
        ({"method": "clip_v", "mu_low": "1"}, "must be a number, got '1'"),
        ({"method": "clip_v", "mu_low": True}, "must be a number, got True"),
        ({"method": "clip_b"}, "needs mu_low, mu_high or both"),
        ({"method": "none", "mu_low": 1}, "act only with clip_b, clip_v"),
        ({"method": "clip_v", "mu_low": 1, "scope": "some"}, "scope must be one of"),
        ({"method": "none", "mu": 1}, "got mu"),
        ({"parameters": 3}, "parameters must be an object"),
        ({"hold": "0.5"}, "hold must be an object"),
        ({"reason": None}, "reason must be text"),
    ],
)
def test_a_wrong_control_is_refused_with_one_sentence_on_the_field(document: dict[str, object], words: str) -> None:
    with pytest.raises(ControlError, match=words):
        Control.from_document(document)


def test_a_control_reads_its_own_document() -> None:
    control = Control.from_document({"method": "clip_v", "mu_low": 1, "scope": "negative", "reason": "collapse"})
    assert control.mu_low == 1.0
    assert control.mu_high is None
    assert Control.from_document(control.to_document()) == control


def test_a_side_left_out_does_not_clip_and_zero_clips_everything_beyond_the_centre() -> None:
    assert Control(method="clip_v", mu_high=0).mu_low is None


def test_a_control_names_the_capability_it_needs() -> None:
    assert Control.from_document({"method": "clip_b", "mu_low": 2}).capability == "method:clip_b"
    assert Control.from_document({"hold": {"target_entropy": 0.5}}).capability == "hold"
