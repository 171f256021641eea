"""What the policy, its sampler, its old self and its reference are apart, against numpy; causes are
named, never guessed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from isentrope.scores import TokenScores
from isentrope.statistics.step import step_metrics
from isentrope.statistics.tokens import TokenBatch
from isentrope_wire.errors import InputError
from isentrope_wire.reports import StepReport
from tests.probe.statistics.test_step_summary import sums_of
from tests.probe.tiny_loop import probe_and_transport, reports

ROWS, TOKENS, VOCABULARY = 40, 25, 30


class Sampled:
    """Tokens drawn from a sampler of which the policy that is trained is a little apart."""

    def __init__(
        self, temperature: float = 1.0, top_k: int = 0, apart: float = 0.0, seed: int = 0
    ) -> None:
        g = torch.Generator().manual_seed(seed)
        shape = (ROWS, TOKENS, VOCABULARY)
        theirs = 1.5 * torch.randn(shape, generator=g, dtype=torch.float64)
        self.logits = (
            theirs + apart * torch.randn(shape, generator=g, dtype=torch.float64)
        ).requires_grad_()
        drawn_from = theirs / temperature
        if top_k:
            lowest = drawn_from.topk(top_k).values[..., -1:]
            drawn_from = drawn_from.masked_fill(drawn_from < lowest, -torch.inf)
        log_q = drawn_from.log_softmax(-1)
        self.ids = torch.multinomial(log_q.exp().reshape(-1, VOCABULARY), 1, generator=g).reshape(
            ROWS, TOKENS
        )
        self.sampler = log_q.gather(-1, self.ids[..., None])[..., 0]
        self.advantages = torch.randn(ROWS, generator=g).double()
        lengths = torch.randint(5, TOKENS + 1, (ROWS,), generator=g)
        self.mask = torch.arange(TOKENS)[None] < lengths[:, None]

    def report(
        self, *, known: bool = True, loss_mask: Tensor | None = None, **given: Tensor
    ) -> StepReport:
        probe, transport = probe_and_transport()
        scores = probe.score(self.logits, self.ids)
        passed = {"sampler_logprobs": self.sampler, **given} if known else given
        logprobs = probe.gate(scores, self.advantages, self.mask, **passed)  # type: ignore[arg-type]
        counted = self.mask if loss_mask is None else loss_mask
        (-(self.advantages[:, None] * logprobs)[counted].mean()).backward()
        probe.step(0)
        return reports(transport)[0]


def test_the_numbers_are_what_numpy_says() -> None:
    drawn = Sampled(apart=0.2)
    old, reference = drawn.sampler + 0.1, drawn.sampler - 0.3
    scalars = drawn.report(old_logprobs=old, ref_logprobs=reference).scalars
    mask = drawn.mask.numpy()
    p = drawn.logits.detach().log_softmax(-1).gather(-1, drawn.ids[..., None])[..., 0].numpy()

    def effective(ratios: np.ndarray) -> float:
        return float(ratios.sum() ** 2 / (ratios.size * (ratios**2).sum()))

    d, to_old = p - drawn.sampler.numpy(), p - old.numpy()
    r, of_rows = np.exp(d[mask]), np.exp((d * mask).sum(1))
    to_reference = (reference.numpy() - p)[mask]
    expected = {
        "sampler/kl_k1": -d[mask].mean(),
        "sampler/kl_k3": (r - 1 - d[mask]).mean(),
        "sampler/logprob_difference_max": np.abs(d[mask]).max(),
        "sampler/effective_sample_size": effective(r),
        "sampler/effective_sequences": effective(of_rows),
        "ratio/effective_sample_size": effective(np.exp(to_old[mask])),
        "ratio/effective_sequences": effective(np.exp((to_old * mask).sum(1))),
        "ratio/max": np.exp(to_old[mask]).max(),
        "ratio/mean": np.exp(to_old[mask]).mean(),
        "kl/old": (np.exp(to_old) - 1 - to_old)[mask].mean(),
        "kl/reference": (np.exp(to_reference) - 1 - to_reference).mean(),
    }
    assert {name: scalars[name] for name in expected} == pytest.approx(expected, rel=1e-6)
    for share in (1, 50, 99):
        found = np.log(scalars[f"ratio/quantile_{share:02d}"])
        assert found == pytest.approx(np.quantile(to_old[mask], share / 100), rel=0.1, abs=2e-3)


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("length", torch.ones(ROWS)),
        ("reward/x", torch.ones(2)),
        ("prompt_ids", torch.ones(ROWS)),
        ("answer", "a text"),
        ("answer", torch.ones(ROWS, 3)),
    ],
)
def test_what_is_no_number_or_text_of_each_sequence_is_refused(name: str, given: Any) -> None:
    drawn = Sampled()
    probe, _ = probe_and_transport()
    scores = probe.score(drawn.logits, drawn.ids)
    with pytest.raises(InputError, match=f"completions.*{name}"):
        probe.gate(scores, drawn.advantages, completions={name: given})


def test_the_clip_of_the_loss_is_counted_by_side_and_sign() -> None:
    drawn = Sampled(apart=0.5)
    probe, transport = probe_and_transport()
    scores = probe.score(drawn.logits, drawn.ids)
    logprobs = probe.gate(scores, drawn.advantages, drawn.mask, old_logprobs=drawn.sampler)
    ratios, advantages = (logprobs - drawn.sampler).exp(), drawn.advantages[:, None]
    clipped = torch.minimum(ratios * advantages, ratios.clamp(0.8, 1.2) * advantages)
    (-torch.maximum(clipped, 3 * advantages.clamp(max=0))[drawn.mask].mean()).backward()
    probe.step(0)
    scalars, ratios, mask = reports(transport)[0].scalars, ratios.detach(), drawn.mask
    for name, chosen in (
        ("low", (advantages < 0) & (ratios < 0.8)),
        ("high", (advantages > 0) & (ratios > 1.2)),
    ):
        assert scalars[f"ratio/clipped_{name}"] == pytest.approx(
            float(chosen[mask].double().mean())
        )
        assert scalars[f"ratio/clipped_{name}"] > 0


def test_the_self_check_weighs_by_the_ratio() -> None:
    """Tokens of a policy that is apart: S_c alone is far from 0, r S_c is not (arXiv:2602.03392,
    App. D, Cor. 1.1)."""
    weighed = [
        Sampled(apart=0.45, seed=seed).report().scalars["score/self_check_z"] for seed in range(6)
    ]
    plain = [
        Sampled(apart=0.45, seed=seed).report(known=False).scalars["score/self_check_z"]
        for seed in range(6)
    ]
    assert max(map(abs, weighed)) < 3
    assert abs(sum(weighed)) / 6**0.5 < 3
    assert sum(plain) / 6**0.5 < -4


@pytest.mark.parametrize(
    ("drawn", "cause"),
    [
        (Sampled(temperature=0.8), "temperature: the sampler's is about 0.8"),
        (Sampled(temperature=1.25), "temperature: the sampler's is about 1.2"),
        (Sampled(temperature=1.1), "temperature: the sampler's is about 1.1"),
        (Sampled(top_k=5), "truncation"),
        (Sampled(apart=0.01), ""),
        (Sampled(apart=0.3), ""),
    ],
)
def test_the_likely_cause_is_named(drawn: Sampled, cause: str) -> None:
    labels = drawn.report().labels
    assert labels.get("sampler/likely_cause", "").startswith(cause)
    assert ("sampler/likely_cause" in labels) == bool(cause)


def test_a_loss_that_counts_other_tokens_than_the_mask_is_named() -> None:
    drawn = Sampled()
    report = drawn.report(loss_mask=torch.ones_like(drawn.mask))
    outside = float((~drawn.mask).sum())
    assert report.scalars["token/gradient_outside_mask"] == outside
    assert report.labels["sampler/likely_cause"].startswith(
        f"mask: the loss gives a gradient to {outside:.0f} tokens"
    )


def test_a_policy_that_has_learnt_is_not_taken_for_a_temperature() -> None:
    """A sharper policy looks like a sampler of a lower temperature: no cause is named once it may
    have learnt."""
    drawn = Sampled(temperature=1.25)
    assert "sampler/likely_cause" not in drawn.report(old_logprobs=drawn.sampler).labels


def test_a_uniform_policy_has_no_cause_to_find() -> None:
    drawn = Sampled()
    drawn.logits = torch.zeros_like(drawn.logits).requires_grad_()
    assert "entropy/mean" in drawn.report().scalars


def test_updates_of_the_same_tokens_are_epochs() -> None:
    probe, transport = probe_and_transport()
    first, second = Sampled(seed=1), Sampled(seed=2)
    for step, drawn in enumerate((first, second, first, first, second)):
        # In other micro-batches and another order, as loops shuffle them.
        for rows in torch.arange(ROWS).flip(0).split(7 + step):
            scores = probe.score(drawn.logits[rows], drawn.ids[rows])
            probe.gate(scores, drawn.advantages[rows], drawn.mask[rows])
        probe.step(step)
    assert [report.scalars["token/epoch"] for report in reports(transport)] == [1, 1, 2, 3, 2]


def test_what_was_not_passed_is_absent() -> None:
    scalars = Sampled().report(known=False).scalars
    assert not [name for name in scalars if name.startswith(("sampler/", "ratio/", "kl/"))]


def far_apart(rows: int, length: int, *, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Log-probs, those of the sampler, and a mask: sequences that are dozens of nats apart, and
    single tokens at +25 and -45."""
    g = torch.Generator().manual_seed(seed)
    p = -torch.rand(rows, length, generator=g, dtype=torch.float64)
    shift = torch.linspace(0.006, 0.02, rows, dtype=torch.float64)[:, None]
    d = shift * torch.randn(rows, 1, generator=g, dtype=torch.float64).sign()
    d = d + 0.001 * torch.randn(rows, length, generator=g, dtype=torch.float64)
    d[0, 0], d[1, 1] = 25.0, -45.0
    mask = torch.rand(rows, length, generator=g) < 0.9
    mask[:2, :2] = True
    return p, p - d, mask


