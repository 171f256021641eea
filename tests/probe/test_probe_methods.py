"""Every method, pushed to a running probe, does to the gradients what it says, and the report tells what it did."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import isentrope
from isentrope_wire.control import Method
from isentrope_wire.methods import METHODS
from isentrope_wire.reports import StepReport
from tests.probe.tiny_loop import TinyLoop, probe_and_transport, pushed, reports


def control(method: str, **parameters: object) -> isentrope.Control:
    mu = 0.5 if METHODS[method].thresholds else None
    return isentrope.Control(method=method, mu_low=mu, mu_high=mu, parameters=parameters)


def off_policy_step(probe: isentrope.Probe, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """One step over tokens whose ratio is not 1: the gated gradient, the plain one, and the advantages."""
    loop = TinyLoop(seed)
    logits, token_ids, advantages = loop.sample()
    scores = probe.score(logits, token_ids)
    old = scores.logprobs.detach() + 0.3 * torch.randn(16, 5, generator=torch.Generator().manual_seed(seed))
    gated = probe.gate(
        scores,
        advantages,
        loop.mask,
        sampler_logprobs=old,
        groups=4,
        old_entropies=scores.entropies.detach() * (0.1 * torch.sin(torch.arange(80.0))).exp().view(16, 5),
    )
    assert torch.equal(gated, scores.logprobs)

    def gradient(of: Tensor) -> Tensor:
        ratios = (of - old).exp()
        (found,) = torch.autograd.grad(-(advantages * ratios)[loop.mask].mean(), scores.logprobs, retain_graph=True)
        return found

    return gradient(gated), gradient(scores.logprobs), advantages


def last(transport: Any) -> StepReport:
    return reports(transport)[-1]


ACTING = [
    control("clip_b"),
    control("clip_v"),
    control("clip_cov", ratio=0.1, omega_low=0.01),
    control("kl_cov", k=0.2),
    control("score_sign"),
    control("top_entropy"),
    control("unlikely", below=1),
    control("rank_reward"),
    control("positive_advantage"),
    control("steer"),
    control("ratio_clip"),
    control("entropy_ratio_clip"),
]
WEIGHS = ("kl_cov", "unlikely", "rank_reward", "positive_advantage", "steer")


def test_all_methods_are_tried_here() -> None:
    assert {one.method for one in ACTING} | {Method.NONE} == set(METHODS)


@pytest.mark.parametrize("one", ACTING, ids=lambda one: str(one.method))
def test_a_method_pushed_to_a_running_probe_acts_and_tells(one: isentrope.Control) -> None:
    probe, transport = probe_and_transport()
    for step in (0, 1, 2):
        if step == 1:
            transport.set_control(pushed(1, one))
        gated, plain, _ = off_policy_step(probe, seed=step)
        probe.step(step)
        acted = not torch.allclose(gated, plain)
        assert acted == (step > 0)
    report = last(transport)
    assert report.labels["control/method"] == one.method
    # STEER and the rank reward weigh every token.
    assert 0 < report.scalars["clip/candidate_fraction"] <= 1
    assert report.scalars["clip/fraction"] <= report.scalars["clip/candidate_fraction"]
    assert (report.scalars["clip/fraction"] == 0) == (one.method in WEIGHS)
    assert "control/dead" not in report.labels
    assert "clip/candidate_fraction" not in reports(transport)[0].scalars


@pytest.mark.parametrize(
    ("calls", "source", "sources"),
    [
        ([1, 1, 1], "auto", ["micro_batch"] * 3),
        ([1, 1, 1], "previous_step", ["micro_batch", "previous_step", "previous_step"]),
        ([2, 2], "auto", ["micro_batch", "previous_step"]),
        # The first call of the second step could not know that another would follow.
        ([1, 2, 1, 1], "auto", ["micro_batch", "micro_batch", "previous_step", "micro_batch"]),
    ],
)
def test_whole_step_in_one_call_counts_from_itself(calls: list[int], source: str, sources: list[str]) -> None:
    probe, transport = probe_and_transport(control=control("top_entropy"), threshold_source=source)
    for step, times in enumerate(calls):
        for call in range(times):
            off_policy_step(probe, seed=10 * step + call)
        probe.step(step)
    assert [report.labels["threshold/source"] for report in reports(transport)] == sources
    shares = [1 - report.scalars["clip/fraction"] for report in reports(transport)]
    exact = [share == pytest.approx(0.2, abs=0.01) for share in shares]
    assert all(exact[step] for step, one in enumerate(sources) if one == "micro_batch" and calls[step] == 1)


def test_an_update_from_the_policy_the_tokens_came_from_is_told_apart_from_a_later_one() -> None:
    probe, transport = probe_and_transport(control=control("kl_cov", k=0.2))
    loop = TinyLoop()
    logits, token_ids, advantages = loop.sample()
    old = probe.score(logits, token_ids).logprobs.detach()
    for step in (0, 1):
        scores = probe.score(loop.policy(loop.states), token_ids)
        loop.update(probe.gate(scores, advantages, loop.mask, sampler_logprobs=old), advantages)
        probe.step(step)
    on_policy, off_policy = reports(transport)
    assert "importance ratio is 1 on every token" in on_policy.labels["control/dead"]
    assert "control/dead" not in off_policy.labels
