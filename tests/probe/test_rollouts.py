"""A report shows the rows whose tokens contribute most in running text, with each token's
contribution."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from isentrope.guard import LimitedWork
from isentrope.scores import token_scores
from isentrope.statistics.contributions import CONTRIBUTIONS, ROWS, WINDOW
from isentrope.statistics.texts import (
    LONGEST_TEXT_CHARACTERS,
    TEXT_CHARACTERS,
    TokenTexts,
    rollouts_of,
)
from isentrope_wire.codec import encode_payload
from isentrope_wire.reports import Rollout, StepReport
from tests.probe.statistics.test_step_summary import batch_of, sums_of
from tests.probe.tiny_loop import CLIP, TinyLoop, probe_and_transport, reports, run_steps


class Letters:
    """One letter a token."""

    def decode(self, token_ids: Sequence[int]) -> str:
        return "".join(chr(ord("A") + token_id) for token_id in token_ids)


class Bytes:
    """One byte a token, as in a byte-level vocabulary."""

    def decode(self, token_ids: Sequence[int]) -> str:
        return bytes(token_ids).decode(errors="replace")


class Pieces:
    """Drops the space that begins a text, as sentencepiece does."""

    WORDS = ("▁wait", "▁so", "me", ",", "▁guess")

    def decode(self, token_ids: Sequence[int]) -> str:
        return (
            "".join(self.WORDS[token_id] for token_id in token_ids)
            .replace("▁", " ")
            .removeprefix(" ")
        )


class Words:
    """One word a token, apart by spaces."""

    def decode(self, token_ids: Sequence[int]) -> str:
        return " ".join(str(token_id) for token_id in token_ids)


def gated(
    *parts: tuple[Tensor, Tensor, Tensor], tokenizer: object = None, **known: Any
) -> tuple[Rollout, ...]:
    """The rollouts of one step of some micro-batches of logits, token ids and masks."""
    probe, transport = probe_and_transport(tokenizer=Letters() if tokenizer is None else tokenizer)
    for logits, token_ids, mask in parts:
        probe.gate(probe.score(logits, token_ids), torch.ones(mask.shape), mask, **known)
    probe.step(0)
    return reports(transport)[0].rollouts


def some(*shape: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(*shape, 26, generator=g)
    return logits, torch.randint(0, 26, shape, generator=g), torch.rand(*shape, generator=g) < 0.9


def contributions(logits: Tensor, token_ids: Tensor, mask: Tensor) -> Tensor:
    """With A = 1."""
    return torch.where(mask, -token_scores(logits, token_ids).vocab_centered_scores, 0.0)


def test_each_token_has_the_numbers_that_brute_force_gives_it() -> None:
    loop = TinyLoop()
    logits, token_ids, advantages = loop.sample()
    probe, transport = probe_and_transport(tokenizer=Letters())
    for rows in (slice(0, 7), slice(7, 16)):
        scores = probe.score(logits[rows], token_ids[rows])
        probe.gate(scores, advantages[rows], loop.mask[rows])
    probe.step(0)
    (report,) = reports(transport)
    scores = token_scores(logits.detach(), token_ids)
    expected = torch.where(loop.mask, -advantages * scores.vocab_centered_scores, 0.0).detach()
    sizes = expected.abs().sum(1)
    assert [one.sequence for one in report.rollouts] == sizes.argsort(descending=True)[
        :ROWS
    ].tolist()
    shown = {}
    for rollout in report.rollouts:
        assert rollout.sequence is not None
        row = rollout.sequence
        assert rollout.absolute_contribution == pytest.approx(float(sizes[row]), rel=1e-5)
        assert rollout.advantage == float(advantages[row, int(expected[row].abs().argmax())])
        assert (rollout.rank, rollout.reward, rollout.cut_before, rollout.cut_after) == (
            0,
            None,
            False,
            False,
        )
        assert loop.mask[row, : rollout.first_position].sum() == 0
        for index, text in enumerate(rollout.texts):
            place = (row, rollout.first_position + index)
            assert text == chr(ord("A") + int(token_ids[place]))
            numbers = [
                column[index] for column in (rollout.logprobs, rollout.vocab_centered_scores)
            ]
            if not loop.mask[place]:
                assert [*numbers, rollout.contributions[index], rollout.kept[index]] == [None] * 4
                continue
            of_token = (float(scores.logprobs[place]), float(scores.vocab_centered_scores[place]))
            assert numbers == [pytest.approx(number, rel=1e-5) for number in of_token]
            assert rollout.contributions[index] == pytest.approx(
                float(expected[place]), rel=1e-5, abs=1e-9
            )
            assert rollout.kept[index] is True
            shown[place] = rollout.contributions[index]
    both = [token for token in report.tokens if (token.sequence, token.position) in shown]
    assert len(both) > ROWS
    assert all(shown[token.sequence, token.position] == token.contribution for token in both)  # type: ignore[index]


def test_clipped_tokens_are_marked() -> None:
    loop = TinyLoop()
    probe, transport = probe_and_transport(control=CLIP, tokenizer=Letters())
    run_steps(loop, probe, 2)
    for report in reports(transport):
        kept = {
            (one.sequence, one.first_position + i): k
            for one in report.rollouts
            for i, k in enumerate(one.kept)
        }
        assert {True, False} <= set(kept.values())
        both = [token for token in report.tokens if (token.sequence, token.position) in kept]
        assert all(kept[token.sequence, token.position] is token.kept for token in both)


@pytest.mark.parametrize("widths", [(400,), (400, 400), (400, 30)])
def test_of_a_long_row_the_tokens_around_its_largest_are_shown(widths: tuple[int, ...]) -> None:
    parts = [some(2, width, seed=seed) for seed, width in enumerate(widths)]
    rows = [row for part in parts for row in contributions(*part)]
    ids = [row for _, token_ids, _ in parts for row in token_ids]
    for rollout in gated(*parts):
        assert rollout.sequence is not None
        row, width = rows[rollout.sequence], len(rows[rollout.sequence])
        peak, end = int(row.abs().argmax()), rollout.first_position + len(rollout.texts)
        first = max(min(peak - WINDOW // 2, width - WINDOW), 0)
        assert first <= rollout.first_position <= peak < end <= first + WINDOW
        assert "".join(rollout.texts) == Letters().decode(
            ids[rollout.sequence][rollout.first_position : end].tolist()
        )
        found = torch.tensor([number or 0.0 for number in rollout.contributions])
        torch.testing.assert_close(found, row[rollout.first_position : end], rtol=1e-5, atol=1e-8)
        assert rollout.absolute_contribution == pytest.approx(float(row.abs().sum()), rel=1e-5)
        if width > WINDOW:
            assert len(rollout.texts) > WINDOW - 10
            assert rollout.cut_before == (0 < first == rollout.first_position)
            assert rollout.cut_after == (end == first + WINDOW < width)


@pytest.mark.parametrize(
    ("tokenizer", "token_ids", "texts"),
    [
        (Bytes(), list("aé字!".encode()), ["a", "", "é", "", "", "字", "!"]),
        (Bytes(), [0x80, *b"ab"], ["\ufffd", "a", "b"]),
        (Bytes(), [*b"ab", 0xE5], ["a", "b", "\ufffd"]),
        (Pieces(), [0, 3, 1, 2, 4], ["wait", ",", " so", "me", " guess"]),
        (Words(), [3, 14, 5], ["3", " 14", " 5"]),
        (Letters(), [], []),
    ],
)
def test_texts_join_to_what_the_tokens_mean_together(
    tokenizer: Any, token_ids: list[int], texts: list[str]
) -> None:
    assert TokenTexts(tokenizer).running(token_ids) == texts
    assert "".join(texts) == tokenizer.decode(token_ids)


@pytest.mark.parametrize(
    ("tokenizer", "ids"), [(Words(), range(50)), (Bytes(), b"a plain text, and one char\xc3\xa9")]
)
def test_a_text_of_known_tokens_takes_few_decodings(tokenizer: Any, ids: Sequence[int]) -> None:
    """Each holds the interpreter's lock, which the training thread waits for."""
    decodings: list[Sequence[int]] = []

    def decode(token_ids: Sequence[int]) -> str:
        decodings.append(token_ids)
        return str(tokenizer.decode(token_ids))

    texts = TokenTexts(decode)
    first = texts.running([*ids])
    decodings.clear()
    assert texts.running([*ids]) == first
    assert "".join(first or ()) == tokenizer.decode([*ids])
    assert len(decodings) < 6


