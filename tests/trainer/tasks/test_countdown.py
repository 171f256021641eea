import itertools

import pytest

from isentrope_trainer.tasks.base import SOLVED, Problem
from isentrope_trainer.tasks.countdown import Countdown


def problem(numbers: tuple[int, ...], target: int) -> Problem:
    return Problem(
        f"{numbers} -> {target}", {"metadata": {"numbers": list(numbers), "target": target}}
    )


PROBLEM = problem((3, 5, 7), 26)


@pytest.fixture(scope="module")
def countdown() -> Countdown:
    return Countdown(seed=0)


@pytest.mark.parametrize("answer", ["3 * 7 + 5", "5 + 7 * 3", "( 7 * 3 ) + 5"])
def test_every_expression_of_the_right_value_is_rewarded(countdown: Countdown, answer: str) -> None:
    assert countdown.reward(PROBLEM, answer) == 1.0


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ("3 + 5 + 7", "wrong value"),
        ("3 * 7 + 5 + 5 - 5", "uses a number three times"),
        ("21 + 5", "uses a number that isn't there"),
        ("26", "only states the target"),
        ("3 * ( 7 + 5", "unbalanced"),
        ("3 7 5", "no operators"),
        ("", "empty"),
    ],
)
def test_nothing_else_is_rewarded(countdown: Countdown, answer: str, why: str) -> None:
    assert countdown.reward(PROBLEM, answer) == 0.0, why


@pytest.mark.timeout(5)
def test_operators_the_task_does_not_have_are_not_handed_to_the_parser(
    countdown: Countdown,
) -> None:
    # The verifier's parser joins `* *` to a power: this one has 10^11 digits.
    assert countdown.reward(PROBLEM, "15 * * 15 * * 15") == 0.0


@pytest.mark.parametrize(
    ("numbers", "target"), [((2, 3, 4), 10), ((6, 4, 8), 3), ((1, 1, 1), 1), ((9, 3, 5), 2)]
)
def test_what_is_refused_before_the_verifier_the_verifier_refuses_too(
    countdown: Countdown, numbers: tuple[int, ...], target: int
) -> None:
    asked, shapes = (
        problem(numbers, target),
        ("{} {} {} {} {}", "{} {} ( {} {} {} )", "- {} {} {} {} {}"),
    )
    rewarded = 0
    for a, b, c in itertools.permutations(numbers):
        for first, second in itertools.product("+-*/", repeat=2):
            for shape in shapes:
                answer = shape.format(a, first, b, second, c)
                verdict = countdown._datasets[0].score_answer(answer, asked.entry)
                assert countdown.reward(asked, answer) == (1.0 if verdict == SOLVED else 0.0), (
                    answer
                )
                rewarded += verdict == SOLVED
    assert rewarded


def test_problems_are_those_of_recorded_runs() -> None:
    assert [Countdown(0).problem(index).prompt for index in (0, 1, 1000)] == [
        "7 5 1 -> 2 :",
        "10 5 2 -> 7 :",
        "6 7 2 -> 3 :",
    ]
    assert [Countdown(3).problem(index).prompt for index in (0, 1, 1000)] == [
        "6 8 8 -> 6 :",
        "7 4 7 -> 21 :",
        "10 7 3 -> 37 :",
    ]
