"""Padded, packed and from hidden states: the same tokens make the same report."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import isentrope
from isentrope_wire.reports import StepReport
from tests.probe.tiny_loop import CLIP, probe_and_transport, reports

LENGTHS = [7, 1, 4, 0, 5]
VOCABULARY, WIDTH = 24, 8
HIDDEN = torch.randn(5, 7, WIDTH, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
WEIGHT = torch.randn(
    VOCABULARY, WIDTH, generator=torch.Generator().manual_seed(4), dtype=torch.float64
)
BIAS = torch.randn(VOCABULARY, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
TOKEN_IDS = torch.randint(0, VOCABULARY, (5, 7), generator=torch.Generator().manual_seed(6))
ADVANTAGES = torch.tensor([1.0, -0.5, 0.25, 2.0, -1.0])
MASK = torch.arange(7) < torch.tensor(LENGTHS).unsqueeze(1)


def logits() -> Tensor:
    return HIDDEN @ WEIGHT.T + BIAS


def padded(probe: isentrope.Probe) -> None:
    # Sentinels and NaN on padding, as loops leave them there.
    token_ids = torch.where(MASK, TOKEN_IDS, 0)
    probe.gate(probe.score(logits(), token_ids, temperature=0.7), ADVANTAGES, MASK)


def packed(probe: isentrope.Probe) -> None:
    per_token = torch.repeat_interleave(ADVANTAGES, torch.tensor(LENGTHS))
    probe.gate(probe.score(logits()[MASK], TOKEN_IDS[MASK], temperature=0.7), per_token)


def packed_in_micro_batches(probe: isentrope.Probe) -> None:
    per_token = torch.repeat_interleave(ADVANTAGES, torch.tensor(LENGTHS))
    for rows in (slice(0, 3), slice(3, 3), slice(3, 17)):
        probe.gate(
            probe.score(logits()[MASK][rows], TOKEN_IDS[MASK][rows], temperature=0.7),
            per_token[rows],
        )


def hidden(probe: isentrope.Probe) -> None:
    scores = probe.score_hidden(HIDDEN, WEIGHT, TOKEN_IDS, bias=BIAS, temperature=0.7)
    probe.gate(scores, ADVANTAGES.unsqueeze(1), MASK.float())


def packed_hidden(probe: isentrope.Probe) -> None:
    per_token = torch.repeat_interleave(ADVANTAGES, torch.tensor(LENGTHS))
    probe.gate(
        probe.score_hidden(HIDDEN[MASK], WEIGHT, TOKEN_IDS[MASK], bias=BIAS, temperature=0.7),
        per_token,
    )


def report_of(gate: Callable[[isentrope.Probe], None]) -> StepReport:
    probe, transport = probe_and_transport(control=CLIP)
    with torch.no_grad():
        probe.first_pass(probe.score(logits(), TOKEN_IDS, temperature=0.7), MASK)
    gate(probe)
    probe.step(0)
    return reports(transport)[0]


@pytest.mark.parametrize("layout", [packed, packed_in_micro_batches, hidden, packed_hidden])
def test_every_layout_makes_the_same_report(layout: Callable[[isentrope.Probe], None]) -> None:
    expected, got = report_of(padded), report_of(layout)
    for report in (expected, got):
        assert report.scalars["token/count"] == sum(LENGTHS)
        assert 0 < report.scalars["clip/fraction"] < 1
    # A packed layout has no rows that are sequences.
    others = ("probe/", "system/", "time/", "completion/")
    assert {n: v for n, v in got.scalars.items() if not n.startswith(others)} == pytest.approx(
        {n: v for n, v in expected.scalars.items() if not n.startswith(others)}, rel=1e-9, abs=1e-12
    )
    assert got.histograms == expected.histograms


def test_soft_cap_and_scale_are_the_model_s() -> None:
    probe, _ = probe_and_transport()
    capped = 5.0 * torch.tanh(logits() * 0.5 / 5.0)
    expected = probe.score(capped, TOKEN_IDS, temperature=0.7)
    got = probe.score_hidden(
        HIDDEN, WEIGHT, TOKEN_IDS, bias=BIAS, temperature=0.7, softcap=5.0, scale=0.5
    )
    torch.testing.assert_close(got.vocab_centered_scores, expected.vocab_centered_scores)
    torch.testing.assert_close(got.logprobs, expected.logprobs)
