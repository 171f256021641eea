"""A run that goes on from a checkpoint is the run that was not interrupted."""

from __future__ import annotations

import copy
import io
import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

import isentrope
from isentrope.transport.transport import InMemoryTransport
from isentrope_wire.errors import CheckpointError
from isentrope_wire.hold_action import hold_labels, undecided
from isentrope_wire.reports import OutcomeState, StepReport
from tests.probe.ranks.gang import one_after_another, run_ranks
from tests.probe.tiny_loop import (
    CLIP,
    TinyLoop,
    comparable,
    probe_and_transport,
    pushed,
    reports,
    run_steps,
)

STEPS = 20
CONTROLS = {
    "clip_v": CLIP,
    "clip_v with a cap": isentrope.Control(
        method="clip_v",
        mu_low=0.5,
        mu_high=0.5,
        parameters={"max_fraction": 0.05, "denominator": "shrink"},
    ),
    "clip_cov": isentrope.Control(
        method="clip_cov",
        parameters={"ratio": 0.1, "omega_low": 0.01, "omega_high": 9.0, "seed": 5},
    ),
    "top_entropy": isentrope.Control(method="top_entropy", parameters={"fraction": 0.3}),
    "hold": isentrope.Control(hold={"target_entropy": 3.0, "max_change_per_step": 0.05}),
}


class Checkpoint:
    """What a trainer saves: the loop with its optimiser and random numbers, and the probe."""

    def __init__(self, loop: TinyLoop, probe: isentrope.Probe) -> None:
        self._loop, self._random = copy.deepcopy(loop), torch.get_rng_state()
        file = io.BytesIO()
        torch.save(probe.state_dict(), file)
        file.seek(0)
        saved = torch.load(file, weights_only=True)
        # What survives both is plain.
        self.probe: dict[str, Any] = json.loads(json.dumps(saved, allow_nan=False))
        assert self.probe == saved

    def loop(self) -> TinyLoop:
        torch.set_rng_state(self._random)
        return copy.deepcopy(self._loop)


