"""Whatever fails on one rank, the others do not wait for it."""

from __future__ import annotations

import os
from typing import Any

import torch

import isentrope
from isentrope_wire.errors import ConfigurationError
from isentrope_wire.reports import StepReport
from tests.probe.ranks.gang import one_after_another, run_ranks
from tests.probe.ranks.loops import Sequences, gate, probe_of
from tests.probe.tiny_loop import CLIP, pushed, reports

FAULTS = ["gate", "step", "rescore", "first_pass"]


def steps_with_faults(rank: int) -> list[StepReport]:
    """Rank 1 does something wrong in each of the steps 1..4; steps 0 and 5 are sound."""
    probe, transport = probe_of(rank, control=CLIP)
    for step in range(6):
        fault = FAULTS[step - 1] if rank == 1 and 1 <= step <= 4 else None
        part = Sequences.of_step(step).rows(slice(6 * rank, 6 * rank + 6))
        with torch.no_grad():
            scores = probe.score(part.logits, part.token_ids)
        probe.first_pass(scores, torch.ones(3) if fault == "first_pass" else part.mask)
        if fault == "gate":
            probe.gate(scores, torch.zeros(99))
        else:
            gate(probe, part)
        number: Any = "four" if fault == "step" else step
        again: Any = 5 if fault == "rescore" else probe.score(part.logits, part.token_ids)
        probe.step(number, rescore=lambda again=again: again)  # type: ignore[misc]
        if rank == 0 and step == 4:
            transport.set_control(pushed(1))
    probe.finish()
    return reports(transport)


def test_a_rank_that_fails_takes_part_with_empty_hands() -> None:
    of_rank_0, of_rank_1 = run_ranks(2, steps_with_faults)
    assert [report.step for report in of_rank_0] == list(range(6))
    assert [report.step for report in of_rank_1] == [0, 1, 3, 4, 5]
    tokens = [int(Sequences.of_step(step).mask.sum()) for step in range(6)]
    own = [int(Sequences.of_step(step).mask[:6].sum()) for step in range(6)]
    counted = [report.scalars["token/count"] for report in of_rank_0]
    assert counted == [tokens[0], own[1], own[2], tokens[3], tokens[4], tokens[5]]
    assert [report.scalars.get("probe/failed_ranks") for report in of_rank_0] == [
        None,
        None,
        1.0,
        None,
        None,
        None,
    ]
    assert of_rank_0[5].scalars["probe/failures"] == len(FAULTS)


def steps_that_come_apart(rank: int) -> list[StepReport]:
    probe, transport = probe_of(rank)
    for step in range(2):
        gate(probe, Sequences.of_step(step).rows(slice(6 * rank, 6 * rank + 6)))
        probe.step(step + 5 * rank * step)
    # What a rank sent may still be on its way; this is not about its end.
    probe._ranks.settle(10.0)
    return reports(transport)


def test_ranks_that_come_apart_in_their_step_numbers_are_counted() -> None:
    of_rank_0, of_rank_1 = run_ranks(2, steps_that_come_apart)
    assert [report.scalars.get("probe/ranks_out_of_step") for report in of_rank_0] == [None, 2.0]
    assert ([report.step for report in of_rank_0], [report.step for report in of_rank_1]) == (
        [0, 1],
        [0, 6],
    )


def steps_of_which_one_rank_dies(rank: int) -> list[StepReport]:
    probe, transport = probe_of(rank)
    for step in range(4):
        gate(probe, Sequences.of_step(step).rows(slice(6 * rank, 6 * rank + 6)))
        if rank == 1 and step == 2:
            # What it sent at the end of step 1 may still be on its way; this is about step 2.
            probe._ranks.settle(10.0)
            os._exit(0)
        probe.step(step)
    probe.finish()
    return reports(transport)


def test_a_rank_that_dies_takes_its_numbers_along_and_nothing_else() -> None:
    (survivor,) = run_ranks(2, steps_of_which_one_rank_dies, survivors=1)
    assert [report.step for report in survivor][:2] == [0, 1]
    assert all("entropy/mean" in report.scalars for report in survivor[:2])
    assert not any("entropy/mean" in report.scalars for report in survivor[2:])


def probe_built_with(rank: int, of_rank_0: dict[str, Any], of_rank_1: dict[str, Any]) -> str:
    try:
        probe, _ = probe_of(rank, **(of_rank_1 if rank else of_rank_0))
    except ConfigurationError as error:
        return str(error)
    return probe.run_id


def test_a_probe_that_one_rank_cannot_build_no_rank_builds() -> None:
    cases = [
        ({}, {"planned_steps": 0}, "planned_steps"),
        ({"run_id": "a"}, {"run_id": "b"}, "run_id: rank 0 has a, rank 1 has b"),
        ({}, {"control": isentrope.Control(method="clip_v", mu_low=1)}, "control"),
        (
            {},
            {"threshold_source": "micro_batch"},
            "threshold_source: rank 0 has auto, rank 1 has micro_batch",
        ),
        # A run id given to rank 0 alone is everybody's.
        ({"run_id": "mine"}, {}, "mine"),
    ]
    answers = run_ranks(2, one_after_another, probe_built_with, [case[:2] for case in cases])
    for of_rank in answers:
        for answer, (_, _, words) in zip(of_rank, cases, strict=True):
            assert words in answer
