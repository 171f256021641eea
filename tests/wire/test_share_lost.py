"""The early level is the first steps'; the share lost is counted from it."""

from __future__ import annotations

import pytest

from isentrope_wire.metrics import EarlyLevel, ShareLost
from isentrope_wire.numbers import document_of, read_exactly


def test_the_level_is_the_median_of_the_first_values() -> None:
    level = EarlyLevel()
    for value, expected in ((0.6, None), (0.1, None), (0.5, 0.5), (0.2, 0.5), (0.0, 0.5)):
        level.add(value)
        assert level.level == expected


def test_the_share_compares_the_newest_steps_with_the_level() -> None:
    lost = ShareLost()
    shares = []
    for entropy in (2.0, 2.0, 2.0, 1.5, 1.5, 3.0):
        lost.add(entropy)
        shares.append(lost.share)
    assert shares == [None, None, 0.0, 0.125, 0.25, pytest.approx(-0.125)]


def test_no_share_of_a_level_that_is_not_above_0() -> None:
    lost = ShareLost()
    for _ in range(4):
        lost.add(0.0)
    assert lost.share is None


def test_the_state_continues_from_plain_values() -> None:
    lost = ShareLost()
    for entropy in (2.0, 1.0, 3.0, 1.0):
        lost.add(entropy)
    again = read_exactly(ShareLost, document_of(lost))
    for both in (lost, again):
        both.add(0.5)
    assert again == lost
    assert again.newest.maxlen == lost.newest.maxlen
