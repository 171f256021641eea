"""The probe never hurts the run."""

from __future__ import annotations

import functools
import logging
import os
import signal
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import isentrope
from isentrope.config import ProbeConfig
from isentrope.distributed import Gathered
from isentrope.guard import Guard
from isentrope.lifecycle import announce
from isentrope.statistics import tokens
from isentrope.transport.transport import InMemoryTransport
from isentrope_wire.reports import OutcomeState, RunFinished, StepReport, error_in_a_line
from tests.probe.tiny_loop import (
    CLIP,
    TinyLoop,
    comparable,
    probe_and_transport,
    pushed,
    reports,
    run_steps,
)


def test_a_loop_that_never_calls_step_does_not_fill_the_memory(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tokens, "MAX_TOKENS", 1000)
    loop = TinyLoop()
    probe, transport = probe_and_transport()
    logits, token_ids, advantages = loop.sample()
    scores = probe.score(logits, token_ids)
    with caplog.at_level(logging.WARNING, logger="isentrope"):
        for _ in range(40):
            assert probe.gate(scores, advantages, loop.mask) is scores.logprobs
    assert len(caplog.records) == 1
    assert "probe.step" in caplog.text
    assert probe._open.ledger.batches == []
    probe.step(0, rescore=lambda: scores)
    run_steps(loop, probe, 1, first=1)
    first, second = reports(transport)
    assert "entropy/mean" not in first.scalars
    assert first.scalars["token/not_recorded"] == 40 * 80
    assert second.scalars["token/count"] == int(loop.mask.sum())
    assert "token/not_recorded" not in second.scalars


class Preempted(RuntimeError):
    pass


class Handlers:
    """Handlers of a signal that raise an error of the user's, in the ways that they are written."""

    def of_object(self, number: int, frame: Any) -> None:
        raise Preempted

    def __call__(self, *about: Any) -> None:
        raise Preempted


def of_arguments(*_: Any) -> None:
    raise Preempted


def by_another(number: int, frame: Any) -> None:
    of_arguments(number)


def with_a_setting(setting: str, number: int, frame: Any) -> None:
    raise Preempted(setting)


def of_a_single_time(number: int, frame: Any) -> None:
    signal.signal(number, signal.SIG_IGN)
    raise Preempted


def with_a_cause(number: int, frame: Any) -> None:
    try:
        raise OSError("no time left")
    except OSError as error:
        raise Preempted from error


HANDLERS: list[Any] = [
    of_arguments,
    by_another,
    functools.partial(with_a_setting, "requeue"),
    of_a_single_time,
    with_a_cause,
    Handlers().of_object,
    Handlers(),
    lambda number, frame: of_arguments(),
]


@pytest.mark.parametrize("handler", HANDLERS)
@pytest.mark.parametrize("coupling", [None, "model"])
def test_a_signal_handlers_error_reaches_the_loop(
    monkeypatch: pytest.MonkeyPatch, handler: Any, coupling: Any
) -> None:
    loop = TinyLoop()
    probe, transport = probe_and_transport(coupling=coupling)
    run_steps(loop, probe, 1)
    monkeypatch.delenv("PYTEST_CURRENT_TEST")
    logits, token_ids, advantages = loop.sample()
    loop.update(probe.gate(probe.score(logits, token_ids), advantages, loop.mask), advantages)

    def rescore() -> isentrope.TokenScores:
        signal.raise_signal(signal.SIGUSR1)
        return probe.score(loop.policy(loop.states), token_ids)

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        with pytest.raises(Preempted):
            probe.step(1, loop.optimizer, rescore)
    finally:
        signal.signal(signal.SIGUSR1, before)
    run_steps(loop, probe, 1, first=2)
    assert "probe/failures" not in reports(transport)[-1].scalars


def test_an_own_failure_beside_a_handler_is_swallowed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the loop is in the middle of handling a signal's error."""
    loop = TinyLoop()
    probe, transport = probe_and_transport()
    run_steps(loop, probe, 1)
    monkeypatch.delenv("PYTEST_CURRENT_TEST")
    before = signal.signal(signal.SIGUSR1, of_arguments)

    def broken() -> isentrope.TokenScores:
        raise ValueError("a helper of the loop's")

    try:
        signal.raise_signal(signal.SIGUSR1)
    except Preempted:
        logits, token_ids, advantages = loop.sample()
        probe.gate(probe.score(logits, token_ids), advantages, loop.mask)
        probe.step(1, loop.optimizer, broken)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert reports(transport)[-1].scalars["probe/failures"] == 1


