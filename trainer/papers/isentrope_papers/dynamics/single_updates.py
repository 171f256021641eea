"""Theorems 1 and 2 on single updates: of a table of logits, and of a network. It needs no runs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from scipy import stats
from torch import Tensor

import isentrope
from isentrope_papers.drawing import Picture, look, panels, points
from isentrope_papers.evidence import check_at_least, correlated, pearson, spread
from isentrope_papers.figure import Check, Figure, Results, Row
from isentrope_trainer.models.warm_start import WarmStartConfig, warm_started_policy
from isentrope_trainer.settings import PolicyConfig, TaskConfig
from isentrope_trainer.tasks.base import make_task

VOCABULARY, STATES = 64, 200
STEPS = tuple(10.0**exponent for exponent in (-1, -1.5, -2, -2.5, -3, -3.5, -4))
"""Sizes of a tabular update."""
KINDS = {
    "one logit moves": "Theorem 1",
    "policy-gradient step": "Theorem 2",
    "expected step": "Corollary 3, over the vocabulary",
}
NETWORK_PROBLEMS, NETWORK_UPDATES, NETWORK_STEP = 48, 60, 2e-5


@dataclass(frozen=True)
class Network:
    """Single SGD updates of the warm-started policy, each on one sampled token with A = +1 or
    -1."""

    predicted: list[float]
    """-A S_c of the token: without the factor that the shared weights put before it."""
    observed: list[float]
    """Change of the entropy at the token's own state, nats."""
    of_logits: list[float]
    """−Cov_p(log p, Δz) of that state's logits, as the update changed them (2505.22617, Lemma 1),
    nats."""


def entropy(logits: Tensor) -> Tensor:
    logprobs = torch.log_softmax(logits, dim=-1)
    return -(logprobs.exp() * logprobs).sum(dim=-1)


@cache
def tabular(seed: int) -> dict[str, list[float]]:
    """Random states from nearly uniform to nearly decided, one update of each size: by the kind of
    update the error of the theorem's first-order term, [STEPS], as a share of the change; medians
    over states."""
    generator = torch.Generator().manual_seed(seed)
    sharpness = torch.rand(STATES, 1, generator=generator, dtype=torch.float64) * 4 + 0.2
    logits = torch.randn(STATES, VOCABULARY, generator=generator, dtype=torch.float64) * sharpness
    probabilities = logits.softmax(dim=-1)
    tokens = torch.multinomial(probabilities, 1, generator=generator)
    chosen = torch.zeros_like(logits).scatter(1, tokens, 1.0)
    scores = isentrope.scores.token_scores(logits, tokens[:, 0])
    # Of a step that is the mean over what may be sampled, each token with an advantage of its own.
    advantages = torch.randn(logits.shape, generator=generator, dtype=torch.float64)
    centred = advantages - (probabilities * advantages).sum(-1, keepdim=True)
    of_all = probabilities * (entropy(logits)[:, None] + probabilities.log())
    covariance = (probabilities * centred * of_all).sum(-1)
    errors: dict[str, list[float]] = {name: [] for name in KINDS}
    for size in STEPS:
        for name, change, score in (
            ("one logit moves", size * chosen, scores.discriminator_scores),
            ("policy-gradient step", size * (chosen - probabilities), scores.vocab_centered_scores),
            ("expected step", size * probabilities * centred, covariance),
        ):
            true = entropy(logits + change) - entropy(logits)
            predicted = -size * score.double()
            errors[name].append(
                float(((true - predicted).abs() / true.abs().clamp_min(1e-300)).median())
            )
    return errors


