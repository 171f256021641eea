"""The probe in loops whose model is replicated or sharded over ranks."""

from __future__ import annotations

import pytest
import torch

import isentrope
from tests.probe.ranks.gang import run_ranks
from tests.probe.ranks.test_global_steps import measured
from tests.probe.ranks.wrapped import ROWS, batch_of, train

CLIP_B = isentrope.Control(method="clip_b", mu_low=0.5, mu_high=0.5)


@pytest.mark.parametrize("wrapper", ["ddp", "fsdp", "accelerate"])
def test_a_training_that_is_only_observed_stays_bit_identical_on_every_rank(wrapper: str) -> None:
    size = len(ROWS)
    plain = run_ranks(size, train, size, wrapper, "no")
    observed = run_ranks(size, train, size, wrapper, "observe")
    for of_plain, of_observed in zip(plain, observed, strict=True):
        assert torch.equal(of_plain.weights, of_observed.weights)
        assert torch.equal(of_observed.weights, observed[0].weights)
    for step, report in enumerate(observed[0].reports):
        tokens = sum(int(batch_of(rank, step)[3].sum()) for rank in range(size))
        assert report.scalars["token/count"] == tokens
        assert "entropy/observed_change" in report.scalars
        assert report.labels["calibration/momentum"] == "0.9"


def test_replicated_and_sharded_models_are_gated_alike() -> None:
    size = len(ROWS)
    by_wrapper = {
        wrapper: run_ranks(size, train, size, wrapper, "gate", CLIP_B) for wrapper in ("ddp", "fsdp", "accelerate")
    }
    expected = by_wrapper["ddp"][0]
    for wrapper in ("fsdp", "accelerate"):
        got = by_wrapper[wrapper][0]
        torch.testing.assert_close(got.weights, expected.weights, rtol=1e-4, atol=1e-5)
        for report, of_ddp in zip(got.reports, expected.reports, strict=True):
            assert 0 < report.scalars["clip/fraction"] < 1
            assert measured(report) == pytest.approx(measured(of_ddp), rel=1e-3, abs=1e-5)
