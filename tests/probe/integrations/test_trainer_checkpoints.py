"""A trainer's checkpoint holds what the probe remembers, and a resumed training goes on from it."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from transformers import TrainerCallback

from isentrope.integrations.attachment import STATE_FILE
from isentrope.integrations.transformers import IsentropeCallback
from isentrope.integrations.trl import attach
from isentrope.transport.transport import InMemoryTransport
from isentrope_wire.control import Control
from tests.probe.integrations import test_transformers_callback, tiny_trl
from tests.probe.integrations.tiny_trl import reports

CLIP = Control(method="clip_v", mu_low=0.5, mu_high=0.5)


@pytest.fixture(autouse=True)
def one_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ISENTROPE_RUN_ID", "the-run")


def trl(folder: Path, control: Control | None, resume: bool) -> InMemoryTransport:
    made, transport = (
        tiny_trl.trainer(folder, steps=8, save_strategy="steps", save_steps=4),
        InMemoryTransport(),
    )
    attach(made, control=control, transport=transport)
    made.train(resume_from_checkpoint=str(folder / "checkpoint-4") if resume else None)
    return transport


def of_learning(transport: InMemoryTransport) -> list[tuple[int, str, float | None, float | None]]:
    """What follows from all the steps before, and from which control."""
    return [
        (
            report.step,
            report.labels["control/method"],
            report.scalars.get("entropy/gain"),
            report.scalars.get("entropy/predicted_change"),
        )
        for report in reports(transport)
    ]


def test_a_resumed_trl_run_predicts_what_the_uninterrupted_one_does(tmp_path: Path) -> None:
    whole = of_learning(trl(tmp_path, CLIP, resume=False))
    again = of_learning(trl(tmp_path, None, resume=True))
    assert [step for step, *_ in whole] == list(range(1, 9))
    assert [(step, method) for step, method, *_ in again] == [
        (step, "clip_v") for step in range(5, 9)
    ]
    for before, after in zip(whole[4:], again, strict=True):
        assert after[2:] == pytest.approx(before[2:], rel=1e-4)


@pytest.mark.parametrize("event", ["on_step_end", "on_step_begin"])
def test_a_checkpoint_at_sigterm_holds_its_step(tmp_path: Path, event: str) -> None:
    made = tiny_trl.trainer(tmp_path, steps=4, enable_jit_checkpoint=True)
    attach(made, transport=InMemoryTransport())
    jit = next(one for one in made.callback_handler.callbacks if hasattr(one, "jit_manager"))

    def request(*_: Any, **__: Any) -> None:
        if made.state.global_step == 2:  # as three seconds after the signal
            jit.jit_manager.is_checkpoint_requested = True

    made.add_callback(type("Preempted", (TrainerCallback,), {event: request})())
    made.train()
    assert json.loads((tmp_path / "checkpoint-2" / STATE_FILE).read_text())["step"] == 2


@pytest.mark.slow
def test_the_last_checkpoint_holds_the_last_step_and_its_report_everything_about_it(
    tmp_path: Path,
) -> None:
    transport = trl(tmp_path, CLIP, resume=False)
    assert "train_runtime" in reports(transport)[-1].scalars
    states = [
        json.loads((tmp_path / f"checkpoint-{step}" / STATE_FILE).read_text()) for step in (4, 8)
    ]
    assert [state["step"] for state in states] == [4, 8]
    # The fifth step showed that the first update was wild: it is forgotten.
    assert [state["learnt"]["calibration"]["_observations"] for state in states] == [4, 7]


def callback_run(
    folder: Path, resume: bool, **settings: Any
) -> tuple[IsentropeCallback, InMemoryTransport]:
    transport = InMemoryTransport()
    callback = IsentropeCallback(transport=transport)
    made = test_transformers_callback.trainer(
        folder, [callback], max_steps=4, save_strategy="steps", save_steps=2, **settings
    )
    made.train(resume_from_checkpoint=str(folder / "checkpoint-2") if resume else None)
    return callback, transport


def test_the_callback_s_probe_goes_on_too_and_every_step_keeps_its_logs(tmp_path: Path) -> None:
    _, transport = callback_run(tmp_path, resume=False)
    assert ["loss" in report.scalars for report in reports(transport)] == [True] * 4
    callback, transport = callback_run(tmp_path, resume=True)
    assert [report.step for report in reports(transport)] == [3, 4]
    assert callback.probe is not None
    assert callback.probe.state_dict()["step"] == 4


@pytest.mark.slow
@pytest.mark.parametrize("content", [b"{", b"{}", b"[1]"])
def test_a_checkpoint_whose_probe_state_is_broken_is_resumed_all_the_same(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, content: bytes
) -> None:
    callback_run(tmp_path, resume=False)
    (tmp_path / "checkpoint-2" / STATE_FILE).write_bytes(content)
    with caplog.at_level(logging.WARNING):
        _, transport = callback_run(tmp_path, resume=True)
    assert [report.step for report in reports(transport)] == [3, 4]
    assert any(
        one.name.startswith("isentrope") and one.levelno == logging.WARNING
        for one in caplog.records
    )


def test_a_folder_that_can_t_be_written_to_does_not_hurt_the_training(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr("isentrope.integrations.attachment.write_atomically", full)
    with caplog.at_level(logging.WARNING):
        _, transport = callback_run(tmp_path, resume=False)
    assert len(reports(transport)) == 4
    assert "No space left" in caplog.text