def test_texts_of_any_kind_travel_and_the_whole_stays_below_24_kib() -> None:
    class Hostile:
        def decode(self, token_ids: Sequence[int]) -> str:
            return "".join(
                f"<script>{token_id}</script>\x00\ud800" + "字" * 100 for token_id in token_ids
            )

    found = gated(some(20, 400), tokenizer=Hostile())
    assert len(found) == ROWS
    texts = {text for rollout in found for text in rollout.texts}
    assert all(text.startswith("<script>") and len(text) == TEXT_CHARACTERS for text in texts)
    assert any("</script>\x00?字" in text for text in texts)
    largest = [
        max(rollout.contributions, key=lambda number: abs(number or 0.0)) for rollout in found
    ]
    assert all(abs(number or 0.0) > 0 for number in largest)
    assert all(rollout.cut_before and rollout.cut_after for rollout in found)
    # The most that there is: as much text as fits, and numbers of every token.
    for tokenizer in (Hostile(), Letters()):
        found = gated(some(20, 400), tokenizer=tokenizer)
        empty = encode_payload(StepReport(step=0, recorded_at=0.0))
        assert (
            len(encode_payload(StepReport(step=0, recorded_at=0.0, rollouts=found))) - len(empty)
            < 24 * 1024
        )


def test_the_largest_token_stays_where_texts_are_too_long() -> None:
    class Long:
        def decode(self, token_ids: Sequence[int]) -> str:
            return "".join(f"{token_id:040}" for token_id in token_ids)

    logits, token_ids, mask = some(1, 400)
    (rollout,) = gated((logits, token_ids, mask), tokenizer=Long())
    row = contributions(logits, token_ids, mask)[0]
    assert len(rollout.texts) == 2048 // 40
    peak = int(row.abs().argmax()) - rollout.first_position
    assert rollout.contributions[peak] == pytest.approx(
        float(row.abs().max() * row[row.abs().argmax()].sign())
    )


