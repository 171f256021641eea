import pickle
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import isentrope
from isentrope_papers.executors import LocalProcesses, RayCluster
from isentrope_papers.fresh import FRESH_CHANGE, FRESH_ERROR
from isentrope_papers.runs import NotReported, RunFolder, make_run
from isentrope_papers.settings import Plan, RunSettings
from isentrope_trainer.settings import LossConfig, PolicyConfig, TaskConfig
from tests.ray_node import started

TinyRun = Callable[[int], RunSettings]
REPEATABLE = ("settings.json", "series.npz")


def test_equal_settings_have_equal_keys() -> None:
    plan = Plan(seeds=(0, 1))
    clip = {"method": "clip_v", "mu_low": 1.0, "mu_high": 1.0}
    assert plan.run(clip).key == plan.run(isentrope.Control.from_document(clip)).key
    assert plan.run(loss=LossConfig()).key == plan.run().key
    keys = {
        plan.run().key,
        plan.run(clip).key,
        plan.run(steps=7).key,
        plan.run().replace_seed(1).key,
    }
    assert len(keys) == 4


def test_a_run_is_named_by_what_is_not_usual() -> None:
    plan = Plan(seeds=(0,))
    run = plan.run(
        {"method": "clip_cov", "parameters": {"ratio": 0.1}},
        task=TaskConfig(name="jugs"),
        loss=LossConfig(clip_high=0.3),
        steps=8,
        updates_per_batch=4,
    )
    assert (
        run.name_without_seed
        == "clip_cov ratio=0.1 task.name=jugs loss.clip_high=0.3 updates_per_batch=4"
    )


def test_a_run_is_made_bit_for_bit_again(tiny_run: TinyRun) -> None:
    first, second = make_run(tiny_run(0)), make_run(tiny_run(0))
    assert [first[name] == second[name] for name in REPEATABLE] == [True] * len(REPEATABLE)


def test_fresh_completions_judge_a_run_and_leave_it_alone(
    tiny_run: TinyRun, tmp_path: Path
) -> None:
    folder, settings = RunFolder(tmp_path), tiny_run(0)
    training = replace(settings.training, loss=LossConfig(entropy_coefficient=1.0))
    settings = replace(settings, training=training)
    judged = replace(settings, fresh=16)
    plain, beside = (folder.keep(one, make_run(one)) for one in (settings, judged))
    for name in plain.names:
        np.testing.assert_array_equal(plain.series(name), beside.series(name), err_msg=name)
    changes, entropies = beside.series(FRESH_CHANGE), beside.series("entropy/mean")
    errors = beside.series(FRESH_ERROR)
    # Both are of the same policies: fresh completions, and those of the next batch.
    assert np.isfinite(changes).all()
    assert np.abs(changes).max() < 0.2 * entropies.max()
    assert 0 < errors.min() <= errors.max() < np.abs(changes).max()


def test_a_kept_run_gives_its_series(tiny_run: TinyRun, tmp_path: Path) -> None:
    settings, folder = tiny_run(0), RunFolder(tmp_path)
    assert folder.find(settings) is None
    folder.keep(settings, make_run(settings))
    run = folder.find(settings)
    assert run is not None
    assert run.steps.tolist() == [1, 2, 3]
    assert np.isfinite(run.series("entropy/mean")).all()
    assert run.end("entropy/mean", 1) == run.series("entropy/mean")[-1]
    assert not any(name.startswith(("probe/", "time/")) for name in run.names)
    with pytest.raises(NotReported):
        run.series("eval/avg_at_k_of_nothing")


def test_a_half_written_run_is_not_found(
    tiny_run: TinyRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, files = RunFolder(tmp_path / "runs"), make_run(tiny_run(0))

    def interrupted(path: Path, content: bytes) -> int:
        raise KeyboardInterrupt

    with monkeypatch.context() as broken:
        broken.setattr(Path, "write_bytes", interrupted)
        with pytest.raises(KeyboardInterrupt):
            folder.keep(tiny_run(0), files)
    assert folder.find(tiny_run(0)) is None
    assert list((tmp_path / "runs").iterdir()) == []


@pytest.mark.slow
def test_a_failed_run_has_its_reason_and_the_others_are_made(tiny_run: TinyRun) -> None:
    # An error of transformers' own kind, which can't be unpickled.
    broken, sound = (
        replace(tiny_run(1), policy=PolicyConfig(hidden_size=32, attention_heads=3)),
        tiny_run(0),
    )
    outcomes = {one.settings.key: one for one in LocalProcesses(1).make([broken, sound])}
    assert outcomes[broken.key].files is None
    assert "attention heads" in outcomes[broken.key].failure
    assert outcomes[sound.key].files is not None


@pytest.mark.slow
@pytest.mark.long
def test_ray_and_processes_make_the_same_bytes(tiny_run: TinyRun) -> None:
    executors = LocalProcesses(1), started(lambda: RayCluster("local", 1))
    (first,), (second,) = (
        [outcome.files for outcome in one.make([tiny_run(0)])] for one in executors
    )
    assert first is not None
    assert second is not None
    assert all(first[name] == second[name] for name in REPEATABLE)


@pytest.mark.slow
def test_an_interrupted_pool_begins_no_other_run(tiny_run: TinyRun, tmp_path: Path) -> None:
    script = tmp_path / "interrupted.py"
    script.write_text(
        "import os, pickle, signal, sys, threading\n"
        "from pathlib import Path\n"
        "from isentrope_papers.executors import LocalProcesses\n"
        "if __name__ == '__main__':\n"
        "    wanted = pickle.loads(Path(sys.argv[1]).read_bytes())\n"
        "    threading.Timer(8, os.kill, (os.getpid(), signal.SIGINT)).start()\n"
        "    list(LocalProcesses(1).make(wanted))\n"
    )
    endless = [
        replace(one, training=replace(one.training, steps=10**6)) for one in map(tiny_run, range(3))
    ]
    (tmp_path / "wanted").write_bytes(pickle.dumps(endless))
    command = [sys.executable, str(script), str(tmp_path / "wanted")]
    ended = subprocess.run(
        command, capture_output=True, text=True, timeout=120, check=False, preexec_fn=_ctrl_c_works
    )
    assert "KeyboardInterrupt" in ended.stderr


def _ctrl_c_works() -> None:
    # A shell starts what is in the background with SIGINT ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
