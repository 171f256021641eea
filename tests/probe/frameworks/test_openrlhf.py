"""OpenRLHF's own actor worker and PPO trainer on the real DeepSpeed, two ranks on the CPU, and one
in a Ray worker."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import isentrope
from isentrope.integrations import openrlhf
from isentrope.integrations.attachment import Versions
from isentrope_wire.control_answers import State
from isentrope_wire.errors import ConfigurationError
from tests.probe.frameworks.openrlhf_actor import (
    PUSHED_IN,
    SAMPLES,
    UPDATES,
    Run,
    save_model,
    settings,
    train,
)
from tests.probe.frameworks.packages import ROOT, folder_of
from tests.probe.ranks.gang import one_after_another, run_ranks
from tests.probe.tiny_loop import CLIP
from tests.system.running_server import RunningServer, wait_for

SET_UPS: dict[str, dict[str, Any]] = {
    "padded": {},
    "packed": {"ds__packing_samples": True},
    "dynamic": {"train__dynamic_batch_enable": True},
}
CALLS = [
    *(("alone", changed) for changed in SET_UPS.values()),
    *(("watched" if changed else "saved", changed) for changed in SET_UPS.values()),
    ("pushed", {}),
    ("coupled", {}),
    ("watched", {"ckpt__load_enable": True}),
]


@pytest.fixture(scope="module")
def of_ranks(tmp_path_factory: pytest.TempPathFactory) -> list[list[Run]]:
    folder = tmp_path_factory.mktemp("openrlhf")
    packages = str(folder_of("openrlhf"))
    save_model(f"{folder}/model")
    calls = [(packages, str(folder), mode, changed) for mode, changed in CALLS]
    return run_ranks(2, one_after_another, train, calls, timeout_seconds=1100)


real = [pytest.mark.slow, pytest.mark.timeout(1200)]


class TestTwoRanks:
    pytestmark = real

    @pytest.mark.parametrize("number", range(len(SET_UPS)), ids=SET_UPS)
    def test_a_run_without_control_is_bit_identical(
        self, of_ranks: list[list[Run]], number: int
    ) -> None:
        for runs in of_ranks:
            alone, watched = runs[number], runs[number + len(SET_UPS)]
            assert torch.equal(alone.weights, watched.weights)
            assert alone.losses == watched.losses
            assert watched.furthest < 1e-5
            assert watched.gated == [0] * UPDATES

    @pytest.mark.parametrize("number", range(len(SET_UPS)), ids=SET_UPS)
    def test_each_update_is_one_report_of_all_ranks(
        self, of_ranks: list[list[Run]], number: int
    ) -> None:
        runs = [of_rank[number + len(SET_UPS)] for of_rank in of_ranks]
        found = runs[0].reports
        assert [report.step for report in found] == list(range(1, UPDATES + 1))
        means = [
            sum(of_update) / len(runs)
            for of_update in zip(*(run.rewards for run in runs), strict=True)
        ]
        assert [report.scalars["reward/mean"] for report in found] == pytest.approx(means)
        for report in found:
            lengths = report.scalars["completion/length_mean"] * 2 * SAMPLES
            assert lengths == pytest.approx(report.scalars["token/count"])
            assert report.scalars["entropy/observed_change"] != 0
            assert "completion/truncated_fraction" in report.scalars
            assert report.labels["entropy/prediction_basis"] == "loss_gradient"
            assert report.labels["calibration/momentum"] == "0.8"

    def test_packed_samples_are_scored_as_padded_ones(self, of_ranks: list[list[Run]]) -> None:
        padded, packed = (
            of_ranks[0][number + len(SET_UPS)].reports[0].scalars for number in range(2)
        )
        assert packed["token/count"] == padded["token/count"]
        assert packed["entropy/mean"] == pytest.approx(padded["entropy/mean"], rel=1e-2)

    def test_a_control_pushed_live_gates_as_reported(self, of_ranks: list[list[Run]]) -> None:
        alone, pushed = of_ranks[0][0], [runs[2 * len(SET_UPS)] for runs in of_ranks]
        assert not torch.equal(alone.weights, pushed[0].weights)
        assert torch.equal(pushed[0].weights, pushed[1].weights)
        assert (
            alone.losses[: PUSHED_IN + 2] == pushed[0].losses[: PUSHED_IN + 2]
        )  # values stay, gradients go
        for run in pushed:
            methods = [report.labels["control/method"] for report in run.reports]
            assert methods == ["none"] * (PUSHED_IN + 1) + [str(CLIP.method)] * (
                UPDATES - PUSHED_IN - 1
            )
        last = pushed[0].reports[-1].scalars
        gated = sum(run.gated[-1] for run in pushed)
        assert 0 < gated == pytest.approx(last["clip/fraction"] * last["token/count"])

    def test_a_coupled_prediction_is_refused_once_and_the_run_is_the_same(
        self, of_ranks: list[list[Run]]
    ) -> None:
        alone, coupled = of_ranks[0][0], of_ranks[0][2 * len(SET_UPS) + 1]
        assert torch.equal(alone.weights, coupled.weights)
        assert ["DeepSpeed" in line for line in coupled.refused] == [True]
        assert {report.labels["entropy/prediction_basis"] for report in coupled.reports} == {
            "loss_gradient"
        }

    def test_a_checkpoint_continues_the_steps(self, of_ranks: list[list[Run]]) -> None:
        for runs in of_ranks:
            assert [report.step for report in runs[-1].reports] == list(
                range(UPDATES + 1, 2 * UPDATES + 1)
            )


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(1200)
def test_the_command_puts_a_probe_into_a_ray_worker(server: RunningServer, tmp_path: Path) -> None:
    """The command's module is a stand-in without rollouts, for those need vLLM; Ray, class and
    worker are the real ones."""
    packages = folder_of("openrlhf")
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("PYTEST")
    }
    environment |= {
        name: value for name, value in server.environment.items() if name.startswith("ISENTROPE_")
    }
    environment |= {
        "ISENTROPE_RUN_ID": "openrlhf-ray",
        "ISENTROPE_MODE": "online",
        "PYTHONPATH": str(ROOT),
    }
    command = [sys.executable, "-m", "tests.probe.frameworks.openrlhf_command", packages, tmp_path]
    done = subprocess.run(
        [str(word) for word in command],
        check=False,
        env=environment,
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULTS ")]
    assert lines, done.stderr[-4000:]
    assert json.loads(lines[-1].removeprefix("RESULTS ")) == State.APPLIED
    alerts = [line for line in (done.stdout + done.stderr).splitlines() if ": Act:" in line]
    assert alerts, done.stderr[
        -4000:
    ]  # of the update whose advantages are NaN; Ray forwards the worker's line
    assert alerts[0].endswith("/runs/openrlhf-ray")
    client = isentrope.Client(server.url, server.token)
    wait_for(
        lambda: client.run("openrlhf-ray").status == "finished" or None, 30, "The run has ended."
    )


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Versions, "check", lambda _: "0.11.2")


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("setting", ["ring_attn_size", "tensor_parallel_size"])
def test_split_sequences_and_layers_are_refused_before_the_model_is_loaded(setting: str) -> None:
    strategy = SimpleNamespace(args=settings("", 1, **{f"ds__{setting}": 2}))
    with pytest.raises(ConfigurationError, match=setting):
        openrlhf.WatchedPolicy().init_model_from_pretrained(strategy)
    openrlhf.check_supported(settings("", 1))


def test_another_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("isentrope.integrations.attachment.version", lambda _: "0.12.0")
    with pytest.raises(ConfigurationError, match=r"0\.12\.0"):
        openrlhf.main()


def test_settings_are_shown_as_plain_values() -> None:
    section = SimpleNamespace(adam=SimpleNamespace(lr=1e-2, betas=[0.8, 0.99]), group=object)
    assert openrlhf.plain(section) == {
        "adam": {"lr": 1e-2, "betas": [0.8, 0.99]},
        "group": str(object),
    }
