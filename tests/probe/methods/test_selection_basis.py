"""What a method counts from: the step before once there is one, and the report names what is
used."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from isentrope.methods.basis import SelectionBasis
from isentrope.statistics.moments import threshold_sums
from isentrope.statistics.tokens import TokenBatch
from isentrope_wire.control import Control
from tests.probe.methods.tokens import tokens

TOP = Control(method="top_entropy", parameters={"fraction": 0.25})
KL = Control(method="kl_cov", parameters={"k": 0.25})
CAPPED = Control(method="clip_v", mu_low=0, parameters={"max_fraction": 0.25})
FIRST = tokens([1.0, 1.0, -1.0, -1.0], logprobs=[-1.0, -3, -1, -3], entropies=[0.1, 0.2, 0.3, 0.4])
SECOND = tokens([1.0, 1.0], entropies=[0.5, 0.6], logprobs=[-1.0, -3])


def close(
    one: SelectionBasis, control: Control, batches: Sequence[TokenBatch], of_ranks: Tensor
) -> None:
    """A step ends, and its sums arrive: its means, and thresholds of no token."""
    one.step_closed(control, batches, alone=False)
    one.sums_closed(lambda: torch.zeros(len(of_ranks), 6, dtype=torch.float64), lambda: of_ranks)


def means(*ranks: Sequence[float]) -> Tensor:
    """One row per rank: tokens, mean A, mean log p."""
    return torch.tensor(ranks, dtype=torch.float64)


def cutoff(of: SelectionBasis, control: Control, now: TokenBatch) -> tuple[str | None, object]:
    source, _, value = of.choose(control, now)
    return source, None if value is None else value.item()


def test_the_first_step_counts_from_each_micro_batch() -> None:
    one = SelectionBasis("auto")
    assert cutoff(one, TOP, FIRST) == ("micro_batch", pytest.approx(0.4))
    assert cutoff(one, TOP, SECOND) == ("micro_batch", pytest.approx(0.6))


def test_later_steps_count_from_the_whole_step_before() -> None:
    one = SelectionBasis("auto")
    close(one, TOP, [FIRST, SECOND], means([6, 0, 0]))
    # Two of six tokens: 0.5 and 0.6; for each micro-batch of the step that follows.
    for now in (FIRST, SECOND):
        assert cutoff(one, TOP, now) == ("previous_step", pytest.approx(0.5))
    close(one, TOP, [FIRST], means([4, 0, 0]))
    assert cutoff(one, TOP, SECOND) == ("previous_step", pytest.approx(0.4))


def test_a_step_without_tokens_leaves_the_basis_as_it_was() -> None:
    one = SelectionBasis("auto")
    close(one, TOP, [FIRST], means([4, 0.5, -2.0]))
    one.choose(TOP, SECOND)
    close(one, TOP, [], means([0, 0, 0]))
    assert cutoff(one, TOP, SECOND) == ("previous_step", pytest.approx(0.4))
    _, centres, _ = one.choose(KL, SECOND)
    assert (centres.mean_advantage.item(), centres.mean_logprob.item()) == (0.5, -2.0)


def test_a_changed_share_counts_at_once_from_the_step_before() -> None:
    one = SelectionBasis("auto")
    close(one, TOP, [FIRST], means([4, 0, 0]))
    half = Control(method="top_entropy", parameters={"fraction": 0.5})
    assert cutoff(one, half, SECOND) == ("previous_step", pytest.approx(0.3))


def test_a_method_that_comes_anew_counts_from_the_micro_batch_for_one_step() -> None:
    one = SelectionBasis("auto")
    close(one, Control(), [FIRST], means([4, 0, -2]))
    source, centres, _ = one.choose(KL, SECOND)
    assert source == "micro_batch"  # its share; the means are there
    assert centres.mean_logprob == -2
    close(one, KL, [FIRST], means([4, 0, -2]))
    assert one.choose(KL, SECOND)[0] == "previous_step"


def test_a_method_that_remembers_goes_on_from_the_step_before() -> None:
    numbers = {"coefficient": 0.1, "target_entropy": 0.3, "change_per_step": 0.02}
    bonus = Control(method="entropy_bonus", parameters=numbers)
    one = SelectionBasis("auto")
    assert one.choose(bonus, FIRST)[2] is None
    for batches, coefficient, entropy in (([FIRST], 0.12, 0.25), ([FIRST, SECOND], 0.1, 0.35)):
        close(one, bonus, batches, means([6, 0, 0]))
        value = one.choose(bonus, SECOND)[2]
        assert value is not None
        assert value.tolist() == pytest.approx([coefficient, entropy])
    close(one, bonus, [FIRST], means([4, 0, 0]))
    again, state = SelectionBasis("auto"), json.loads(json.dumps(one.state(bonus)))
    again.restore(state, state)
    for of in (one, again):
        value = of.choose(bonus, SECOND)[2]
        assert value is not None
        assert value.tolist() == pytest.approx([0.12, 0.25])
    other = Control(method="entropy_bonus", parameters={**numbers, "coefficient": 0.5})
    assert again.choose(other, SECOND)[2] is None


def test_means_are_those_of_all_ranks_weighted_by_their_tokens() -> None:
    one = SelectionBasis("auto")
    control = Control(method="clip_cov")
    close(one, control, [FIRST], means([30, 1.0, -1.0], [10, -1.0, -3.0], [0, 0, 0]))
    source, centres, value = one.choose(control, SECOND)
    assert (source, value) == ("previous_step", None)
    assert (centres.mean_advantage.item(), centres.mean_logprob.item()) == (0.5, -1.5)


def test_the_covariance_s_share_is_counted_with_the_same_means_it_is_used_with() -> None:
    one = SelectionBasis("auto")
    close(one, KL, [FIRST], means([4, 0.0, -4.0]))
    # (log p + 4) A: 3, 1, -3, -1
    assert cutoff(one, KL, SECOND) == ("previous_step", 3.0)


def test_a_cap_ranks_the_step_before_and_the_thresholds_keep_their_own_source() -> None:
    one = SelectionBasis("auto")
    before = tokens([1.0] * 4, centred=[-3.0, -1.0, 1.0, 3.0])  # sigma' = sqrt(5)
    one.step_closed(CAPPED, [before], alone=False)
    sums = threshold_sums([before.scores], [before.mask]).unsqueeze(0)
    one.sums_closed(lambda: sums, lambda: means([4, 0, 0]))
    _, centres, value = one.choose(CAPPED, before)
    assert value is not None
    assert value.item() == pytest.approx(3 / 5**0.5)
    assert centres.thresholds.vocab_centered_std.item() == pytest.approx(5**0.5)


@pytest.mark.parametrize("method", ["score_sign", "unlikely", "ratio_clip"])
def test_a_method_with_nothing_to_count_from_names_no_source(method: str) -> None:
    assert SelectionBasis("auto").choose(Control(method=method), SECOND)[0] is None
