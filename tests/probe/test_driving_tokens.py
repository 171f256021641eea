"""A report names the tokens that count most for the change of entropy: the right ones, with their
text, and few."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

import isentrope
from isentrope.statistics.contributions import CONTRIBUTIONS, MOST
from isentrope.statistics.texts import TEXT_CHARACTERS
from isentrope_wire.codec import decode_payload, encode_payload
from isentrope_wire.errors import ConfigurationError
from isentrope_wire.reports import StepReport
from tests.probe.statistics.test_step_summary import batch_of, sums_of
from tests.probe.tiny_loop import TinyLoop, probe_and_transport, reports, run_steps


class Words:
    """A tokenizer with a hostile vocabulary."""

    def decode(self, token_ids: Sequence[int]) -> str:
        return f"<script>{token_ids[0]}</script>\x00\ud800" + "字" * 100


def test_they_are_the_largest_by_size_with_what_brute_force_says_of_each() -> None:
    loop = TinyLoop()
    logits, token_ids, advantages = loop.sample()
    probe, transport = probe_and_transport()
    scores = probe.score(logits, token_ids)
    sampler = scores.logprobs.detach() + 0.2 * torch.sin(torch.arange(80.0)).view(16, 5)
    # Two micro-batches: rows count on from the first to the second.
    parts = [probe.score(logits[:7], token_ids[:7]), probe.score(logits[7:], token_ids[7:])]
    for part, rows in zip(parts, (slice(0, 7), slice(7, 16)), strict=True):
        probe.gate(part, advantages[rows], loop.mask[rows], sampler_logprobs=sampler[rows])
    probe.step(0)
    ratios = (scores.logprobs.detach() - sampler).exp()
    contributions = torch.where(loop.mask, -ratios * advantages * scores.vocab_centered_scores, 0.0)
    tokens = reports(transport)[0].tokens
    assert len(tokens) == MOST
    expected = contributions.abs().flatten().sort(descending=True).values[:MOST]
    assert [abs(token.contribution) for token in tokens] == pytest.approx(
        expected.tolist(), rel=1e-5
    )
    for token in tokens:
        assert token.sequence is not None
        place = (token.sequence, token.position)
        assert token.contribution == pytest.approx(float(contributions[place]), rel=1e-5)
        assert token.token_id == int(token_ids[place])
        assert (token.rank, token.text, token.kept) == (0, None, True)
        assert token.logprob == pytest.approx(float(scores.logprobs[place].detach()))
        assert token.entropy == pytest.approx(float(scores.entropies[place]))
        assert token.vocab_centered_score == pytest.approx(
            float(scores.vocab_centered_scores[place])
        )
        assert token.advantage == float(advantages[place])


def test_text_of_any_kind_travels_and_the_whole_stays_below_4_kib() -> None:
    loop = TinyLoop()
    probe, transport = probe_and_transport(tokenizer=Words())
    run_steps(loop, probe, 1)
    (report,) = reports(transport)
    assert report.tokens[0].text == f"<script>{report.tokens[0].token_id}</script>\x00?".ljust(
        TEXT_CHARACTERS, "字"
    )
    payload = encode_payload(StepReport(step=0, recorded_at=0.0, tokens=report.tokens))
    assert len(payload) - len(encode_payload(StepReport(step=0, recorded_at=0.0))) < 4096
    decoded = decode_payload(payload)
    assert isinstance(decoded, StepReport)
    assert [(t.text, t.sequence, t.kept) for t in decoded.tokens] == [
        (t.text, t.sequence, t.kept) for t in report.tokens
    ]


def test_a_tokenizer_that_fails_costs_the_text_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        def decode(self, token_ids: Sequence[int]) -> str:
            raise ValueError("no such token")

    monkeypatch.delenv("PYTEST_CURRENT_TEST")
    loop = TinyLoop()
    probe, transport = probe_and_transport(tokenizer=Broken())
    run_steps(loop, probe, 2)
    assert [len(report.tokens) for report in reports(transport)] == [MOST, MOST]
    assert all(token.text is None for report in reports(transport) for token in report.tokens)
    with pytest.raises(ConfigurationError, match="decode"):
        isentrope.Probe("test", mode="disabled", tokenizer=3)  # type: ignore[arg-type]


def test_flattened_tokens_have_a_position_and_no_row_and_no_token_gives_no_name() -> None:
    loop = TinyLoop()
    logits, token_ids, advantages = loop.sample()
    probe, transport = probe_and_transport()
    scores = probe.score(logits.flatten(0, 1), token_ids.flatten())
    probe.gate(scores, advantages.flatten(), loop.mask.flatten())
    probe.step(0)
    probe.gate(probe.score(logits, token_ids), advantages, torch.zeros(16, 5))
    probe.step(1)
    probe.step(2)
    flattened, masked, empty = reports(transport)
    assert all(token.sequence is None for token in flattened.tokens)
    assert all(
        token.token_id == int(token_ids.flatten()[token.position]) for token in flattened.tokens
    )
    assert masked.tokens == empty.tokens == ()


def test_the_tokens_of_all_ranks_are_the_largest_of_all() -> None:
    batches = [batch_of(4, 6, seed) for seed in (1, 2)]
    tokens = sums_of([batches[0]], [], [batches[1]])[CONTRIBUTIONS].tokens
    whole = sums_of(batches)[CONTRIBUTIONS].tokens
    assert [token.contribution for token in tokens] == [token.contribution for token in whole]
    assert {token.rank for token in tokens} == {0, 2}
    assert [t.sequence if t.rank == 0 else (t.sequence or 0) + 4 for t in tokens] == [
        t.sequence for t in whole
    ]
