import itertools

import pytest

from isentrope_trainer.tasks.countdown import SOLVED, Countdown, CountdownProblem

PROBLEM = CountdownProblem((3, 5, 7), 26, {"metadata": {"numbers": [3, 5, 7], "target": 26}})


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
def test_operators_the_task_does_not_have_are_not_handed_to_the_parser(countdown: Countdown) -> None:
    # The verifier's parser joins `* *` to a power: this one has 10^11 digits.
    assert countdown.reward(PROBLEM, "15 * * 15 * * 15") == 0.0


@pytest.mark.parametrize(("numbers", "target"), [((2, 3, 4), 10), ((6, 4, 8), 3), ((1, 1, 1), 1), ((9, 3, 5), 2)])
def test_what_is_refused_before_the_verifier_the_verifier_refuses_too(
    countdown: Countdown, numbers: tuple[int, ...], target: int
) -> None:
    entry = {"metadata": {"numbers": list(numbers), "target": target}}
    problem, shapes = (
        CountdownProblem(numbers, target, entry),
        ("{} {} {} {} {}", "{} {} ( {} {} {} )", "- {} {} {} {} {}"),
    )
    rewarded = 0
    for a, b, c in itertools.permutations(numbers):
        for first, second in itertools.product("+-*/", repeat=2):
            for shape in shapes:
                answer = shape.format(a, first, b, second, c)
                verdict = countdown._datasets["train"].score_answer(answer, entry)
                assert countdown.reward(problem, answer) == (1.0 if verdict == SOLVED else 0.0), answer
                rewarded += verdict == SOLVED
    assert rewarded


def test_problems_have_three_numbers_and_a_solution_the_verifier_accepts(countdown: Countdown) -> None:
    for index in range(20):
        problem = countdown.problem(index)
        assert len(problem.prompt.split()) == 6
        assert countdown.reward(problem, str(problem.entry["answer"])) == 1.0


def test_the_same_seed_gives_the_same_problems_and_neighbouring_seeds_share_none() -> None:
    def problems(seed: int) -> list[tuple[tuple[int, ...], int]]:
        task = Countdown(seed)
        return [(problem.numbers, problem.target) for problem in map(task.problem, range(12))]

    assert problems(1) == problems(1)
    # reasoning-gym alone would give seed 2 the problems of seed 1, shifted by one.
    assert problems(2)[:-1] != problems(1)[1:]


def test_splits_have_problems_of_their_own(countdown: Countdown) -> None:
    train, held_out = (
        [countdown.problem(index, split).prompt for index in range(12)] for split in ("train", "held_out")
    )
    assert train != held_out
