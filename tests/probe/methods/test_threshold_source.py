"""Where thresholds come from is chosen by what is there, and what was used is reported."""

from __future__ import annotations

import logging

import pytest
import torch

import isentrope
from isentrope.scores import TokenScores, token_scores
from isentrope.transport.transport import InMemoryTransport
from tests.probe.tiny_loop import CLIP, VOCABULARY, probe_and_transport, reports


def scores_of(seed: int, rows: int = 40, scale: float = 2.0) -> TokenScores:
    g = torch.Generator().manual_seed(seed)
    return token_scores(
        torch.randn(rows, VOCABULARY, generator=g) * scale,
        torch.randint(0, VOCABULARY, (rows,), generator=g),
    )


def everywhere(scores: TokenScores) -> torch.Tensor:
    return torch.ones_like(scores.logprobs, dtype=torch.bool)


def share_outside(scores: TokenScores, sigma: torch.Tensor) -> float:
    return (scores.vocab_centered_scores.double().abs() > sigma).double().mean().item()


def gated(
    probe: isentrope.Probe, transport: InMemoryTransport, step: int, scores: TokenScores
) -> tuple[float, str]:
    probe.gate(scores, torch.ones(scores.logprobs.shape))
    probe.step(step)
    report = reports(transport)[-1]
    return report.scalars["clip/fraction"], report.labels["threshold/source"]


def test_auto_takes_the_first_pass_else_the_step_before_else_the_micro_batch() -> None:
    probe, transport = probe_and_transport(control=CLIP)
    sigma = {
        seed: scores_of(seed, scale=1 + seed).vocab_centered_scores.double().std(correction=0)
        for seed in range(9)
    }
    first, second, third, fourth = (scores_of(seed, scale=1 + seed) for seed in range(4))
    assert gated(probe, transport, 0, first) == (share_outside(first, sigma[0]), "micro_batch")
    # One call was the whole step, and is expected to be again.
    assert gated(probe, transport, 1, second) == (share_outside(second, sigma[1]), "micro_batch")
    probe.first_pass(scores_of(8, scale=9), None)
    assert gated(probe, transport, 2, third) == (share_outside(third, sigma[8]), "first_pass")
    # Until the next first pass: several steps may be made from one generation.
    assert gated(probe, transport, 3, fourth) == (share_outside(fourth, sigma[8]), "first_pass")


def test_a_first_pass_in_parts_counts_what_its_masks_let_through() -> None:
    probe, transport = probe_and_transport(control=CLIP, threshold_source="first_pass")
    parts = [scores_of(4), scores_of(5)]
    masks = [torch.arange(40) % 2 == 0, torch.arange(40) % 3]
    probe.first_pass(parts, masks)
    counted = torch.cat(
        [part.vocab_centered_scores[mask != 0] for part, mask in zip(parts, masks, strict=True)]
    )
    step = scores_of(6, scale=4.0)
    expected = share_outside(step, counted.double().std(correction=0))
    assert gated(probe, transport, 0, step) == (expected, "first_pass")


def test_a_step_whose_micro_batches_differ_in_their_source_names_both() -> None:
    probe, transport = probe_and_transport(control=CLIP)
    probe.gate(scores_of(1), torch.ones(40))
    probe.first_pass(scores_of(2))
    assert gated(probe, transport, 0, scores_of(3))[1] == "first_pass+micro_batch"


@pytest.mark.parametrize("wanted", ["previous_step", "micro_batch"])
def test_a_source_that_was_asked_for_is_used_although_a_first_pass_is_there(wanted: str) -> None:
    probe, transport = probe_and_transport(control=CLIP, threshold_source=wanted)
    for step in range(2):
        probe.first_pass(scores_of(8))
        _, source = gated(probe, transport, step, scores_of(step))
    assert source == wanted


def test_a_first_pass_that_was_asked_for_and_never_came_is_missed_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    probe, transport = probe_and_transport(control=CLIP, threshold_source="first_pass")
    with caplog.at_level(logging.WARNING, logger="isentrope"):
        sources = [gated(probe, transport, step, scores_of(step))[1] for step in range(3)]
    assert sources == ["micro_batch", "previous_step", "previous_step"]
    assert [
        record.message
        for record in caplog.records
        if "probe.first_pass was not called" in record.message
    ] == [caplog.records[0].message]


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
def test_whole_step_in_one_call_counts_from_itself(
    calls: list[int], source: str, sources: list[str]
) -> None:
    control = isentrope.Control(method="top_entropy")
    probe, transport = probe_and_transport(control=control, threshold_source=source)
    for step, times in enumerate(calls):
        for call in range(times):
            probe.gate(scores_of(10 * step + call), torch.ones(40))
        probe.step(step)
    assert [report.labels["threshold/source"] for report in reports(transport)] == sources
    exact = [
        report.scalars["clip/fraction"] == pytest.approx(0.8, abs=0.01)
        for report in reports(transport)
    ]
    assert all(
        exact[step] for step, one in enumerate(sources) if one == "micro_batch" and calls[step] == 1
    )