def test_without_a_tokenizer_or_ids_there_is_none() -> None:
    loop = TinyLoop()
    probe, transport = probe_and_transport()
    run_steps(loop, probe, 1)
    (report,) = reports(transport)
    assert report.tokens
    assert report.rollouts == ()
    batch = batch_of(4, 6, 1)
    assert batch.token_ids is None
    sums = sums_of([batch])
    assert len(sums[CONTRIBUTIONS].rows) == 4
    assert rollouts_of(sums[CONTRIBUTIONS].rows, 1.0, TokenTexts(Letters())) == ()


def test_a_tokenizer_that_fails_costs_the_rollouts_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        def decode(self, token_ids: Sequence[int]) -> Any:
            if len(token_ids) > 1:
                raise ValueError("no such tokens")
            return "a"

    monkeypatch.delenv("PYTEST_CURRENT_TEST")
    loop = TinyLoop()
    probe, transport = probe_and_transport(tokenizer=Broken())
    run_steps(loop, probe, 2)
    first, second = reports(transport)
    assert first.rollouts == second.rollouts == ()
    assert first.scalars["token/count"] == second.scalars["token/count"]


def test_a_huge_text_is_cut_and_said_once(caplog: pytest.LogCaptureFixture) -> None:
    def decode(token_ids: Sequence[int]) -> str:
        return "".join("x" * (10**6 if token_id == 3 else 1) for token_id in token_ids)

    found = gated(some(1, 30), tokenizer=decode)
    found += gated(some(1, 30), tokenizer=decode)
    assert {len(text) for rollout in found for text in rollout.texts} == {1, TEXT_CHARACTERS}
    texts = TokenTexts(decode)
    kept = texts.running([3, 1, 3])
    assert kept is not None
    assert [*map(len, kept)] == [LONGEST_TEXT_CHARACTERS, 1, LONGEST_TEXT_CHARACTERS]
    lines = [line for line in caplog.messages if "a text of 1000000 characters" in line]
    assert len(lines) == 3  # one of each probe


