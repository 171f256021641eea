"""verl itself, as PyPI has it, on the CPU: in an environment of its own, for it wants another
transformers than TRL does."""

from __future__ import annotations

import json
import os
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import isentrope
from isentrope_wire.control_answers import State
from tests.probe.frameworks.packages import python_of
from tests.system.running_server import RunningServer, free_port

HERE = Path(__file__).parent
CASES_TOGETHER = ["fsdp-lora", "ulysses", "ulysses-fsdp-fused", "fused"]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]


@pytest.fixture(scope="session")
def python() -> Path:
    return python_of("verl")


def run(python: Path, home: Path, *arguments: object, **variables: str) -> dict[str, Any]:
    """What a script of this folder prints as its results."""
    environment = (
        {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
        | {
            "ISENTROPE_HOME": str(home),
            "ISENTROPE_VERL": "1",
            "ISENTROPE_MODE": "offline",
            "ISENTROPE_KERNELS": "reference",
            "RANK": "0",
            "WORLD_SIZE": "1",
            "LOCAL_RANK": "0",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(free_port()),
            "PYTHONPATH": str(HERE),
            "VERL_PLATFORM": "cpu",
            "VERL_USE_EXTERNAL_MODULES": "verl_on_cpu",
            "CI": "1",
        }
        | variables
    )
    done = subprocess.run(
        [python, *map(str, arguments)], check=False, env=environment, capture_output=True, text=True
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULTS ")]
    assert lines, done.stderr[-4000:]
    alerts = [line for line in done.stderr.splitlines() if "isentrope: step" in line]
    return {**json.loads(lines[-1].removeprefix("RESULTS ")), "alerts": alerts}


@pytest.fixture(scope="module")
def alone(python: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("verl")
    return run(
        python,
        folder / "home",
        HERE / "updates.py",
        "alone",
        folder / "model",
        folder / "checkpoint",
    )


@pytest.fixture(scope="module")
def together(python: Path, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Of each of two ranks."""
    folder = tmp_path_factory.mktemp("together")
    shared = {"WORLD_SIZE": "2", "MASTER_PORT": str(free_port())}
    command = (HERE / "updates.py", "together", folder / "model")
    with ThreadPoolExecutor(2) as beside:
        running = [
            beside.submit(run, python, folder / rank, *command, RANK=rank, **shared)
            for rank in ("0", "1")
        ]
        return [one.result() for one in running]


@pytest.mark.parametrize("case", range(7))
def test_without_a_control_a_run_is_bit_identical(alone: dict[str, Any], case: int) -> None:
    without, attached = alone["pairs"][case]
    assert attached == without


def test_coupled_runs_are_bit_identical_and_predict_or_say_once_why_not(
    alone: dict[str, Any],
) -> None:
    *coupled, of_block, of_fsdp1 = alone["coupled"]
    for found, case in zip(coupled, (0, 2), strict=True):
        assert found["fingerprint"] == alone["pairs"][case][0]["fingerprint"]
        assert found["basis"] == ["loss_gradient", "entropy_gradient", "entropy_gradient"]
        assert found["predicted"][1:] == pytest.approx(found["observed"][1:], rel=0.5)
        assert found["refused"] == []
    assert of_block["fingerprint"] == coupled[0]["fingerprint"]
    for found, why in ((of_block, "found shards"), (of_fsdp1, "FSDP1")):
        assert found["basis"] == ["loss_gradient"] * 3
        assert [why in line for line in found["refused"]] == [True]


@pytest.mark.parametrize("case", CASES_TOGETHER)
def test_without_a_control_two_ranks_are_bit_identical(
    together: list[dict[str, Any]], case: str
) -> None:
    for of_rank in together:
        without, attached = of_rank[case]["pair"]
        assert attached == without
    assert (
        together[0][case]["pair"][0]["fingerprint"] == together[1][case]["pair"][0]["fingerprint"]
    )


def dropped(found: dict[str, Any]) -> list[int]:
    """Tokens that are clipped by the report, of those that the loss would have moved."""
    pairs = zip(found["clipped_positive"], found["clipped_negative"], strict=True)
    return [round(positive + negative) for positive, negative in pairs]


@pytest.mark.parametrize(
    ("kernels", "padding", "case"),
    [("clipped", 0, 0), ("clipped", 1, 2), ("fused", 0, 4), ("fused", 1, 5)],
)
def test_clipped_tokens_get_no_gradient_and_their_share_is_reported(
    alone: dict[str, Any], kernels: str, padding: int, case: int
) -> None:
    found, (plain, _) = alone[kernels][padding], alone["pairs"][case]
    assert found["losses"] == plain["losses"][:2]
    assert found["norms"][0] < plain["norms"][0]
    assert found["apart"] < 1e-5
    assert all(dropped(found))
    assert [found["moved_by_the_loss"] - count for count in dropped(found)] == found[
        "with_gradient"
    ]


@pytest.mark.parametrize("case", CASES_TOGETHER)
def test_two_ranks_report_what_both_clip(together: list[dict[str, Any]], case: str) -> None:
    found, other = (of_rank[case]["clipped"] for of_rank in together)
    with_gradient = [
        sum(counts) for counts in zip(found["with_gradient"], other["with_gradient"], strict=True)
    ]
    if "ulysses" in case:  # each has the loss of all tokens
        assert found["with_gradient"] == other["with_gradient"]
        with_gradient = found["with_gradient"]
    assert max(found["apart"], other["apart"]) < 1e-5
    assert all(dropped(found))
    assert [found["moved_by_the_loss"] - count for count in dropped(found)] == with_gradient
    assert all(found["observed"])


@pytest.mark.parametrize("case", ["ulysses", "ulysses-fsdp-fused"])
def test_sequences_split_over_ranks_are_measured_as_whole_ones(
    alone: dict[str, Any], together: list[dict[str, Any]], case: str
) -> None:
    whole, split = alone["clipped"][1], together[0][case]["clipped"]
    assert split["measured"] == pytest.approx(whole["measured"], rel=1e-4, abs=1e-7)
    assert split["norms"] == pytest.approx(whole["norms"], rel=1e-5)
    assert split["tokens"] == whole["tokens"]


@pytest.mark.parametrize("padding", [0, 1])
def test_fused_kernels_leave_the_scores_as_they_are(alone: dict[str, Any], padding: int) -> None:
    found, unfused = alone["fused"][padding], alone["unfused"][padding]
    assert len(unfused["measured"]) > 40
    assert found["measured"] == pytest.approx(unfused["measured"], rel=1e-4, abs=1e-7)
    assert found["with_gradient"] == unfused["with_gradient"]


def test_reports_have_what_verl_knows_of_a_step(alone: dict[str, Any]) -> None:
    found = alone["clipped"][0]
    assert found["tokens"] == [85] * 3
    assert found["reward"] == [3.5] * 3
    assert found["groups"] == [2] * 3
    assert all(found["observed"])
    assert {"isentrope/entropy/mean", "isentrope/clip/fraction"} <= set(found["shown"])


def test_a_checkpoint_of_verl_takes_the_probe_along(alone: dict[str, Any]) -> None:
    assert alone["resumed"] == 3


def test_verls_tracking_reports_to_isentrope(alone: dict[str, Any]) -> None:
    assert alone["tracked"] == {"reward": 0.5, "name": "tracked"}


@pytest.mark.parametrize("kind", ["ulysses", pytest.param("ray", marks=pytest.mark.long)])
def test_a_pushed_control_switches_two_ranks_together(
    python: Path, server: RunningServer, tmp_path: Path, kind: str
) -> None:
    """Ranks that share the sequences, and data-parallel ones in Ray workers."""
    run_id, model = f"verl-{kind}", tmp_path / "model"
    given = {
        name: value for name, value in server.environment.items() if name.startswith("ISENTROPE_")
    }
    given |= {"ISENTROPE_RUN_ID": run_id, "ISENTROPE_MODE": "online"}
    if kind == "ray":
        processes = [given]
    else:
        run(python, tmp_path, HERE / "tiny_actor.py", model, **given)
        processes = [{**given, "WORLD_SIZE": "2", "RANK": str(rank)} for rank in (0, 1)]
    client = isentrope.Client(server.url, server.token)
    with ThreadPoolExecutor(2) as beside:
        running = [
            beside.submit(run, python, tmp_path, HERE / "ranks.py", kind, model, **variables)
            for variables in processes
        ]
        pushed = False
        while not all(one.done() for one in running):
            if not pushed and any(found.id == run_id and found.step for found in client.runs()):
                client.set_control(
                    run_id, method="clip_v", mu_low=0.5, mu_high=0.5, scope="all", reason="test"
                )
                pushed = True
            time.sleep(0.2)
        results = [one.result() for one in running]
    if any("no_ray" in one for one in results):
        pytest.skip(f"Ray does not start here: {results[0]['no_ray']}")
    methods: list[list[str]] = [
        [method for one in of_update for method in one]
        for of_update in zip(*(one["methods"] for one in results), strict=True)
    ]
    assert pushed
    assert methods[0] == ["none"] * 2
    # Rank 0's alone, which Ray forwards to the driver: of the values, and of their gradient.
    lines = [line for one in results for line in one["alerts"]]
    alerts = [line for line in lines if ": Act:" in line]
    assert len(alerts) == 2
    for alert in alerts:
        assert "step 2: Act:" in alert
        assert alert.endswith(f"/runs/{run_id}")
    assert all(of_rank_0 == of_rank_1 for of_rank_0, of_rank_1 in methods)
    assert methods[-2:] == [["clip_v"] * 2] * 2
    assert len({end for one in results for end in one["fingerprints"]}) == 1
    first = methods.index(["clip_v"] * 2) + 1
    end = time.monotonic() + 30
    while (control := client.control(run_id)).state != State.APPLIED and time.monotonic() < end:
        time.sleep(0.2)
    assert (control.state, control.applied_step) == (State.APPLIED, first)
