"""The age of the oldest record that has not arrived."""

from __future__ import annotations

from isentrope.transport.spool import MOST_MARKS, DeliveryLag


def test_the_oldest_record_that_has_not_arrived_counts() -> None:
    lag = DeliveryLag()
    assert lag.oldest_at is None
    lag.written(3, 10.0)
    lag.written(3, 11.0)
    lag.written(8, 12.0)
    assert lag.oldest_at == 10.0
    lag.acknowledged(5)
    assert lag.oldest_at == 12.0
    lag.acknowledged(8)
    assert lag.oldest_at is None


def test_a_server_that_stays_away_makes_it_coarser_and_never_younger() -> None:
    lag = DeliveryLag()
    for second in range(10 * MOST_MARKS):
        lag.written(second + 1, float(second))
        assert lag.oldest_at == 0.0
    lag.acknowledged(5 * MOST_MARKS)
    assert lag.oldest_at is not None
    assert 5 * MOST_MARKS <= lag.oldest_at <= 5 * MOST_MARKS + 64
