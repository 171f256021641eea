"""Two processes make the update that one process makes of their whole batch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from isentrope_trainer.training_state import Ranks
from isentrope_wire.errors import ConfigurationError
from tests.trainer.two_ranks import CONFIG, update_from_share


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_two_processes_make_the_update_of_one(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    torchrun = (
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
    )
    command = (*torchrun, "-m", "tests.trainer.two_ranks", str(tmp_path))
    root = Path(__file__).parents[2]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=300, check=False, cwd=root
    )
    assert done.returncode == 0, done.stderr
    first, second = (torch.load(tmp_path / f"rank-{rank}-of-2.pt") for rank in range(2))

    alone = update_from_share(Ranks())
    assert torch.equal(first["gradient"], second["gradient"])
    torch.testing.assert_close(first["gradient"], alone["gradient"], atol=1e-6, rtol=1e-4)
    assert [len(rank["reports"]) for rank in (first, second)] == [1, 0]
    (together,), (whole,) = first["reports"], alone["reports"]
    for name in (
        "reward/mean",
        "entropy/mean",
        "entropy/unit_predicted_change",
        "train/loss",
        "train/grad_norm",
    ):
        assert together[name] == pytest.approx(whole[name], rel=1e-3, abs=1e-6), name

    assert first["steps"] == second["steps"] == [1, 2]
    assert [len(rank["run_reports"]) for rank in (first, second)] == [CONFIG.steps, 0]
    checkpoints = [
        torch.load(tmp_path / "checkpoints" / "step-000002" / f"rank-{rank}.pt")
        for rank in range(2)
    ]
    weights = [
        torch.cat([w.flatten() for w in saved["state"]["model"].values()]) for saved in checkpoints
    ]
    assert torch.equal(*weights)
    assert not torch.equal(
        checkpoints[0]["state"]["generator"], checkpoints[1]["state"]["generator"]
    )


def test_prompts_are_shared_out_evenly_or_not_at_all() -> None:
    ranks = Ranks()
    ranks.rank, ranks.size = 1, 2
    assert list(ranks.share(6)) == [3, 4, 5]
    with pytest.raises(ConfigurationError, match=r"\b2\b.*\b7\b"):
        ranks.share(7)