def batch_apart(rows: slice) -> TokenBatch:
    p, q, mask = (one[rows] for one in far_apart(8, 4000))
    zeros = torch.zeros_like(p)
    scores = TokenScores(p, zeros, zeros, zeros, zeros)
    differences = {"sampler": p - q, "old": p - q, "reference": p - q}
    return TokenBatch(scores, zeros, mask, zeros + 1, differences=differences)


@pytest.mark.parametrize(
    "ranks",
    [
        pytest.param([[slice(0, 8)]], id="whole"),
        pytest.param([[slice(0, 3), slice(3, 8)]], id="micro-batches"),
        pytest.param([[slice(0, 3)], [slice(3, 4), slice(4, 8)]], id="ranks"),
        pytest.param([[slice(0, 8)], [slice(0, 0)]], id="a rank without tokens"),
    ],
)
def test_what_is_far_apart_is_not_cut(ranks: list[list[slice]]) -> None:
    sums = sums_of(*[[batch_apart(rows) for rows in of_rank] for of_rank in ranks])
    found = step_metrics(sums)
    p, q, mask = (one.numpy() for one in far_apart(8, 4000))
    d = (p - q).astype(np.longdouble)

    def effective(logs: np.ndarray) -> float:
        r = np.exp(logs - logs.max())
        return float(r.sum() ** 2 / (r.size * (r**2).sum()))

    expected = {
        "sampler/kl_k1": -d[mask].mean(),
        "sampler/kl_k3": (np.expm1(d) - d)[mask].mean(),
        "kl/old": (np.expm1(d) - d)[mask].mean(),
        "kl/reference": (np.expm1(-d) + d)[mask].mean(),
        "sampler/effective_sample_size": effective(d[mask]),
        "sampler/effective_sequences": effective((d * mask).sum(1)),
        "ratio/effective_sequences": effective((d * mask).sum(1)),
    }
    assert {name: found[name] for name in expected} == pytest.approx(expected, rel=1e-9)
    assert found["sampler/effective_sequences"] < 0.2


def test_a_ratio_beyond_float64_is_missing() -> None:
    """A token at 800 nats: k1 and the effective sizes are known, k3 is not."""
    batch = batch_apart(slice(0, 8))
    batch.differences["sampler"][0, 0] = 800.0
    found = step_metrics(sums_of([batch]))
    assert "sampler/kl_k3" not in found
    assert found["sampler/effective_sample_size"] == pytest.approx(1 / batch.mask.sum().item())
    count = batch.mask.sum().item()
    expected = -(batch.differences["sampler"] * batch.mask).sum().item() / count
    assert found["sampler/kl_k1"] == pytest.approx(expected)
