"""The top shares of the covariance from bins are those of all tokens, within the error that is
stated."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from isentrope.global_step import rank_vector, read_ranks
from isentrope.scores import TokenScores
from isentrope.statistics.covariance import ADVANTAGE_LOGPROB, COVARIANCE_BINS, means_from_bins
from isentrope.statistics.histogram import BIN_RATIO
from isentrope.statistics.moments import Covariance
from isentrope.statistics.step import step_metrics
from isentrope.statistics.tokens import TokenBatch
from isentrope_wire.metrics import COVARIANCE_TOP
from tests.probe.statistics.test_step_summary import sums_of


def heavy_tailed(tokens: int, seed: int, drift: float = 0.0) -> TokenBatch:
    """Log-probs and advantages as of a policy: most tokens certain, a few not, sequences of one
    advantage each."""
    g = torch.Generator().manual_seed(seed)
    logprobs = -torch.rand(tokens, generator=g).pow(8) * 9 - 1e-3 - drift
    advantages = torch.randn(tokens // 50, generator=g).repeat_interleave(50) + drift
    zero = torch.zeros(tokens)
    valid = torch.rand(tokens, generator=g) < 0.9
    return TokenBatch(TokenScores(logprobs, zero, zero, zero, zero), advantages, valid)


def binned(
    parts: list[TokenBatch], centre: tuple[Tensor, Tensor] | None = None
) -> dict[str, float]:
    rows = [rank_vector(0, 0, [part], None, None, centre=centre).tolist() for part in parts]
    found = read_ranks([*rows, rank_vector(0, 0, [], None, None).tolist()])
    assert found.sums is not None
    return {
        name: value for name, value in step_metrics(found.sums).items() if name in COVARIANCE_TOP
    }


def exact(parts: list[TokenBatch]) -> dict[str, float]:
    logprobs = torch.cat([part.scores.logprobs[part.mask] for part in parts]).double()
    advantages = torch.cat([part.advantages[part.mask] for part in parts]).double()
    covariances = (
        ((logprobs - logprobs.mean()) * (advantages - advantages.mean()))
        .sort(descending=True)
        .values
    )
    shares = {
        name: max(1, int(len(covariances) * share + 0.5)) for name, share in COVARIANCE_TOP.items()
    }
    return {name: covariances[:count].mean().item() for name, count in shares.items()}


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("tokens", [500, 20_000])
def test_shares_are_within_the_stated_error_and_mostly_far_within(tokens: int, ranks: int) -> None:
    parts = [heavy_tailed(tokens, 10 * ranks + rank) for rank in range(ranks)]
    centre = (torch.tensor(-0.9, dtype=torch.float64), torch.tensor(0.05, dtype=torch.float64))
    for found in (binned(parts), binned(parts, centre)):
        for name, value in exact(parts).items():
            assert found[name] == pytest.approx(value, rel=BIN_RATIO - 1), name
            if tokens > 1000 and COVARIANCE_TOP[name] >= 0.02:
                assert found[name] == pytest.approx(value, rel=0.01), name
        assert found["covariance/top_100"] == pytest.approx(
            exact(parts)["covariance/top_100"], rel=1e-9
        )


def test_no_tokens_have_no_shares() -> None:
    assert means_from_bins([0.0] * COVARIANCE_BINS.size, Covariance()) == ()


def test_ranks_whose_own_means_differ_agree_once_the_means_of_the_step_before_are_known() -> None:
    parts = [heavy_tailed(5000, 1), heavy_tailed(5000, 2, drift=1.0)]
    nothing_yet = (torch.tensor(torch.nan), torch.tensor(torch.nan))
    assert binned(parts, nothing_yet) == binned(parts)
    whole = sums_of(parts)[ADVANTAGE_LOGPROB]
    centre = (torch.tensor(whole.mean_right), torch.tensor(whole.mean_left))
    for name, value in exact(parts).items():
        assert binned(parts, centre)[name] == pytest.approx(value, rel=BIN_RATIO - 1)
