"""The chapter of `isentrope reproduce --llm`, on a tiny model in the place of SmolLM2."""

from pathlib import Path

import numpy as np
import pytest

from isentrope_papers.beyond.real_model import (
    BASELINE,
    FOUR_UPDATES,
    HELD,
    KL_COV,
    LanguageModel,
    MildLanguageModel,
    deviations,
    held_level,
)
from isentrope_papers.figure import Results
from isentrope_papers.report import judge
from isentrope_papers.runs import Run, RunFolder, make_run
from isentrope_papers.settings import Plan
from isentrope_trainer import smollm2
from tests.trainer.models.test_local import save


def test_a_hold_is_judged_beside_its_batches_scatter(monkeypatch: pytest.MonkeyPatch) -> None:
    # 2 nats early, then 20 % above and below a target of 1.2 in turn, a tenth above it on average.
    entropies = np.full(100, 2.0)
    entropies[40::2], entropies[41::2] = 1.3 * 1.2, 0.9 * 1.2
    run = Run(Plan(seeds=(0,)).language_model(), Path())
    monkeypatch.setattr(run, "series", lambda name: entropies)
    assert held_level(run) == pytest.approx(1.2)
    judged = deviations(run, held_level(run))
    assert judged.deviation == pytest.approx(0.2)
    assert judged.deviation_of_ten == pytest.approx(0.1)
    assert judged.scatter == pytest.approx(0.2 / 1.1, rel=0.15)


@pytest.mark.slow
def test_runs_under_trl_are_judged_and_the_same_again(home: Path, tmp_path: Path) -> None:
    smollm2.folder().parent.mkdir(parents=True)
    save(smollm2.folder(), "llama")
    plan, folder = Plan(seeds=(0,), quick=True), RunFolder(tmp_path / "runs")
    arms = LanguageModel().arms(plan)
    runs = {
        label: folder.keep(arms[label], make_run(arms[label]))
        for label in (BASELINE, FOUR_UPDATES, KL_COV)
    }
    held = MildLanguageModel().arms(plan)[HELD]
    assert held.replace_seed(0).seed == 101
    held_run = folder.keep(held, make_run(held))
    assert held_run.steps.tolist() == list(range(1, 9))
    assert runs[BASELINE].steps.tolist() == list(range(1, 9))
    # Of each update's completions, also where TRL logs the reward once for a batch.
    assert np.isfinite(runs[KL_COV].series("reward/mean")).all()
    # Where every ratio is 1 there is nothing to punish.
    penalties = runs[KL_COV].series("change/by_intervention")
    assert (penalties[::4] == 0).all()
    assert (penalties != 0).any()
    again = make_run(arms[KL_COV])
    assert again["series.npz"] == (runs[KL_COV].folder / "series.npz").read_bytes()
    results = Results(plan, {arms[label].key: run for label, run in runs.items()}, {})
    judged = judge(LanguageModel(), results, tmp_path)
    # Arms that were not run are left out.
    assert len(judged.checks) == 5
    assert (tmp_path / "reproduction" / "beyond-llm.svg").stat().st_size > 1000
