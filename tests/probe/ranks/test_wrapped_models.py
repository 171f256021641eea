"""The probe in loops whose model is replicated or sharded over ranks."""

from __future__ import annotations

from itertools import product

import pytest
import torch

import isentrope
from tests.probe.ranks.gang import one_after_another, run_ranks
from tests.probe.ranks.test_global_steps import measured
from tests.probe.ranks.wrapped import ROWS, Training, batch_of, train

CLIP_B = isentrope.Control(method="clip_b", mu_low=0.5, mu_high=0.5)
WRAPPERS = ("ddp", "fsdp", "accelerate")

Trainings = dict[tuple[str, str], list[Training]]


@pytest.fixture(scope="module")
def trainings() -> Trainings:
    """By wrapper and how the probe is attached, one training per rank."""
    calls = [
        (wrapper, attached, CLIP_B if attached == "gate" else None)
        for wrapper, attached in product(WRAPPERS, ("no", "observe", "gate", "coupled"))
    ]
    of_ranks = run_ranks(len(ROWS), one_after_another, train, calls)
    return {call[:2]: [of_rank[index] for of_rank in of_ranks] for index, call in enumerate(calls)}


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_a_training_that_is_only_observed_stays_bit_identical_on_every_rank(
    wrapper: str, trainings: Trainings
) -> None:
    plain, observed, coupled = (
        trainings[wrapper, attached] for attached in ("no", "observe", "coupled")
    )
    for of_plain, of_observed, of_coupled in zip(plain, observed, coupled, strict=True):
        assert torch.equal(of_plain.weights, of_observed.weights)
        assert torch.equal(of_plain.weights, of_coupled.weights)
        assert torch.equal(of_observed.weights, observed[0].weights)
    for step, report in enumerate(observed[0].reports):
        tokens = sum(int(batch_of(rank, step)[3].sum()) for rank in range(len(ROWS)))
        assert report.scalars["token/count"] == tokens
        assert "entropy/observed_change" in report.scalars
        assert report.labels["calibration/momentum"] == "0.9"


@pytest.mark.parametrize("wrapper", ["fsdp", "accelerate"])
def test_replicated_and_sharded_models_have_the_same_coupled_prediction(
    wrapper: str, trainings: Trainings
) -> None:
    def predicted(of: str) -> list[float]:
        reports = trainings[of, "coupled"][0].reports
        assert [report.labels["entropy/prediction_basis"] for report in reports[1:]] == [
            "entropy_gradient"
        ] * 3
        return [report.scalars["entropy/predicted_change"] for report in reports[1:]]

    assert predicted(wrapper) == pytest.approx(predicted("ddp"), rel=1e-3)


@pytest.mark.parametrize("wrapper", ["fsdp", "accelerate"])
def test_replicated_and_sharded_models_are_gated_alike(wrapper: str, trainings: Trainings) -> None:
    expected, got = trainings["ddp", "gate"][0], trainings[wrapper, "gate"][0]
    torch.testing.assert_close(got.weights, expected.weights, rtol=1e-4, atol=1e-5)
    assert not torch.equal(got.weights, trainings[wrapper, "no"][0].weights)
    for report, of_ddp in zip(got.reports, expected.reports, strict=True):
        assert 0 < report.scalars["clip/fraction"] < 1
        assert measured(report) == pytest.approx(measured(of_ddp), rel=1e-3, abs=1e-5)
