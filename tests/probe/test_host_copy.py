"""A step that is copied to the host is counted there as it is where it lies, whatever the loop does
to its tensors since."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
import torch

import isentrope
from isentrope import host_copy
from isentrope.global_step import (
    LAYOUT,
    centre_moments,
    next_step_vector,
    rank_vector,
    threshold_moments,
)
from isentrope.guard import Guard
from isentrope.host_copy import MOST_TOKENS, MOST_UNDER_WAY, HostCopies
from isentrope.scores.loss_gradient import LossGradient
from isentrope.statistics.moments import ThresholdStatistics
from isentrope.statistics.tokens import TokenBatch
from tests.probe.statistics.test_step_summary import batch_of
from tests.probe.tiny_loop import (
    CLIP,
    TinyLoop,
    comparable,
    probe_and_transport,
    reports,
    run_steps,
)


def with_gradient(batch: TokenBatch) -> TokenBatch:
    gradient, leaf = LossGradient(Guard()), batch.scores.logprobs.clone().requires_grad_()
    gradient.watch("gated", leaf)
    (leaf * batch.advantages).sum().backward()
    differences = {"old": torch.randn(batch.mask.shape)}
    return replace(
        batch, gradient=gradient, differences=differences, group_ids=torch.arange(6.0).double()
    )


def a_step() -> tuple[list[TokenBatch], list[torch.Tensor], dict[str, Any]]:
    batches = [with_gradient(batch_of(6, 9, seed)) for seed in range(2)]
    about = {
        "thresholds": ThresholdStatistics(*torch.rand(4, dtype=torch.float64)),
        "loss_scale": torch.tensor(2.0),
        "unseen": torch.tensor([0.5, 3.0, 0.01, 0.2, 1.0, 0.01], dtype=torch.float64),
    }
    return batches, [batch.scores.entropies - 0.1 for batch in batches], about


def test_the_sums_are_those_of_the_step_as_it_was_when_the_copy_began() -> None:
    batches, after, about = a_step()
    wanted = rank_vector(3, 0, batches, after, None, **about)
    copied = HostCopies().start((batches, after, about))
    for batch in batches:
        batch.scores.entropies.zero_()
        batch.advantages.zero_()
    tokens, entropies, others = copied()
    assert torch.equal(rank_vector(3, 0, tokens, entropies, None, **others), wanted)


def test_the_next_step_counts_from_the_same_numbers() -> None:
    batches, after, about = a_step()
    whole = rank_vector(3, 0, batches, after, None, **about).unsqueeze(0)
    part = next_step_vector(batches).unsqueeze(0)
    assert part.shape == (1, LAYOUT.size)
    assert torch.equal(threshold_moments(part), threshold_moments(whole))
    assert torch.equal(centre_moments(part), centre_moments(whole))


@pytest.mark.parametrize(
    "control", [None, CLIP, isentrope.Control(method="clip_cov", parameters={"ratio": 0.2})]
)
def test_a_run_is_reported_and_steered_as_without_copies(
    control: isentrope.Control | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run() -> list[object]:
        loop = TinyLoop()
        probe, transport = probe_and_transport(control=control, threshold_source="previous_step")
        run_steps(loop, probe, 4)
        return [loop.weights().tolist(), *map(comparable, reports(transport))]

    without = run()
    monkeypatch.setattr(host_copy, "DEVICES", ("cpu",))
    assert run() == without


def test_copies_that_wait_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    copies, mask = HostCopies(), torch.ones(3, dtype=torch.bool)
    assert not copies.takes([mask])
    monkeypatch.setattr(host_copy, "DEVICES", ("cpu",))
    assert copies.takes([mask])
    assert not copies.takes([mask.expand(MOST_TOKENS, 3)])
    waiting = [copies.start([torch.ones(3)]) for _ in range(MOST_UNDER_WAY)]
    assert not copies.takes([mask])
    waiting.pop()
    assert copies.takes([mask])


def test_counting_takes_one_core_and_leaves_the_others_threads_theirs() -> None:
    usual = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        copied = HostCopies().start([torch.ones(3)])
        with ThreadPoolExecutor(1) as writer:
            assert writer.submit(copied).result()[0].tolist() == [1, 1, 1]
            assert writer.submit(torch.get_num_threads).result() == 1
        later: list[int] = []
        thread = threading.Thread(target=lambda: later.append(torch.get_num_threads()))
        thread.start()
        thread.join()
        assert [torch.get_num_threads(), *later] == [2, 2]
    finally:
        torch.set_num_threads(usual)