def interrupted(
    control: isentrope.Control, **settings: Any
) -> tuple[list[StepReport], list[StepReport], Checkpoint]:
    """Reports of a run, and of a second probe that went on from the middle of it."""
    loop = TinyLoop()
    probe, transport = probe_and_transport(control=control, run_id="the-run", **settings)
    run_steps(loop, probe, STEPS // 2)
    checkpoint = Checkpoint(loop, probe)
    run_steps(loop, probe, STEPS // 2, first=STEPS // 2)

    again, second = probe_and_transport(run_id="the-run", **settings)
    again.load_state_dict(checkpoint.probe)
    run_steps(checkpoint.loop(), again, STEPS // 2, first=STEPS // 2)
    return reports(transport), reports(second), checkpoint


@pytest.mark.parametrize("name", CONTROLS)
def test_a_resumed_run_reports_what_the_uninterrupted_one_reports_to_the_last_bit(
    name: str,
) -> None:
    whole, rest, _ = interrupted(CONTROLS[name], threshold_source="previous_step")
    assert len(rest) == STEPS // 2
    for before, after in zip(whole[STEPS // 2 :], rest, strict=True):
        assert comparable(before) == comparable(after)
    last = whole[-1].scalars
    assert {"entropy/predicted_change_low", "entropy/interval_coverage", "entropy/gain"} <= set(
        last
    )
    assert any(report.scalars["clip/fraction"] > 0 for report in rest)
    assert rest[0].labels["what_if/source"] == "previous_step"


def test_a_first_pass_s_thresholds_are_gone_on_from() -> None:
    loop = TinyLoop()
    probe, transport = probe_and_transport(control=CLIP, run_id="the-run")
    logits, token_ids, _ = loop.sample()
    probe.first_pass(probe.score(logits, token_ids), loop.mask)
    run_steps(loop, probe, 3)
    checkpoint = Checkpoint(loop, probe)
    run_steps(loop, probe, 1, first=3)
    again, second = probe_and_transport(run_id="the-run")
    again.load_state_dict(checkpoint.probe)
    run_steps(checkpoint.loop(), again, 1, first=3)
    assert comparable(reports(transport)[-1]) == comparable(reports(second)[-1])
    assert reports(second)[-1].labels["threshold/source"] == "first_pass"


def test_saving_changes_nothing_of_the_run() -> None:
    whole, _, _ = interrupted(CONTROLS["clip_v with a cap"], threshold_source="previous_step")
    probe, transport = probe_and_transport(
        control=CONTROLS["clip_v with a cap"], run_id="the-run", threshold_source="previous_step"
    )
    run_steps(TinyLoop(), probe, STEPS)
    assert [comparable(report) for report in whole] == [
        comparable(report) for report in reports(transport)
    ]


CLIP_B = isentrope.Control(method="clip_b", mu_low=1.0)


def resumed_after_a_push(
    state: dict[str, Any], version: int, control: isentrope.Control = CLIP_B, **settings: Any
) -> list[StepReport]:
    probe, transport = probe_and_transport(**settings)
    transport.set_control(pushed(version, control))
    probe.load_state_dict(state)
    run_steps(TinyLoop(), probe, 2, first=5)
    return reports(transport)


@pytest.fixture(scope="module")
def state_at_version_3() -> dict[str, Any]:
    loop = TinyLoop()
    probe, transport = probe_and_transport(run_id="the-run")
    run_steps(loop, probe, 3)
    transport.set_control(pushed(3))
    run_steps(loop, probe, 2, first=3)
    assert reports(transport)[-1].control_version == 3
    return probe.state_dict()


def test_the_checkpoint_s_control_is_in_force_from_the_first_gate_and_is_not_applied_again(
    state_at_version_3: dict[str, Any],
) -> None:
    run = resumed_after_a_push(state_at_version_3, 3, pushed(3).control, run_id="the-run")
    assert [
        (report.control_version, report.labels["control/method"], report.outcomes) for report in run
    ] == [
        (3, "clip_v", ()),
        (3, "clip_v", ()),
    ]
    assert run[0].scalars["clip/fraction"] > 0


def test_a_version_asked_for_since_is_applied_once_and_one_from_before_never(
    state_at_version_3: dict[str, Any],
) -> None:
    newer = resumed_after_a_push(state_at_version_3, 4, run_id="the-run")
    assert [report.control_version for report in newer] == [4, 4]
    assert [(o.version, o.state, o.step) for r in newer for o in r.outcomes] == [
        (4, OutcomeState.APPLIED, 5)
    ]
    older = resumed_after_a_push(state_at_version_3, 2, run_id="the-run")
    assert [report.control_version for report in older] == [3, 3]
    assert [(o.version, o.state) for r in older for o in r.outcomes] == [
        (2, OutcomeState.SUPERSEDED)
    ]
    first_of_another = resumed_after_a_push(state_at_version_3, 1, run_id="another")
    assert [(o.version, o.state) for r in first_of_another for o in r.outcomes] == [
        (1, OutcomeState.APPLIED)
    ]


def test_another_run_goes_on_with_what_was_learnt_under_the_control_that_it_announced(
    state_at_version_3: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    for own in (None, isentrope.Control(method="top_entropy")):
        probe, transport = probe_and_transport(run_id="another", control=own)
        probe.load_state_dict(state_at_version_3)
        assert probe.control == (own or isentrope.Control())
        run_steps(TinyLoop(), probe, 1, first=5)
        (report,) = reports(transport)
        method = "top_entropy" if own else "none"
        assert (report.control_version, report.labels["control/method"], report.outcomes) == (
            0,
            method,
            (),
        )
        assert report.scalars["entropy/gain"] != 0
    assert "run_id='the-run'" in caplog.text
    assert "(top_entropy)" in caplog.text


def bytes_of(**fields: Any) -> str:
    snapshot = {"version": 3, "control": json.dumps(fields), "author": "a", "requested_at": 1.0}
    return msgspec.msgpack.encode(snapshot).hex()


@pytest.fixture(scope="module")
def plain_steps() -> list[Any]:
    """What five steps report without a checkpoint."""
    probe, transport = probe_and_transport()
    run_steps(TinyLoop(), probe, 5)
    return [comparable(report) for report in reports(transport)]


def damaged(state: dict[str, Any], path: str, value: object) -> dict[str, Any]:
    changed: dict[str, Any] = copy.deepcopy(state)
    *folders, last = path.split("/")
    inside = changed
    for folder in folders:
        inside = inside[folder]
    inside[last] = value
    return changed


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("format", "model", "state_dict"),
        ("layout", 1, "layout 1"),
        ("step", -1, ">= 0.*step"),
        ("decided", None, "decided"),
        ("control", "ff", "can't be read"),
        ("control", bytes_of(method="clip_x"), "clip_x"),
        ("control", bytes_of(method="clip_v", mu_low=-3.0), "-3"),
        ("learnt/calibration", {"gain": 1.0}, "fields of `Calibration`"),
        ("learnt/calibration/_observations", 1.5, "int.*_observations"),
        ("learnt/alerts/_raised", {"collapse": 3}, "object.*_raised"),
        ("learnt/alerts/course/_levels/moved/values", [[1.0]], "length 2"),
        ("selection", {"first_pass": None, "previous_step": None}, "one_call"),
        ("selection/previous_step", ["many"], "many"),
        ("selection/means", [1.0], "index"),
        ("hold/compared_steps", "many", "compared_steps"),
        ("next", "{", "can't be read"),
        ("next", {"version": 0, "status": "holding", "mu": 10**400}, "can't be read"),
        ("selection/means", [10**400, 0], "can't be read"),
    ],
)
def test_a_state_that_is_foreign_newer_or_damaged_is_refused_and_the_probe_is_as_it_was(
    state_at_version_3: dict[str, Any], plain_steps: list[Any], path: str, value: object, words: str
) -> None:
    probe, transport = probe_and_transport()
    with pytest.raises(CheckpointError, match=words):
        probe.load_state_dict(damaged(state_at_version_3, path, value))
    run_steps(TinyLoop(), probe, 5)
    assert [comparable(r) for r in reports(transport)] == plain_steps


@pytest.mark.parametrize("state", [{"model": 1}, 5, [1], "text"])
def test_what_is_no_state_is_refused(state: Any) -> None:
    probe, _ = probe_and_transport()
    with pytest.raises(CheckpointError, match="state_dict"):
        probe.load_state_dict(state)


def test_a_state_comes_too_late_for_a_probe_that_has_begun(
    state_at_version_3: dict[str, Any],
) -> None:
    probe, _ = probe_and_transport()
    run_steps(TinyLoop(), probe, 1)
    with pytest.raises(CheckpointError, match="load_state_dict"):
        probe.load_state_dict(state_at_version_3)


@pytest.mark.parametrize("state", [None, {}])
def test_without_a_state_the_run_begins_anew_and_says_so(
    state: dict[str, Any] | None, caplog: pytest.LogCaptureFixture
) -> None:
    probe, transport = probe_and_transport()
    probe.load_state_dict(state)
    assert len(caplog.records) == 1
    run_steps(TinyLoop(), probe, 1)
    assert "entropy/gain" not in reports(transport)[0].scalars


def test_a_report_that_the_writer_has_not_built_yet_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("ISENTROPE_HOME", str(tmp_path))
    with isentrope.Probe("test", mode="offline") as probe:
        run_steps(TinyLoop(), probe, 7)
        state = probe.state_dict()
    expected, _ = probe_and_transport()
    run_steps(TinyLoop(), expected, 7)
    also = expected.state_dict()
    for learnt in (state["learnt"], also["learnt"]):
        # The clock differs from run to run, and with it when the writer begins.
        learnt["alerts"]["measures"]["traces"].pop("time/step_seconds", None)
    assert state["learnt"] == also["learnt"]
    assert state["learnt"]["calibration"]["_observations"] == 7


def test_a_report_that_is_never_built_does_not_hold_up_the_checkpoint(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Full(InMemoryTransport):
        def put(self, make: Any) -> bool:
            return False

    class Stuck(InMemoryTransport):
        def put(self, make: Any) -> bool:
            return True

    monkeypatch.setattr("isentrope.checkpoint.REPORT_SECONDS", 0.05)
    full = isentrope.Probe("test", transport=Full())
    run_steps(TinyLoop(), full, 1)
    assert full.state_dict()["step"] == 0
    disabled = isentrope.Probe("test", mode="disabled")
    run_steps(TinyLoop(), disabled, 1)
    assert disabled.state_dict()["step"] == 0
    assert not caplog.records
    stuck = isentrope.Probe("test", transport=Stuck())
    run_steps(TinyLoop(), stuck, 1)
    with caplog.at_level(logging.WARNING):
        assert stuck.state_dict()["step"] == 0
    assert len(caplog.records) == 1


def saved_on_rank(
    rank: int, control: isentrope.Control = CONTROLS["hold"]
) -> tuple[list[StepReport], list[StepReport], dict[str, Any]]:
    whole, rest, checkpoint = interrupted(control, threshold_source="previous_step")
    # Rank 0 has its reports only now; until then no other may end.
    torch.distributed.barrier()
    return whole, rest, checkpoint.probe


@pytest.mark.slow
def test_ranks_go_on_together_from_a_state_each_of_their_own() -> None:
    calls = [(CONTROLS[name],) for name in ("clip_v with a cap", "hold")]
    for of_rank in run_ranks(2, one_after_another, saved_on_rank, calls):
        for whole, rest, _ in of_rank:
            assert [comparable(report) for report in whole[STEPS // 2 :]] == [
                comparable(report) for report in rest
            ]


def resumed_on_rank(
    rank: int, states: list[dict[str, Any] | None]
) -> tuple[str, isentrope.Control, int]:
    probe, transport = probe_and_transport(run_id="the-run")
    try:
        probe.load_state_dict(states[rank])
    except CheckpointError as error:
        return str(error), probe.control, -1
    run_steps(TinyLoop(), probe, 2, first=5)
    return "", probe.control, reports(transport)[0].control_version


def held_in_another_run(rank: int, states: list[dict[str, Any]]) -> list[Mapping[str, str]]:
    probe, transport = probe_and_transport(run_id="another", control=CONTROLS["hold"])
    probe.load_state_dict(states[rank])
    run_steps(TinyLoop(), probe, 1, first=STEPS)
    return [report.labels for report in reports(transport)]


def test_what_ranks_decided_for_one_run_does_not_act_in_another() -> None:
    states = [state for _, _, state in run_ranks(2, saved_on_rank, CONTROLS["hold"])]
    assert states[0]["next"]
    (labels,), _ = run_ranks(2, held_in_another_run, states)
    assert labels == labels | hold_labels(undecided(0))


def test_rank_0_s_state_counts_for_all_and_one_that_can_t_be_read_keeps_nobody_waiting(
    state_at_version_3: dict[str, Any],
) -> None:
    bad = {**state_at_version_3, "layout": 9}
    good = state_at_version_3
    calls = [([good, good],), ([good, None],), ([None, good],), ([good, bad],)]
    for *answers, (refused, *_) in (
        of_ranks := run_ranks(2, one_after_another, resumed_on_rank, calls)
    ):
        assert answers == [("", CLIP, 3), ("", CLIP, 3), ("", isentrope.Control(), 0)]
        assert refused
    assert "Rank 1" in of_ranks[0][-1][0]
    assert "layout 9" in of_ranks[1][-1][0]


def test_accelerate_saves_and_continues_a_registered_probe(tmp_path: Path) -> None:
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState

    probes = [probe_and_transport(run_id="the-run")[0] for _ in range(2)]
    run_steps(TinyLoop(), probes[0], 3)
    try:
        for probe, act in zip(probes, ("save_state", "load_state"), strict=True):
            accelerator = Accelerator(cpu=True)
            accelerator.register_for_checkpointing(probe)
            getattr(accelerator, act)(str(tmp_path))
    finally:
        AcceleratorState._reset_state(reset_partial_state=True)
    assert probes[1].last_step == 2
    assert probes[1].state_dict()["learnt"] == probes[0].state_dict()["learnt"]
