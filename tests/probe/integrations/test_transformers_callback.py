"""`IsentropeCallback`: what any transformers.Trainer logs, step by step."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformers import (
    PrinterCallback,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)
from transformers.integrations import integration_utils

from isentrope.integrations.transformers import IsentropeCallback, register, scalars_of
from isentrope.transport.transport import InMemoryTransport
from isentrope_wire.reports import RunFinished, RunStarted
from tests.probe.integrations.tiny_trl import reports


class Regression(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 1)
        self.fails_at: int | None = None
        self.forwards = 0

    def forward(self, inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
        self.forwards += 1
        if self.forwards == self.fails_at:
            raise RuntimeError("CUDA out of memory")
        predicted = self.layer(inputs).squeeze(-1)
        return {"loss": (predicted - labels).square().mean(), "logits": predicted}


DATA = [{"inputs": [float(index)], "labels": 2.0 * index} for index in range(8)]


def trainer(folder: Path, callbacks: list[TrainerCallback], **settings: Any) -> Any:
    arguments = {
        "output_dir": str(folder),
        "report_to": "none",
        "max_steps": 3,
        "per_device_train_batch_size": 4,
        "logging_steps": 1,
        "save_strategy": "no",
        "disable_tqdm": True,
        "use_cpu": True,
        "learning_rate": 0.1,
    }
    torch.manual_seed(0)
    made = Trainer(
        model=Regression(),
        args=TrainingArguments(**{**arguments, **settings}),
        train_dataset=DATA,
        eval_dataset=DATA,
        callbacks=callbacks,
    )
    made.remove_callback(PrinterCallback)
    return made


def test_every_step_carries_what_the_trainer_logged_for_it(tmp_path: Path) -> None:
    transport = InMemoryTransport()
    trained = trainer(tmp_path, [IsentropeCallback("fit", "demo", transport=transport)])
    trained.train()
    logged = [entry for entry in trained.state.log_history if "loss" in entry]
    assert (
        [report.step for report in reports(transport)]
        == [1, 2, 3]
        == [entry["step"] for entry in logged]
    )
    for report, entry in zip(reports(transport), logged, strict=True):
        for name in ("loss", "grad_norm", "learning_rate", "epoch"):
            assert report.scalars[name] == pytest.approx(entry[name])


def test_it_leaves_the_training_as_it_was(tmp_path: Path) -> None:
    alone, reported = (
        trainer(tmp_path, []),
        trainer(tmp_path, [IsentropeCallback(transport=InMemoryTransport())]),
    )
    for each in (alone, reported):
        torch.manual_seed(1)
        each.train()
    assert torch.equal(alone.model.layer.weight, reported.model.layer.weight)


def test_an_evaluation_after_a_step_belongs_to_it(tmp_path: Path) -> None:
    transport = InMemoryTransport()
    trained = trainer(
        tmp_path, [IsentropeCallback(transport=transport)], eval_strategy="steps", eval_steps=2
    )
    trained.train()
    evaluated = {
        entry["step"]: entry["eval_loss"]
        for entry in trained.state.log_history
        if "eval_loss" in entry
    }
    reported = {
        report.step: report.scalars["eval_loss"]
        for report in reports(transport)
        if "eval_loss" in report.scalars
    }
    assert reported == pytest.approx(evaluated)
    assert set(reported) == {2, 3}  # the trainer evaluates after its last step, too


def test_steps_that_log_nothing_are_reported_all_the_same(tmp_path: Path) -> None:
    transport = InMemoryTransport()
    trainer(
        tmp_path,
        [IsentropeCallback(transport=transport)],
        logging_steps=2,
        gradient_accumulation_steps=2,
    ).train()
    assert ["loss" in report.scalars for report in reports(transport)] == [False, True, False]


def test_missing_values_and_texts_stay_missing() -> None:
    assert scalars_of(
        {"loss": 1.5, "kl": None, "name": "run", "tokens": 3, "norm": torch.tensor(2.0)}
    ) == {
        "loss": 1.5,
        "tokens": 3,
        "norm": torch.tensor(2.0),
    }


def test_numpys_numbers_count_as_pythons() -> None:
    numbers = {
        "float": np.float32(0.5),
        "integer": np.int64(2),
        "flag": np.bool_(True),
        "array": np.array(0.5),
        "array of one": np.array([0.5]),
    }
    others = {"many": np.ones(3), "word": np.str_("word"), "complex": np.complex64(1j)}
    assert scalars_of({**numbers, **others}) == numbers


def test_the_run_is_named_shows_its_settings_and_ends(tmp_path: Path) -> None:
    transport = InMemoryTransport()
    callback = IsentropeCallback(config={"task": "a line"}, transport=transport)
    trainer(tmp_path, [callback], run_name="fit").train()
    assert callback.probe is not None
    assert callback.probe.config.name == "fit"
    assert not [message for message in transport.messages if isinstance(message, RunStarted)]
    assert [
        message.status for message in transport.messages if isinstance(message, RunFinished)
    ] == ["finished"]


def run_ends(transport: InMemoryTransport) -> list[RunFinished]:
    return [message for message in transport.messages if isinstance(message, RunFinished)]


def test_a_training_begun_anew_ends_the_run_that_failed_before(tmp_path: Path) -> None:
    first, second = InMemoryTransport(), InMemoryTransport()
    callback = IsentropeCallback(transport=first)
    failing = trainer(tmp_path, [])
    failing.add_callback(callback)
    failing.model.fails_at = 3
    with pytest.raises(RuntimeError):
        failing.train()
    assert run_ends(first) == []
    callback._transport = second
    failing.train()
    assert [one.status for one in run_ends(first)] == ["failed"]
    assert [report.step for report in reports(first)] == [1, 2]
    assert [report.step for report in reports(second)] == [1, 2, 3]
    assert [one.status for one in run_ends(second)] == ["finished"]


def test_one_of_several_ranks_reports_a_failed_trainings_open_step_neither_then_nor_later() -> None:
    # The other ranks may not be there to merge it with.
    first, second = InMemoryTransport(), InMemoryTransport()
    state, control = TrainerState(global_step=7), TrainerControl()
    args: Any = SimpleNamespace(
        world_size=2,
        run_name="fit",
        to_sanitized_dict=dict,
        output_dir="nowhere",
        resume_from_checkpoint=None,
    )
    callback = IsentropeCallback(transport=first)
    callback.on_train_begin(args, state, control)
    callback.on_step_end(args, state, control)
    callback._transport = second
    callback.on_train_begin(args, state, control)
    callback.on_step_begin(args, state, control)
    assert reports(first) == reports(second) == []
    assert [one.status for one in run_ends(first)] == ["failed"]
    callback.finish()


def test_report_to_takes_isentrope_once_registered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        integration_utils,
        "INTEGRATION_TO_CALLBACK",
        dict(integration_utils.INTEGRATION_TO_CALLBACK),
    )
    monkeypatch.setenv("ISENTROPE_MODE", "disabled")
    # Importing it, at the top of this file, has registered nothing.
    assert "isentrope" not in integration_utils.INTEGRATION_TO_CALLBACK
    register()
    register()
    trained = trainer(tmp_path, [], report_to="isentrope")
    assert (
        sum(
            isinstance(callback, IsentropeCallback)
            for callback in trained.callback_handler.callbacks
        )
        == 1
    )
    trained.train()
