"""The covariance within a group is that of its sequences, wherever they are, and groups that are
not known are absent."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

import isentrope
from isentrope.inputs import group_ids_of
from isentrope.scores import TokenScores
from isentrope.statistics.covariance import GROUPS, Groups
from isentrope.statistics.covariance import groups as sum_of_groups
from isentrope.statistics.samples import repeated_grams
from isentrope.statistics.sums import Layout, RankHeader, Sum
from isentrope.statistics.tokens import StepTokens, TokenBatch
from isentrope_wire.errors import InputError
from tests.probe.scores.exact_heads import FIELDS
from tests.probe.tiny_loop import TinyLoop, probe_and_transport, reports


def sequences(groups: Tensor, advantages: Tensor, seed: int, tokens: int = 7) -> TokenBatch:
    g = torch.Generator().manual_seed(seed)
    shape = (len(groups), tokens)
    zero = torch.zeros(shape)
    mask = torch.rand(shape, generator=g) < 0.8
    logprobs = torch.where(mask, -2 * torch.rand(shape, generator=g), torch.nan)
    return TokenBatch(
        TokenScores(logprobs, zero, zero, zero, zero),
        advantages.unsqueeze(1).expand(shape),
        mask,
        group_ids=groups.double(),
    )


def some(seed: int = 0, rows: int = 60) -> TokenBatch:
    """Twelve groups whose rows lie anywhere; the two last have no advantage."""
    g = torch.Generator().manual_seed(seed)
    groups = torch.randint(0, 12, (rows,), generator=g)
    advantages = torch.where(groups < 10, torch.randint(0, 2, (rows,), generator=g) * 2.0 - 1, 0.0)
    return sequences(groups * 1000 + 7, advantages, seed)


def scalars_of(*ranks: list[TokenBatch]) -> dict[str, float]:
    return metrics_of(GROUPS, *ranks)


def metrics_of(groups: Sum[Groups], *ranks: list[TokenBatch]) -> dict[str, float]:
    """Of all ranks together."""
    layout = Layout(groups)
    rows = [
        layout.pack(RankHeader(0, 1, 0, 1), StepTokens(part) if part else None, None).tolist()
        for part in ranks
    ]
    return layout.read(dict(enumerate(rows)), []).metrics()


def brute_force(batch: TokenBatch) -> dict[str, float]:
    assert batch.group_ids is not None
    of_group: dict[float, list[tuple[float, float]]] = {}
    for row, group in enumerate(batch.group_ids.tolist()):
        counted = batch.mask[row]
        if counted.any():
            mean = batch.scores.logprobs[row][counted].double().mean().item()
            of_group.setdefault(group, []).append((mean, batch.advantages[row, 0].item()))
    found: dict[str, list[float]] = {"easy": [], "middle": [], "hard": [], "none": []}
    for pairs in of_group.values():
        if len(pairs) < 2:
            continue
        x, a = np.array(pairs).T
        share = (a > 0).mean()
        kind = (
            "none"
            if not a.any()
            else "hard"
            if share <= 1 / 3
            else "easy"
            if share >= 2 / 3
            else "middle"
        )
        found[kind].append(float(np.cov(x, a, bias=True)[0, 1]))
    every = [value for values in found.values() for value in values]
    expected = {
        "group/count": float(len(every)),
        "covariance/group": float(np.mean(found["easy"] + found["middle"] + found["hard"])),
        "advantage/zero_group_fraction": len(found["none"]) / len(every),
        "group/identical": 0.0,
    }
    for kind in ("easy", "middle", "hard"):
        if found[kind]:
            expected[f"covariance/group_{kind}"] = float(np.mean(found[kind]))
    return expected


@pytest.mark.parametrize("seed", range(3))
def test_each_difficulty_has_the_mean_covariance_of_its_groups(seed: int) -> None:
    batch = some(seed)
    expected = brute_force(batch)
    assert scalars_of([batch]) == pytest.approx(expected, abs=1e-12)
    assert {"covariance/group_easy", "covariance/group_middle", "covariance/group_hard"} & set(
        expected
    )


def test_groups_of_the_same_tokens_are_counted_wherever_they_lie() -> None:
    batch = replace(
        sequences(torch.tensor([0, 0, 1, 1, 2, 2]), torch.zeros(6), 0),
        mask=torch.tensor([[True] * 6 + [False]]).expand(6, 7),
        token_ids=torch.tensor(
            [[5, 6, 7, 8, 9, 1, 2], [5, 6, 7, 8, 9, 1, 3]]  # they differ in padding alone
            + [[5, 6, 7, 8, 9, 1, 0], [5, 6, 7, 8, 9, 2, 0]]
            + [[90_000 + token for token in range(7)]] * 2
        ),
    )
    batch = replace(batch, scores=replace_logprobs(batch.scores))
    assert scalars_of([batch])["group/identical"] == pytest.approx(2 / 3)


def replace_logprobs(scores: TokenScores) -> TokenScores:
    return replace(scores, logprobs=torch.full_like(scores.logprobs, -1.0))


@pytest.mark.parametrize(
    ("ids", "mask", "repeated", "grams"),
    [
        ([1, 2, 3, 4, 5, 6, 7, 8], [1] * 8, 0, 5),
        ([1, 2, 3, 4, 1, 2, 3, 4], [1] * 8, 1, 5),
        ([9, 9, 9, 9, 9, 9, 9, 9], [1] * 8, 4, 5),
        ([0, 0, 0, 0, 0, 0, 0, 0], [1, 1, 1, 1, 1, 0, 0, 0], 1, 2),
        ([1, 2, 3, 4, 5, 6, 7, 8], [1, 1, 1, 0, 1, 1, 1, 0], 0, 0),
    ],
)
def test_repeated_grams_are_counted_inside_the_mask(
    ids: list[int], mask: list[int], repeated: int, grams: int
) -> None:
    sequences = torch.tensor([0] * len(ids) + [1] * len(ids))
    counts = repeated_grams(torch.tensor(ids * 2), torch.tensor(mask * 2).bool(), sequences)
    # Twice the same sequence: one has nothing to do with the other.
    assert counts.tolist() == [2 * repeated, 2 * grams]


def test_a_group_spread_over_micro_batches_and_ranks_is_one_group() -> None:
    batch = some(3)
    assert batch.group_ids is not None

    def rows(first: int, last: int) -> TokenBatch:
        part = slice(first, last)
        scores = TokenScores(*(getattr(batch.scores, name)[part] for name in FIELDS))
        assert batch.group_ids is not None
        mask = batch.mask[part]
        return TokenBatch(scores, batch.advantages[part], mask, group_ids=batch.group_ids[part])

    whole = scalars_of([batch])
    assert scalars_of([rows(0, 11), rows(11, 60)]) == pytest.approx(whole, abs=1e-12)
    assert scalars_of([rows(0, 11), rows(11, 30)], [], [rows(30, 60)]) == pytest.approx(
        whole, abs=1e-12
    )


def test_a_rank_with_more_groups_than_it_reports_counts_none_in_part() -> None:
    batch = some(4)
    only_low = sequences(
        torch.tensor([7, 1007, 3007, 3007]), torch.tensor([1.0, -1.0, 1.0, -1.0]), 5
    )
    scalars = metrics_of(sum_of_groups(4), [batch], [only_low])
    assert scalars["group/count"] == 4
    # The first rank reports 7, 1007, 2007 and 3007: the 11007 of the second is dropped on both.
    high = sequences(torch.tensor([11007, 11007]), torch.tensor([1.0, -1.0]), 6)
    assert metrics_of(sum_of_groups(4), [batch], [only_low, high]) == scalars


def test_every_rank_reports_groups_named_by_size_though_one_has_more_than_it_may() -> None:
    ranks = []
    for rank, rows in ((0, 6), (1, 12)):
        ids = group_ids_of(2, torch.zeros(rows, 7), rank, 0)
        assert ids is not None
        ranks.append([sequences(ids, torch.tensor([1.0, -1.0]).repeat(rows // 2), rank)])
    assert metrics_of(sum_of_groups(4), *ranks)["group/count"] == 3 + 4
    # The last one reported names rows of its rank: numbers that the loop passed are dropped.
    numbered = sequences(torch.tensor([7, 7]), torch.tensor([1.0, -1.0]), 5)
    assert metrics_of(sum_of_groups(4), *ranks, [numbered])["group/count"] == 3 + 4


def test_sequences_of_unknown_groups_and_groups_of_one_say_nothing() -> None:
    batch = some(7)
    assert scalars_of([replace(batch, group_ids=None)]) == {}
    alone = sequences(torch.arange(5), torch.ones(5), 8)
    assert scalars_of([alone]) == {}
    assert scalars_of([]) == {}


def test_a_size_names_the_same_groups_as_their_numbers_do() -> None:
    loop = TinyLoop()
    logits, token_ids, _ = loop.sample()
    advantages = torch.tensor([1.0, -1.0, -1.0, -1.0] * 4)
    found = []
    for groups in (4, torch.arange(16) // 4, (torch.arange(16) // 4).unsqueeze(1)):
        probe, transport = probe_and_transport()
        for rows in (slice(0, 8), slice(8, 16)):
            part = groups if isinstance(groups, int) else groups[rows]
            probe.gate(
                probe.score(logits[rows], token_ids[rows]),
                advantages[rows],
                loop.mask[rows],
                groups=part,
            )
        probe.step(0)
        found.append({n: v for n, v in reports(transport)[0].scalars.items() if "group" in n})
    assert found[0] == pytest.approx(found[1])
    assert found[1] == found[2]
    assert found[0]["group/count"] == 4
    assert "covariance/group_hard" in found[0]


def test_what_a_loop_logs_itself_stands() -> None:
    loop = TinyLoop()
    logits, token_ids, advantages = loop.sample()
    probe, transport = probe_and_transport()
    probe.gate(probe.score(logits, token_ids), advantages, loop.mask, groups=4)
    probe.log({"advantage/zero_group_fraction": 0.75})
    probe.step(0)
    assert reports(transport)[0].scalars["advantage/zero_group_fraction"] == 0.75


@pytest.mark.parametrize(
    ("groups", "words"),
    [
        (5, "groups .*16.* 5"),
        (0, "groups .*16.* 0"),
        (torch.ones(3, dtype=torch.long), r"groups .*\[16\].*1, 1, 1"),
        (torch.ones(16), r"groups .*\[16\].*1\., 1\."),
    ],
)
def test_groups_that_cannot_be_meant_are_refused(groups: int | Tensor, words: str) -> None:
    loop = TinyLoop()
    logits, token_ids, advantages = loop.sample()
    probe, _ = probe_and_transport()
    with pytest.raises(InputError, match=words):
        probe.gate(probe.score(logits, token_ids), advantages, loop.mask, groups=groups)
    packed = isentrope.scores.token_scores(logits.flatten(0, 1), token_ids.flatten())
    with pytest.raises(InputError, match="groups "):
        probe.gate(packed, advantages.flatten(), groups=4)


def test_rewards_and_lengths_are_measured_within_groups() -> None:
    draws = torch.Generator().manual_seed(4)
    logits = torch.randn(16, 6, 20, generator=draws)
    token_ids = torch.randint(0, 20, (16, 6), generator=draws)
    lengths = torch.randint(1, 7, (16,), generator=draws)
    mask = torch.arange(6) < lengths[:, None]
    rewards = torch.rand(16, generator=draws)
    rewards[:4], rewards[4:8] = 1.0, 0.0
    form = torch.where(torch.arange(16) < 6, torch.inf, rewards)
    probe, transport = probe_and_transport()
    for rows in (slice(0, 8), slice(8, 16)):
        known = {"reward": rewards[rows], "truncated": lengths[rows] == 6}
        probe.gate(
            probe.score(logits[rows], token_ids[rows]),
            torch.ones(8),
            mask[rows],
            groups=4,
            completions={**known, "reward/form": form[rows]},
        )
    probe.step(0)
    scalars = reports(transport)[0].scalars
    by_group = rewards.double().reshape(4, 4)
    apart = by_group - by_group.mean(1, keepdim=True)
    length = lengths.double().reshape(4, 4)
    length = length - length.mean(1, keepdim=True)
    expected = {
        "group/all_right": 1 / 4,
        "group/all_wrong": 1 / 4,
        "reward/mean": float(rewards.mean()),
        "reward/std": float(rewards.std(correction=0)),
        "reward/group_std": float(by_group.std(1, correction=0).mean()),
        "rewards/form/mean": float(rewards[6:].mean()),
        "completion/truncated_fraction": float((lengths == 6).double().mean()),
        "completion/reward_of_length": float(
            (apart * length).sum() / (apart.square().sum() * length.square().sum()).sqrt()
        ),
    }
    assert {name: scalars[name] for name in expected} == pytest.approx(expected, rel=1e-5)
