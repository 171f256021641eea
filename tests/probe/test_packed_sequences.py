"""Sequences laid end to end, with their bounds: the report and the gradient of the same sequences
in rows."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import isentrope
from isentrope.transport.transport import InMemoryTransport
from isentrope_wire.errors import InputError
from isentrope_wire.reports import StepReport
from tests.probe.tiny_loop import CLIP, of_the_machine, probe_and_transport, reports

LENGTHS, VOCABULARY = torch.tensor([4, 7, 0, 1, 7, 3]), 24
BOUNDS = [0, *LENGTHS.cumsum(0).tolist()]
GENERATOR = torch.Generator().manual_seed(7)
MASK = torch.arange(7) < LENGTHS.unsqueeze(1)
LOGITS = torch.randn(6, 7, VOCABULARY, generator=GENERATOR, dtype=torch.float64)
IDS = torch.randint(0, VOCABULARY, (6, 7), generator=GENERATOR)
NOISE = torch.randn(6, 7, generator=GENERATOR, dtype=torch.float64) / 10
ADVANTAGES = torch.tensor([1.0, -0.5, 0.0, 2.0, -1.0, 0.5], dtype=torch.float64)
COUNTS = torch.rand(6, 7, generator=GENERATOR) < 0.8
TEMPERATURES = torch.linspace(0.7, 1.2, 6).unsqueeze(1).expand(6, 7)
GROUPS, REWARDS = torch.tensor([0, 0, 0, 1, 1, 1]), torch.arange(6.0)


def run(
    control: isentrope.Control, in_layout: Callable[[Tensor], Tensor], **packed: object
) -> tuple[StepReport, Tensor]:
    """One step, and the gradient of its logits, where there is a token."""
    transport = InMemoryTransport()
    probe = isentrope.Probe("test", transport=transport, control=control, tokenizer=str)
    logits = LOGITS.clone().requires_grad_()

    def score(shift: float = 0.0) -> isentrope.TokenScores:
        return probe.score(
            in_layout(logits * (1 + shift)), in_layout(IDS), temperature=in_layout(TEMPERATURES)
        )

    scores = score()
    sampler = scores.logprobs.detach() + in_layout(NOISE)
    logprobs = probe.gate(
        scores,
        ADVANTAGES,
        in_layout(COUNTS & MASK),
        sampler_logprobs=sampler,
        old_logprobs=scores.logprobs.detach(),
        ref_logprobs=sampler.clone(),
        groups=GROUPS,
        old_entropies=scores.entropies.detach() + 0.01,
        completions={"reward": REWARDS},
        rescore=lambda: score(0.1),
        **packed,  # type: ignore[arg-type]
    )
    assert logprobs.shape == in_layout(IDS).shape
    per_token = in_layout(ADVANTAGES.unsqueeze(1).expand(6, 7))
    weights = per_token * in_layout(COUNTS & MASK)
    ratio = (logprobs - scores.logprobs.detach()).exp()
    (-(ratio * weights).sum() / 17).backward()
    probe.step(0)
    assert logits.grad is not None
    (report,) = reports(transport)
    return report, logits.grad[MASK]


CONTROLS = [
    isentrope.Control(),
    CLIP,
    isentrope.Control(method="rank_reward"),
    isentrope.Control(
        method="entropy_ratio_clip", parameters={"beta_low": 0.001, "beta_high": 0.001}
    ),
]


@pytest.mark.parametrize("control", CONTROLS, ids=lambda control: str(control.method))
def test_packed_sequences_make_the_report_of_the_same_rows(control: isentrope.Control) -> None:
    expected, expected_gradient = run(control, lambda tensor: tensor)
    report, gradient = run(control, lambda tensor: tensor[MASK], cu_seqlens=BOUNDS)
    assert torch.equal(gradient, expected_gradient)
    assert (
        report.scalars.keys()
        == expected.scalars.keys()
        >= {"covariance/group", "entropy/observed_change"}
    )
    for name in (name for name in report.scalars if not of_the_machine(name)):
        assert report.scalars[name] == pytest.approx(
            expected.scalars[name], rel=1e-12, abs=1e-15
        ), name
    assert report.tokens == expected.tokens
    assert report.rollouts == expected.rollouts


@pytest.mark.parametrize("bounds", [[0, 5, 5], [1, 22], [0, 9, 4, 22], [[0, 22]], [0]])
def test_bounds_that_do_not_fit_are_refused(bounds: list[int]) -> None:
    probe, _ = probe_and_transport()
    scores = probe.score(LOGITS[MASK], IDS[MASK])
    with pytest.raises(InputError, match="cu_seqlens"):
        probe.gate(scores, ADVANTAGES, cu_seqlens=torch.tensor(bounds))


def test_micro_batches_that_can_be_scored_again_give_the_observed_change() -> None:
    probe, transport = probe_and_transport()
    kept = [probe.score(LOGITS[:3], IDS[:3]), probe.score(LOGITS[3:], IDS[3:])]
    probe.gate(kept[0], ADVANTAGES[:3])
    probe.gate(kept[1], ADVANTAGES[3:], rescore=lambda: probe.score(LOGITS[3:] * 1.1, IDS[3:]))
    probe.step(0)
    after = probe.score(LOGITS[3:] * 1.1, IDS[3:]).entropies
    observed = reports(transport)[0].scalars["entropy/observed_change"]
    assert observed == pytest.approx((after - kept[1].entropies).mean().item(), rel=1e-12)


def nested(tensor: Tensor) -> Tensor:
    return torch.nested.nested_tensor_from_jagged(tensor[MASK], torch.tensor(BOUNDS))


def test_nested_tensors_are_refused_by_naming_their_values() -> None:
    probe, _ = probe_and_transport()
    with pytest.raises(InputError, match=r"logits\.values\(\)"):
        probe.score(nested(LOGITS), nested(IDS))
    with pytest.raises(InputError, match=r"token_ids\.values\(\)"):
        probe.score(LOGITS[MASK], nested(IDS))
    scores = probe.score(nested(LOGITS).values(), nested(IDS).values())
    with pytest.raises(InputError, match=r"mask\.values\(\)"):
        probe.gate(scores, torch.ones(22), nested(COUNTS))
    with pytest.raises(InputError, match=r"advantages\.values\(\)"):
        probe.gate(scores, nested(NOISE))
    with pytest.raises(InputError, match=r"logprobs\.values\(\)"):
        probe.gate(scores, torch.ones(22), logprobs=nested(NOISE))


def test_a_long_sequence_among_short_ones_costs_its_tokens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Limits count tokens; sequences times the longest would be 37 times as many."""
    lengths = torch.tensor([600, *[1, 3, 8] * 20])
    count = int(lengths.sum())
    monkeypatch.setattr("isentrope.statistics.tokens.MAX_TOKENS", count)
    g = torch.Generator().manual_seed(0)
    probe, transport = probe_and_transport()
    logits = torch.randn(count, VOCABULARY, generator=g, requires_grad=True)
    ids = torch.randint(0, VOCABULARY, (count,), generator=g)
    advantages = torch.randn(len(lengths), generator=g)
    scores = probe.score(logits, ids)
    bounds = [0, *lengths.cumsum(0).tolist()]
    gated = probe.gate(scores, advantages, cu_seqlens=bounds, groups=1)
    (batch,) = probe._open.ledger.batches
    held = [batch.advantages, batch.mask, batch.scores.entropies, batch.scores.logprobs]
    assert [one.numel() for one in held] == [count] * 4
    (-(gated * torch.repeat_interleave(advantages, lengths)).mean()).backward()
    probe.step(0)
    (report,) = reports(transport)
    assert report.scalars["token/count"] == count
    assert "token/not_recorded" not in report.scalars
    assert report.tokens[0].sequence is not None
