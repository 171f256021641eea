import random

import torch

from isentrope_trainer.tasks.countdown import Countdown, CountdownProblem
from isentrope_trainer.tasks.demonstrations import demonstration_batch
from isentrope_trainer.tasks.vocabulary import EOS_ID, WORDS, WordTokenizer


def solved_share(noise: float, size: int) -> float:
    """Share of demonstrations that the task's verifier accepts."""
    prompts, completions = demonstration_batch(size, noise, random.Random(0))
    task, solved = Countdown(seed=0), 0.0
    for prompt, completion in zip(prompts.tolist(), completions.tolist(), strict=True):
        numbers, target = [int(WORDS[token_id]) for token_id in prompt[1:4]], int(WORDS[prompt[5]])
        problem = CountdownProblem(tuple(numbers), target, {"metadata": {"numbers": numbers, "target": target}})
        solved += task.reward(problem, WordTokenizer().decode(completion[: completion.index(EOS_ID)]))
    return solved / size


def test_demonstrations_without_noise_all_solve_their_problem() -> None:
    assert solved_share(noise=0.0, size=200) == 1.0


def test_noise_leaves_about_its_share_unsolved() -> None:
    # A random expression of the right numbers hits the target now and then.
    assert 0.5 <= solved_share(noise=0.5, size=400) <= 0.65


def test_the_same_generator_state_gives_the_same_batch() -> None:
    first, second = (demonstration_batch(8, 0.5, random.Random(3)) for _ in range(2))
    assert torch.equal(first[0], second[0])
    assert torch.equal(first[1], second[1])