@cache
def network(seed: int) -> Network:
    """One token, one update, its entropy before and after; then the weights are put back."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    task = make_task(seed, TaskConfig())
    policy = warm_started_policy(task, PolicyConfig(), WarmStartConfig())
    problems = [task.problem(index) for index in range(NETWORK_PROBLEMS)]
    generator = torch.Generator().manual_seed(seed)
    rollouts = policy.sample([p.prompt for p in problems], 2, generator, max_tokens=task.max_tokens)
    rows, columns = rollouts.mask.nonzero(as_tuple=True)
    picked = torch.randperm(len(rows), generator=generator)[:NETWORK_UPDATES].tolist()
    weights = [weight.detach().clone() for weight in policy.model.parameters()]
    predicted, observed, of_logits = [], [], []
    for count, place in enumerate(picked):
        row, column, advantage = int(rows[place]), int(columns[place]), (1.0, -1.0)[count % 2]
        one = rollouts.select_prompts(torch.tensor([row // rollouts.group_size]))
        inside = row % rollouts.group_size

        logits = policy.read(one).logits[inside, column]
        token = int(rollouts.completions[row, column])
        score = isentrope.scores.token_scores(
            logits.detach()[None], torch.tensor([token])
        ).vocab_centered_scores[0]
        old_logits = logits.detach().double()
        (-advantage * torch.log_softmax(logits, dim=-1)[token]).backward()
        with torch.no_grad():
            for weight in policy.model.parameters():
                if weight.grad is not None:
                    weight.sub_(NETWORK_STEP * weight.grad)
            new_logits = policy.read(one).logits[inside, column].double()
            for weight, old in zip(policy.model.parameters(), weights, strict=True):
                weight.copy_(old)
                weight.grad = None
        predicted.append(-advantage * float(score))
        observed.append(float(entropy(new_logits) - entropy(old_logits)))
        p, change = old_logits.softmax(-1), new_logits - old_logits
        of_logits.append(-float(p @ (p.log() * (change - p @ change))))
    torch.set_num_threads(threads)
    return Network(predicted, observed, of_logits)


class SingleUpdates(Figure):
    name = "dynamics-theorems"
    number = "Theorems 1 and 2"
    title = "the entropy change of single updates"
    claim = (
        "To first order, moving the logit of token k by ε changes the entropy by −ε S*, S* = p (H +"
        " log p), a policy-gradient step of strength α on it by −α (S* − E[S]), and the expected"
        " one by −α Cov_p(A, S_c) over the vocabulary. Any change of the logits does so by"
        " −Cov_p(log p, Δz) (2505.22617, Lemma 1)."
    )
    chosen_late = "The size of the network's updates."

    def draw(self, results: Results) -> Picture:
        picture, (left, right) = panels(1, 2, height=2.8)
        for index, (name, theorem) in enumerate(KINDS.items()):
            errors = np.array([tabular(seed)[name] for seed in results.plan.seeds])
            style = look(index)
            left.loglog(
                STEPS,
                errors.mean(axis=0),
                color=style.color,
                linestyle=style.dash,
                marker=style.marker,
                markersize=4,
                label=f"{name} ({theorem})",
            )
        left.set(
            xlabel="size of the update", ylabel="error of the first order,\nshare of the change"
        )
        left.set_title("(a) table of logits")
        left.legend()
        for index, seed in enumerate(results.plan.seeds):
            changes = [1e3 * change for change in network(seed).observed]
            points(
                right,
                network(seed).predicted,
                changes,
                index=index,
                label=f"seed {seed}",
                size=3,
                alpha=0.7,
            )
        right.axhline(0, color="#888888", linewidth=0.6)
        right.axvline(0, color="#888888", linewidth=0.6)
        right.set(xlabel="predicted direction −A S_c, nats", ylabel="observed change, 10⁻³ nats")
        # Improbable tokens have gradients many times those of others.
        right.set_yscale("symlog", linthresh=1)
        right.set_title("(b) network, one token an update")
        right.legend()
        return picture

    def table(self, results: Results) -> list[Row]:
        rows: list[Row] = [
            {
                "panel": "a",
                "seed": seed,
                "size": size,
                "error_theorem_1": one,
                "error_theorem_2": two,
                "error_corollary_3": all_of_it,
            }
            for seed in results.plan.seeds
            for size, one, two, all_of_it in zip(STEPS, *tabular(seed).values(), strict=True)
        ]
        rows += [
            {
                "panel": "b",
                "seed": seed,
                "predicted": predicted,
                "observed": observed,
                "of_logits": of_logits,
            }
            for seed in results.plan.seeds
            for predicted, observed, of_logits in zip(*vars(network(seed)).values(), strict=True)
        ]
        return rows

    def checks(self, results: Results) -> list[Check]:
        seeds = results.plan.seeds
        checks = [
            _first_order(
                f"{theorem}, table: the error shrinks in proportion to the update",
                [tabular(s)[name] for s in seeds],
            )
            for name, theorem in KINDS.items()
        ]
        found = [network(seed) for seed in seeds]
        reason = (
            "Shared weights move the other logits of the state too, along the network's own kernel."
        )
        checks.append(
            correlated(
                "network: −A S_c goes with the change at the token's own state, by rank",
                [(stats.rankdata(one.predicted), stats.rankdata(one.observed)) for one in found],
                bound=0.5,
                reason=reason,
            )
        )
        checks.append(
            correlated(
                "network: Lemma 1 with the change of its own logits goes with the change of the"
                " entropy, by rank",
                [(stats.rankdata(one.of_logits), stats.rankdata(one.observed)) for one in found],
                bound=0.9,
                reason=(
                    "An update on an improbable token moves the logits far beyond the first order."
                ),
            )
        )
        agreement = [
            float(np.mean(np.sign(one.predicted) == np.sign(one.observed))) for one in found
        ]
        checks.append(
            check_at_least(
                "network: the sign is that of −A S_c in three of four updates",
                agreement,
                0.75,
                reason=reason,
            )
        )
        return checks


def _first_order(statement: str, errors: list[list[float]]) -> Check:
    """Slope 1 of the relative error over the size means a remainder of second order."""
    slopes = [float(stats.linregress(np.log(STEPS), np.log(of_seed)).slope) for of_seed in errors]
    smallest = [of_seed[-1] for of_seed in errors]
    straight = min(pearson(np.log(STEPS), np.log(of_seed)) for of_seed in errors)
    return Check(
        statement=statement,
        holds=all(abs(slope - 1) < 0.1 for slope in slopes),
        number=(
            f"{max(smallest):.1e} of the change at updates of {STEPS[-1]:g}; slope {spread(slopes)}"
        ),
        test=(
            f"slope of log error over log size within 0.1 of 1, r ≥ {straight:.3f}, {len(slopes)}"
            " seeds"
        ),
        reason="",
    )
