"""What holds for every task."""

import random
from typing import Literal

import pytest

from isentrope_trainer.models.warm_start import BOS_ID, EOS_ID, VocabularyError, WordTokenizer
from isentrope_trainer.settings import TASKS, TaskConfig
from isentrope_trainer.tasks.base import Problem, Task, is_held_out, make_task
from isentrope_wire.errors import ConfigurationError

HELD_OUT = 40
WORDINGS: tuple[Literal["words"], Literal["question"]] = ("words", "question")


@pytest.fixture(params=TASKS, scope="module")
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def task(name: str) -> Task:
    return make_task(0, TaskConfig(name=name), hold_out=True)


def prompts(task: Task, count: int) -> list[str]:
    return [task.problem(index).prompt for index in range(count)]


def test_the_same_seed_gives_the_same_problems(name: str) -> None:
    first, again, other = (
        prompts(make_task(seed, TaskConfig(name=name)), 12) for seed in (1, 1, 2)
    )
    assert first == again
    # reasoning-gym alone would give seed 2 the problems of seed 1, shifted by one.
    assert other[:-1] != first[1:]


def test_problems_fit_the_vocabulary(task: Task) -> None:
    tokenizer = WordTokenizer(task.words)
    for prompt in prompts(task, 50):
        assert tokenizer.decode(tokenizer.encode(prompt)) == f"<bos> {prompt}"


def test_the_generators_own_answer_is_right(task: Task) -> None:
    for index in range(20):
        problem = task.problem(index)
        assert task.reward(problem, problem.entry["answer"]) == 1.0
        assert (
            task.reward(problem, f"Let me see. <answer>{problem.entry['answer']}</answer>") == 1.0
        )
        assert task.reward(problem, "<answer>no idea</answer>") == 0.0


def test_no_problem_is_in_both_splits(task: Task) -> None:
    training = {task.key(task.problem(index).entry) for index in range(300)}
    held_out = [task.problem(index, "held_out") for index in range(HELD_OUT)]
    assert not any(map(is_held_out, training))
    assert all(is_held_out(task.key(problem.entry)) for problem in held_out)
    assert len({problem.prompt for problem in held_out}) == HELD_OUT


def test_held_out_problems_are_the_same_for_every_seed(name: str, task: Task) -> None:
    other = make_task(7, TaskConfig(name=name), hold_out=True)
    # Asked in another order, they are the same, too.
    assert [other.problem(index, "held_out").prompt for index in (5, 0, 3)] == [
        task.problem(index, "held_out").prompt for index in (5, 0, 3)
    ]


def test_holding_out_replaces_only_held_out_problems(name: str, task: Task) -> None:
    whole = make_task(0, TaskConfig(name=name))
    for index in range(100):
        problem = whole.problem(index)
        assert (task.problem(index) == problem) == (not is_held_out(task.key(problem.entry)))


def test_a_task_that_holds_nothing_out_has_no_such_split(name: str) -> None:
    with pytest.raises(ConfigurationError, match="hold_out"):
        make_task(0, TaskConfig(name=name)).problem(0, "held_out")


def test_demonstrations_without_noise_are_right(task: Task) -> None:
    for prompt, answer in demonstrations(task, noise=0.0):
        assert task.reward(asked(prompt), answer) == 1.0, (prompt, answer)


def test_noisy_demonstrations_are_well_formed_and_partly_right(task: Task) -> None:
    tokenizer, rewards = WordTokenizer(task.words), []
    for prompt, answer in demonstrations(task, noise=1.0):
        assert len(tokenizer.encode_answer(answer)) <= task.longest_answer
        assert task.read(answer) is not None
        rewards.append(task.reward(asked(prompt), answer))
    assert sum(rewards) > 0.0


def test_the_same_generator_state_gives_the_same_demonstrations(task: Task) -> None:
    assert demonstrations(task, noise=0.5) == demonstrations(task, noise=0.5)


def asked(prompt: str) -> Problem:
    """The problem that a prompt asks, with what the verifiers want to know."""
    if prompt.endswith("="):
        return Problem(
            prompt, {"answer": str(sum(int(term) for term in prompt.split() if term not in ".="))}
        )
    numbers, target = prompt.removesuffix(" :").split(" -> ")
    given = [int(number) for number in numbers.split()]
    puzzle = {"jug_capacities": given, "target": int(target)}
    return Problem(
        prompt, {"metadata": {"numbers": given, "target": int(target), "puzzle": puzzle}}
    )


def demonstrations(task: Task, noise: float) -> list[tuple[str, str]]:
    generator = random.Random(0)
    return [task.demonstration(noise, generator) for _ in range(100)]


@pytest.mark.parametrize(
    ("task_name", "malformed"),
    [
        ("countdown", "3 * ( 7 + 5"),
        ("countdown", "3 / 0"),
        ("chain_sum", "4 ="),
        ("chain_sum", ""),
        ("jugs", "5 0 0"),
    ],
)
def test_wrong_malformed_and_cut_off_answers_earn_nothing(task_name: str, malformed: str) -> None:
    task = make_task(0, TaskConfig(name=task_name))
    problem = task.problem(0)
    wrong = {"countdown": "1 + 1", "chain_sum": "-60", "jugs": "empty-A 0 0 0"}[task_name]
    answers = [problem.entry["answer"], wrong, malformed, None]
    assert [task.reward(problem, answer) for answer in answers] == [1.0, 0.0, 0.0, 0.0]


def test_moves_are_read_among_the_states_they_lead_to() -> None:
    jugs = make_task(0, TaskConfig(name="jugs"))
    assert jugs.read("fill-B 0 5 0 B->A 3 2 0") == '["fill B", "pour B->A"]'
    assert jugs.reward(asked("3 5 7 -> 2 :"), "fill-B 0 5 0 B->A 3 2 0") == 1.0
    # What the chain claims that the jugs hold counts for nothing.
    assert jugs.reward(asked("3 5 7 -> 2 :"), "fill-B 0 2 0") == 0.0


@pytest.mark.parametrize(
    ("answer", "number"),
    [("The sum is 4 - 7 = -3.", "-3"), ("<answer>12</answer>", "12"), ("It is nothing.", None)],
)
def test_the_last_number_of_a_sentence_is_the_answer_to_a_question(
    answer: str, number: str | None
) -> None:
    assert make_task(0, TaskConfig(name="chain_sum", wording="question")).read(answer) == number


def test_a_question_is_asked_in_plain_english(name: str) -> None:
    words, question = (make_task(0, TaskConfig(name=name, wording=wording)) for wording in WORDINGS)
    assert len(question.problem(0).prompt.split()) > len(words.problem(0).prompt.split())
    assert question.problem(0).entry == words.problem(0).entry


def test_an_unknown_task_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="'addition'"):
        TaskConfig(name="addition")


TOKENIZER = WordTokenizer(["+", "*", "(", ")", "15", "49"])


def test_a_prompt_begins_and_an_answer_ends_with_its_marker() -> None:
    assert TOKENIZER.encode("15") == [BOS_ID, *TOKENIZER.encode_words("15")]
    assert TOKENIZER.encode_answer("15") == [*TOKENIZER.encode_words("15"), EOS_ID]
    assert TOKENIZER.decode([BOS_ID, EOS_ID]) == "<bos> <eos>"


def test_an_unknown_word_is_named() -> None:
    with pytest.raises(VocabularyError, match="'50'"):
        TOKENIZER.encode("15 + 50")
