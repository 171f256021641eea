"""What a report says of other thresholds is what happens once they are pushed."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import isentrope
from isentrope_wire.codec import decode_payload, encode_payload
from isentrope_wire.control import Scope
from isentrope_wire.methods import METHODS
from isentrope_wire.reports import StepReport
from isentrope_wire.what_if import EDGES, WhatIfCurve, evaluate_control
from tests.probe.tiny_loop import TinyLoop, probe_and_transport, pushed, reports, run_steps


def two_steps_of_the_same_tokens(
    control: isentrope.Control, calls: int = 1, *, ratio_to: str = "old", **settings: str
) -> list[StepReport]:
    """The first without an intervention, the second under `control`, which arrives between them. A
    step goes before both.

    Args:
        calls: How many `gate` calls the tokens of a step are cut into.
        ratio_to: Whose log-probs the loop passes beside its own, old or sampler.
    """
    loop = TinyLoop()
    logits, token_ids, advantages = loop.sample()
    probe, transport = probe_and_transport(**settings)
    for step in range(3):
        for rows in torch.arange(16).chunk(calls):
            scores = probe.score(logits[rows], token_ids[rows])
            other = scores.logprobs.detach() + 0.1 * torch.sin(torch.arange(80.0)).view(16, 5)[rows]
            given: dict[str, Any] = {f"{ratio_to}_logprobs": other}
            probe.gate(scores, advantages[rows], loop.mask[rows], **given)
        probe.step(step)
        if step == 1:
            transport.set_control(pushed(1, control))
    return reports(transport)[1:]


@pytest.mark.parametrize("calls", [1, 4])
@pytest.mark.parametrize(
    "settings", [{"threshold_source": "previous_step"}, {"threshold_source": "micro_batch"}]
)
@pytest.mark.parametrize(
    ("method", "mu_low", "mu_high", "scope"),
    [
        ("clip_v", 0.5, 1.0, "all"),
        ("clip_v", 0.2, None, "negative"),
        ("clip_b", 0.75, 0.35, "positive"),
        ("clip_b", 0.1, 0.1, "decreasing"),
        ("clip_v", 0.0, 0.0, "increasing"),
    ],
)
def test_pushing_thresholds_brings_what_the_report_before_predicted(
    settings: dict[str, str],
    calls: int,
    method: str,
    mu_low: float,
    mu_high: float | None,
    scope: str,
) -> None:
    before, after = two_steps_of_the_same_tokens(
        isentrope.Control(method=method, mu_low=mu_low, mu_high=mu_high, scope=scope),
        calls,
        **settings,
    )
    assert (before.scalars["clip/fraction"], after.control_version) == (0, 1)
    assert before.what_if is not None
    predicted = WhatIfCurve(before.what_if, Scope(scope), METHODS[method]).evaluate(mu_low, mu_high)
    assert predicted.clip_fraction == pytest.approx(after.scalars["clip/fraction"], abs=1e-12)
    assert predicted.clip_fraction > 0
    assert predicted.unit_predicted_change == pytest.approx(
        after.scalars["entropy/unit_predicted_change"], rel=1e-6, abs=1e-12
    )
    # What is clipped now still counts: the same question has the same answer under the control in
    # force.
    assert after.what_if is not None
    again = WhatIfCurve(after.what_if, Scope(scope), METHODS[method]).evaluate(mu_low, mu_high)
    assert again.clip_fraction == pytest.approx(predicted.clip_fraction, abs=1e-12)
    unclipped = WhatIfCurve(after.what_if, Scope(scope), METHODS[method]).evaluate(None, None)
    assert unclipped.unit_predicted_change == pytest.approx(
        before.scalars["entropy/unit_predicted_change"]
    )


def test_pushing_clip_cov_or_kl_cov_brings_what_the_report_before_predicted() -> None:
    """All candidates of the band are dropped, and as many tokens listed as lie beyond an edge, so
    that nothing is left to chance."""
    clip_cov = isentrope.Control(
        method="clip_cov", parameters={"ratio": 1.0, "omega_low": 0.2, "omega_high": 1.0}
    )
    before, after = two_steps_of_the_same_tokens(clip_cov)
    assert before.what_if is not None
    table = before.what_if.by_method["kl_cov"]
    beyond = sum(
        count
        for cell, count in zip(table.cells, table.counts, strict=True)
        if cell % len(EDGES) >= 2
    )
    assert 0 < beyond < before.what_if.tokens
    kl_cov = isentrope.Control(
        method="kl_cov",
        scope="positive",
        parameters={"k": beyond / before.what_if.tokens, "beta": 0.5},
    )
    for control, pair in (
        (clip_cov, (before, after)),
        (kl_cov, two_steps_of_the_same_tokens(kl_cov)),
    ):
        predicted = evaluate_control(control, before.what_if)
        assert predicted is not None
        came = pair[1].scalars
        assert predicted.clip_fraction == pytest.approx(came["clip/fraction"], abs=1e-12)
        assert (predicted.clip_fraction > 0) == (control is clip_cov)
        change = came["entropy/unit_predicted_change"]
        assert abs(change - before.scalars["entropy/unit_predicted_change"]) > 0.02 * abs(change)
        assert predicted.unit_predicted_change == pytest.approx(change, rel=1e-6)


def test_kl_cov_is_said_to_change_nothing_where_it_knows_only_a_sampler() -> None:
    kl_cov = isentrope.Control(method="kl_cov", parameters={"k": 0.2, "beta": 0.5})
    before, after = two_steps_of_the_same_tokens(kl_cov, ratio_to="sampler")
    assert before.what_if is not None
    predicted = evaluate_control(kl_cov, before.what_if)
    assert predicted is not None
    came = after.scalars["entropy/unit_predicted_change"]
    assert came == pytest.approx(before.scalars["entropy/unit_predicted_change"], rel=1e-9)
    assert predicted.unit_predicted_change == pytest.approx(came, rel=1e-9)


def test_a_report_says_what_its_what_if_was_counted_from_and_stays_small() -> None:
    loop = TinyLoop()
    probe, transport = probe_and_transport(threshold_source="first_pass")
    run_steps(loop, probe, 2)
    with torch.no_grad():
        probe.first_pass(probe.score(*loop.sample()[:2]), loop.mask)
    run_steps(loop, probe, 1, first=2)
    assert [report.labels["what_if/source"] for report in reports(transport)] == [
        "micro_batch",
        "previous_step",
        "first_pass",
    ]
    report = reports(transport)[-1]
    with_sums, without = (
        len(encode_payload(StepReport(step=0, recorded_at=0.0, what_if=sums)))
        for sums in (report.what_if, None)
    )
    assert with_sums - without < 8 * 1024
    decoded = decode_payload(encode_payload(report))
    assert isinstance(decoded, StepReport)
    assert decoded.what_if is not None
    assert report.what_if is not None
    assert decoded.what_if.by_method["clip_v"].counts == report.what_if.by_method["clip_v"].counts