@pytest.mark.parametrize("seconds", [0.02, 60.0])
def test_a_slow_tokenizer_costs_texts_alone(
    seconds: float, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Of 60 s: it returns when the test is over."""
    monkeypatch.setattr("isentrope.statistics.texts.TEXTS_SECONDS", 0.1)
    is_over = threading.Event()

    def decode(token_ids: Sequence[int]) -> str:
        is_over.wait(seconds * len(token_ids))
        return "a" * len(token_ids)

    probe, transport = probe_and_transport(tokenizer=decode)
    started = time.monotonic()
    run_steps(TinyLoop(), probe, 3)
    for report in reports(transport):
        assert report.rollouts == ()
        assert {token.text for token in report.tokens} == {None}
        assert report.labels["report/dropped_parts"] == "texts"
        assert report.scalars["token/count"] > 0
    assert time.monotonic() - started < 0.1 * 2 + 2
    is_over.set()
    assert len([line for line in caplog.messages if "Making texts took longer" in line]) == 1


def test_texts_come_back_once_the_tokenizer_is_quick() -> None:
    work = LimitedWork("texts", 0.05)
    is_quick = threading.Event()
    assert work.do(is_quick.wait) is None
    assert work.do(lambda: "not in turn") is None
    is_quick.set()
    deadline = time.monotonic() + 5
    answer = work.do(lambda: "text")
    while answer is None and time.monotonic() < deadline:
        time.sleep(0.01)
        answer = work.do(lambda: "text")
    assert answer == "text"
    with pytest.raises(ZeroDivisionError):
        work.do(lambda: 1 // 0)


def test_rewards_are_shown_where_every_call_passes_them() -> None:
    first, second = some(3, 8), some(2, 8, seed=1)
    rewards = torch.tensor([1.0, 0.0, 0.5])
    found = gated(first, completions={"reward": rewards})
    assert {rollout.sequence: rollout.reward for rollout in found} == {0: 1.0, 1: 0.0, 2: 0.5}
    probe, transport = probe_and_transport(tokenizer=Letters())
    for part, known in ((first, {"reward": rewards}), (second, None)):
        probe.gate(probe.score(*part[:2]), torch.ones(len(part[0])), part[2], completions=known)
    probe.step(0)
    assert {rollout.reward for rollout in reports(transport)[0].rollouts} == {None}


def test_a_token_that_the_mask_leaves_out_is_text_alone() -> None:
    logits, token_ids, mask = some(1, 6)
    mask = torch.tensor([[False, True, False, True, True, False]])
    probe, transport = probe_and_transport(tokenizer=Letters())
    scores = probe.score(logits, token_ids)
    # Such as padding of labels: no tokenizer knows it.
    for step, ids in enumerate((token_ids, token_ids.masked_fill(~mask, -100))):
        probe.gate(replace(scores, token_ids=ids), torch.ones(1), mask)
        probe.step(step)
    letters = list(Letters().decode(token_ids[0, 1:5].tolist()))
    known, unknown = (rollout for report in reports(transport) for rollout in report.rollouts)
    assert list(known.texts) == letters
    assert list(unknown.texts) == [letters[0], "", *letters[2:]]
    for rollout in (known, unknown):
        assert rollout.first_position == 1
        assert rollout.kept == (True, None, True, True)
        assert [number is None for number in rollout.contributions] == [False, True, False, False]


def test_prompts_reward_parts_and_answers_come_along(monkeypatch: pytest.MonkeyPatch) -> None:
    long = torch.full((1, 120), 25)  # "Z"
    prompts = [torch.tensor([[-1, 0, 1], [2, -1, -1]]), long]
    known = [
        {
            "reward": torch.tensor([1.0, 0.5]),
            "reward/format": torch.tensor([0.25, float("nan")]),
            "answer": ["42", None],
        },
        {
            "reward": torch.tensor([0.0]),
            "reward/format": torch.tensor([float("inf")]),
            "answer": ["é" * 40],
        },
    ]

    def rollouts() -> dict[int | None, Rollout]:
        probe, transport = probe_and_transport(tokenizer=Letters())
        for part, ids, one in zip((some(2, 8), some(1, 12, seed=1)), prompts, known, strict=True):
            probe.gate(
                probe.score(*part[:2]),
                torch.ones(len(ids)),
                part[2],
                completions={**one, "prompt_ids": ids},  # type: ignore[dict-item]
            )
        probe.step(0)
        return {rollout.sequence: rollout for rollout in reports(transport)[0].rollouts}

    found = rollouts()
    assert [found[row].prompt for row in range(3)] == ["AB", "C", "… " + "Z" * 96]
    assert [found[row].answer for row in range(3)] == ["42", None, "é" * 24]
    assert found[0].rewards == {"format": 0.25}
    assert math.isnan(found[1].rewards["format"])
    assert found[2].rewards == {}
    monkeypatch.setenv("ISENTROPE_TEXTS", "off")
    assert rollouts() == {}
