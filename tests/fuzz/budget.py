"""How much fuzzing fits where: a little in every run of the tests, much more in the slow ones."""

from __future__ import annotations

from hypothesis import HealthCheck, Phase, settings

_SLOW_IS_NO_FAILURE = (HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much)


def short(examples: int) -> settings:
    """The same examples each time: a test that fails must fail for whoever looks."""
    return settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=_SLOW_IS_NO_FAILURE,
        phases=(Phase.explicit, Phase.generate, Phase.shrink),
    )


def long(examples: int) -> settings:
    """Others each time."""
    return settings(max_examples=examples, deadline=None, database=None, suppress_health_check=_SLOW_IS_NO_FAILURE)