BAD_BATCHES: dict[str, Any] = {
    "id -100": lambda logits, ids: (logits, ids.masked_fill(torch.arange(5) > 2, -100), {}),
    "id too large": lambda logits, ids: (logits, ids + 1000, {}),
    "temperature 0": lambda logits, ids: (logits, ids, {"temperature": torch.zeros(16, 1)}),
    "shifted": lambda logits, ids: (logits, ids[:, 1:], {}),
    "floats": lambda logits, ids: (logits, ids.float(), {}),
    "NaN": lambda logits, ids: (logits * torch.nan, ids, {}),
    "no rows": lambda logits, ids: (logits[:0], ids[:0], {}),
    "no logits": lambda logits, ids: (logits[..., :0], ids, {}),
}


@pytest.mark.parametrize("name", BAD_BATCHES)
@pytest.mark.parametrize("own", [True, False])
def test_a_bad_batch_later_ends_no_training(
    name: str, own: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """With log-probs of the loop's own, and with the probe's: those are NaN then."""
    loop = TinyLoop()
    probe, transport = probe_and_transport()
    run_steps(loop, probe, 1)
    monkeypatch.delenv("PYTEST_CURRENT_TEST")
    with caplog.at_level(logging.ERROR, logger="isentrope"):
        for step in (1, 2):
            logits, token_ids, advantages = loop.sample()
            given, ids, settings = BAD_BATCHES[name](logits, token_ids)
            scores = probe.score(given, ids, **settings)
            assert scores.logprobs.shape == ids.shape
            logprobs = logits.log_softmax(-1).gather(-1, token_ids[..., None])[..., 0]
            if own:
                gated = probe.gate(scores, advantages, loop.mask, logprobs=logprobs)
                assert torch.equal(gated, logprobs)
                loop.update(gated, advantages)
            elif given is logits:
                gated = probe.gate(scores, advantages, loop.mask)
                gated.sum().backward()
            probe.step(step, loop.optimizer)
    assert loop.weights().isfinite().all()
    is_counted = name not in ("NaN", "no rows")
    assert ("scoring a batch" in caplog.text) == is_counted
    assert caplog.text.count("scoring a batch failed") == int(is_counted)
    last = reports(transport)[-1]
    assert last.step == 2
    assert (last.scalars.get("probe/failures", 0) >= 2) == is_counted or not is_counted


def test_without_memory_score_raises_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = TinyLoop()
    probe, _ = probe_and_transport()
    run_steps(loop, probe, 1)
    monkeypatch.delenv("PYTEST_CURRENT_TEST")

    def full(*_: Any, **__: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr("isentrope.probe.token_scores", full)
    with pytest.raises(torch.OutOfMemoryError):
        probe.score(*loop.sample()[:2])


def test_after_the_first_step_each_kind_of_failure_is_logged_once_counted_and_training_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    loop = TinyLoop()
    probe, transport = probe_and_transport()
    run_steps(loop, probe, 1)
    monkeypatch.delenv("PYTEST_CURRENT_TEST")
    with caplog.at_level(logging.ERROR, logger="isentrope"):
        for step in (1, 2):
            logits, token_ids, _ = loop.sample()
            scores = probe.score(logits, token_ids)
            assert probe.gate(scores, torch.zeros(99)) is scores.logprobs
            probe.log({"x": "no number"})  # type: ignore[dict-item]
            probe.step(step, rescore=lambda: 1 / 0)  # type: ignore[arg-type, return-value]
    # The second kind is seen though the first came before it.
    assert [record.getMessage().split(" failed")[0] for record in caplog.records] == [
        "Isentrope: gating a batch",
        "Isentrope: logging scalars",
    ]
    assert [report.scalars.get("probe/failures") for report in reports(transport)] == [
        None,
        2.0,
        4.0,
    ]
    assert [report.labels.get("probe/failed") for report in reports(transport)] == [
        None,
        "gating a batch 1, logging scalars 1",
        "gating a batch 2, logging scalars 2",
    ]


@pytest.mark.parametrize(
    ("argument", "bad"),
    [
        ("groups", 7),
        ("ref_logprobs", torch.zeros(3)),
        ("token_ids", torch.zeros(3, dtype=torch.long)),
    ],
)
def test_what_serves_the_diagnosis_alone_never_costs_the_control(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, argument: str, bad: Any
) -> None:
    loop = TinyLoop()
    probe, transport = probe_and_transport(
        control=isentrope.Control(method="clip_v", mu_low=0.0, mu_high=0.0)
    )
    run_steps(loop, probe, 1)
    monkeypatch.delenv("PYTEST_CURRENT_TEST")
    logits, token_ids, advantages = loop.sample()
    logits.retain_grad()
    with caplog.at_level(logging.ERROR, logger="isentrope"):
        scores, inputs = probe.score(logits, token_ids), {argument: bad}
        if argument == "token_ids":
            scores, inputs = replace(scores, token_ids=bad), {}
        gated = probe.gate(scores, advantages, loop.mask, **inputs)
    gated[loop.mask].sum().backward()
    probe.step(1)
    last = reports(transport)[-1]
    assert logits.grad is not None
    assert last.scalars["clip/fraction"] == 1
    assert float(logits.grad.abs().sum()) == 0
    assert (last.scalars["probe/failures"], last.labels["probe/failed"]) == (
        1,
        f"reading {argument} 1",
    )
    assert f"{argument} must" in caplog.text


class Broken(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        raise OSError("the log's disk is full")


def test_a_log_handler_that_raises_costs_no_report(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.getLogger("isentrope"), "handlers", [Broken()])
    loop, (probe, transport) = TinyLoop(), probe_and_transport()
    run_steps(loop, probe, 1)
    monkeypatch.delenv("PYTEST_CURRENT_TEST")
    probe.log({"reward/mean": "none"})  # type: ignore[dict-item]
    run_steps(loop, probe, 1, first=1)
    run_steps(loop, probe, 1)  # warned of: the number falls
    assert [report.step for report in reports(transport)] == [0, 1, 0]
    assert reports(transport)[1].scalars["probe/failures"] == 1


def test_a_failure_that_repeats_is_logged_at_the_1st_10th_and_100th_time(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("PYTEST_CURRENT_TEST")
    guard = Guard()
    with caplog.at_level(logging.ERROR, logger="isentrope"):
        for times in range(1, 151):
            with guard.protect("doing it"):
                raise ValueError(str(times))
    logged = [
        record.exc_info[1].args[0]
        for record in caplog.records
        if record.exc_info and record.exc_info[1]
    ]
    assert logged == ["1", "10", "100"]
    assert (guard.failures, guard.summary) == (150, "doing it 150")


def test_a_step_that_was_scored_and_never_gated_is_said_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    loop = TinyLoop()
    probe, _ = probe_and_transport()
    logits, token_ids, _ = loop.sample()
    with caplog.at_level(logging.WARNING, logger="isentrope"):
        run_steps(loop, probe, 2)
        probe.first_pass(probe.score(logits, token_ids))
        probe.step(2)
        probe.step(3)
        assert caplog.records == []
        for step in (4, 5):
            probe.score(logits, token_ids)
            probe.step(step)
    (record,) = caplog.records
    assert all(word in record.getMessage() for word in ("tep 4 ", "probe.gate"))


def test_a_loop_that_never_gates_is_warned_and_its_controls_rejected(
    caplog: pytest.LogCaptureFixture,
) -> None:
    loop = TinyLoop()
    probe, transport = probe_and_transport()
    with caplog.at_level(logging.WARNING, logger="isentrope"):
        probe.step(0)
        transport.set_control(pushed(1))
        probe.step(1)
        transport.set_control(pushed(2, isentrope.Control(hold={"target_entropy": 2.0})))
        probe.step(2)
    (record,) = [record for record in caplog.records if record.name == "isentrope.probe"]
    assert all(word in record.getMessage() for word in ("tep 0 ", "probe.gate", "rejected"))
    outcomes = [outcome for report in reports(transport) for outcome in report.outcomes]
    assert [(o.version, o.state, o.code) for o in outcomes] == [
        (version, OutcomeState.REJECTED, "nothing_gated") for version in (1, 2)
    ]
    transport.set_control(pushed(3))
    run_steps(loop, probe, 1, first=3)
    assert outcomes_of(reports(transport)[3]) == [(3, OutcomeState.APPLIED, 3)]


def test_a_control_is_acknowledged_when_tokens_meet_it() -> None:
    loop = TinyLoop()
    probe, transport = probe_and_transport()
    run_steps(loop, probe, 1)
    transport.set_control(pushed(1))
    probe.step(1)  # all groups left out: no loss
    logits, token_ids, advantages = loop.sample()
    probe.gate(probe.score(logits, token_ids), advantages, torch.zeros_like(loop.mask))
    probe.step(2)
    run_steps(loop, probe, 2, first=3)
    shown = [(report.control_version, outcomes_of(report)) for report in reports(transport)]
    applied = [(1, OutcomeState.APPLIED, 3)]
    assert shown == [(0, []), (0, []), (0, []), (1, applied), (1, [])]


def test_the_latest_report_is_empty_before_the_first() -> None:
    probe, _ = probe_and_transport()
    disabled = isentrope.Probe("test", mode="disabled")
    run_steps(TinyLoop(), disabled, 1)
    for latest in (probe.latest, disabled.latest):
        assert (latest.step, dict(latest.scalars)) == (-1, {})
    run_steps(TinyLoop(), probe, 1, first=4)
    assert probe.latest.step == 4


def outcomes_of(report: StepReport) -> list[tuple[int, OutcomeState, int | None]]:
    return [(outcome.version, outcome.state, outcome.step) for outcome in report.outcomes]


def config_of(mode: str) -> ProbeConfig:
    return ProbeConfig.read_environment(name=None, project=None, run_id="r-1", mode=mode)


def test_a_stderr_that_raises_keeps_nobody_from_training(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def closed(_: str) -> None:
        raise RuntimeError("the window was closed")

    monkeypatch.setattr("sys.stderr", SimpleNamespace(write=closed))
    announce(config_of("online"))


def test_a_run_says_on_stderr_who_it_is_and_where_to_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ISENTROPE_HOME", str(tmp_path))
    monkeypatch.setenv("ISENTROPE_URL", "http://box:7070")
    for mode, where in (
        ("online", "http://box:7070/runs/r-1"),
        ("offline", str(tmp_path / "spool")),
        ("disabled", ""),
    ):
        announce(config_of(mode))
        printed = capsys.readouterr()
        assert printed.out == ""
        assert (
            (printed.err.startswith("isentrope: run r-1, ") and where in printed.err)
            if where
            else printed.err == ""
        )
    monkeypatch.delenv("ISENTROPE_URL")
    for target, where in (
        ("127.0.0.1:7071", "http://127.0.0.1:7070/runs/r-1"),
        ("box:7071", "ISENTROPE_URL"),
    ):
        monkeypatch.setenv("ISENTROPE_GRPC", target)
        announce(config_of("online"))
        assert where in capsys.readouterr().err
    announce(replace(config_of("online"), rank=1, world_size=2))
    assert capsys.readouterr().err == ""
    with isentrope.Probe("named", mode="offline") as probe:
        assert capsys.readouterr().err.count(probe.run_id) == 1
    isentrope.Probe("quiet", transport=InMemoryTransport())
    assert capsys.readouterr().err == ""
    monkeypatch.setattr("sys.stderr", None)  # as a service has it
    announce(config_of("offline"))


def test_a_probe_says_what_it_is() -> None:
    probe, _ = probe_and_transport(run_id="r-7", project="demo", control=CLIP, mode="offline")
    probe.step(4)
    assert (
        repr(probe)
        == "Probe(run_id='r-7', project='demo', mode='offline', rank=0, step=4, control='clip_v')"
    )


def test_the_latest_report_is_printed_in_a_line() -> None:
    probe, transport = probe_and_transport()
    probe.log({"reward/mean": 0.25})
    run_steps(TinyLoop(), probe, 1, first=7)
    (report,) = reports(transport)
    assert probe.latest == report
    printed = repr(probe.latest)
    assert printed.startswith(
        f"StepReport(step=7, entropy/mean={report.scalars['entropy/mean']:.4g}, "
    )
    assert "reward/mean=0.25" in printed
    assert f"{len(report.histograms)} histograms" in printed
    assert len(printed) < 400


def test_the_loops_default_device_changes_no_report() -> None:
    def reported(device: str) -> list[Any]:
        loop, (probe, transport) = TinyLoop(), probe_and_transport(control=CLIP)
        run_steps(loop, probe, 1)  # the optimiser makes its state
        with torch.device(device):
            run_steps(loop, probe, 3, first=1)
        return [comparable(report) for report in reports(transport)]

    # A tensor made there has no memory that could be read.
    assert reported("meta") == reported("cpu")


def test_a_forked_child_does_not_report_in_its_parent_s_name() -> None:
    probe, transport = probe_and_transport()
    probe.step(0)
    child = os.fork()
    if child == 0:
        probe.log({"x": 1.0})
        probe.step(1)
        probe.finish()
        os._exit(len(transport.messages))
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 1


FORKED = {
    "log": lambda probe: probe.log({"x": 1.0}),
    "step": lambda probe: probe.step(1),
    "gate": lambda probe: probe.gate(
        probe.score(torch.randn(2, 3, 5), torch.zeros(2, 3, dtype=torch.long)), torch.ones(2)
    ),
    # As a DataLoader's worker does.
    "none": lambda probe: probe.finish(),
}


@pytest.mark.parametrize("call", FORKED)
def test_a_forked_child_that_trains_is_warned(call: str, caplog: pytest.LogCaptureFixture) -> None:
    probe, _ = probe_and_transport()
    child = os.fork()
    if child == 0:
        for _ in range(2):
            FORKED[call](probe)
        warned = [record for record in caplog.records if "was forked" in record.message]
        os._exit(len(warned))
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == int(call != "none")


def test_leaving_the_block_finishes_the_run_with_how_it_ended() -> None:
    probe, transport = probe_and_transport()

    def train() -> None:
        with probe:
            probe.step(3)
            _ = 1 / 0

    with pytest.raises(ZeroDivisionError):
        train()
    finished = transport.messages[-1]
    assert isinstance(finished, RunFinished)
    assert (finished.status, finished.step, error_in_a_line(finished.error)) == (
        "failed",
        3,
        "ZeroDivisionError: division by zero",
    )
    probe.finish()
    assert transport.messages[-1] is finished


def test_names_come_from_arguments_before_environment_before_defaults(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ISENTROPE_NAME", "from-env")
    monkeypatch.setenv("ISENTROPE_PROJECT", "shared")
    transport = InMemoryTransport()
    assert isentrope.Probe(transport=transport).config.name == "from-env"
    named = isentrope.Probe("Countdown & co", transport=transport)
    assert (named.config.name, named.config.project) == ("Countdown & co", "shared")
    assert named.run_id.startswith("countdown-co-")


@pytest.mark.parametrize("control", [None, isentrope.Control(method="clip_v", mu_low=1.0)])
def test_what_a_loop_does_to_its_scores_in_place_changes_no_report(
    control: isentrope.Control | None,
) -> None:
    loop = TinyLoop()
    logits, token_ids, advantages = loop.sample()
    entropies = []
    for in_place in (False, True):
        probe, transport = probe_and_transport(control=control)
        scores = probe.score(logits, token_ids)
        logprobs = probe.gate(scores, advantages, loop.mask)
        if in_place:
            logprobs -= 1.0
            logprobs[~loop.mask] = 0
            scores.entropies.mul_(0.5)
        probe.step(0)
        entropies.append(reports(transport)[0].scalars)
    for name in ("entropy/mean", "covariance/advantage_logprob", "score/discriminator_mean"):
        assert entropies[0][name] == entropies[1][name]


class HangingWork:
    """A collective of which one rank never takes part."""

    def __init__(self) -> None:
        self.released = threading.Event()

    def is_completed(self) -> bool:
        return False

    def wait(self) -> None:
        self.released.wait(30.0)


def test_the_end_of_a_run_takes_about_a_second_though_another_rank_never_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ISENTROPE_HOME", str(tmp_path))
    monkeypatch.setenv("ISENTROPE_MODE", "offline")
    probe = isentrope.Probe("hangs")
    run_steps(TinyLoop(), probe, 2)
    work = HangingWork()
    last_step = Gathered(torch.zeros(2, 3), work)  # type: ignore[arg-type]
    probe._ranks._sums = last_step
    probe._transport.put(lambda: RunFinished(status=str(last_step.rows()), finished_at=0.0))
    started = time.monotonic()
    probe.finish()
    seconds = time.monotonic() - started
    work.released.set()
    assert seconds < 2.0, "a second, and what a busy machine adds"


def test_steps_after_the_end_are_said_to_be_lost(caplog: pytest.LogCaptureFixture) -> None:
    loop = TinyLoop()
    probe, transport = probe_and_transport()
    run_steps(loop, probe, 2)
    probe.finish()
    with caplog.at_level(logging.WARNING, logger="isentrope"):
        probe.finish()
        assert not caplog.records
        probe.log({"eval/accuracy": 0.7})
        assert [record.message.partition(":")[0] for record in caplog.records] == [
            "The run has ended"
        ]
        run_steps(loop, probe, 2)
    assert len(caplog.records) == 1
    assert len(reports(transport)) == 2


@pytest.mark.parametrize("status", ["finished", "failed"])
def test_a_run_begun_again_after_its_end_is_named(
    status: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("ISENTROPE_HOME", str(tmp_path))
    with caplog.at_level(logging.WARNING, logger="isentrope"):
        for _ in range(2):
            isentrope.Probe(run_id=f"trial-{status}", mode="offline").finish(status)
    named = [record for record in caplog.records if f"trial-{status}" in record.message]
    assert len(named) == int(status == "finished")
