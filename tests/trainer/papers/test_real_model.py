"""The chapter of `isentrope reproduce --llm`, on a tiny model in the place of SmolLM2."""

from pathlib import Path

import numpy as np
import pytest

from isentrope_papers.beyond.real_model import (
    BASELINE,
    FOUR_UPDATES,
    KL_COV,
    LanguageModel,
)
from isentrope_papers.figure import Results
from isentrope_papers.report import judge
from isentrope_papers.runs import RunFolder, make_run
from isentrope_papers.settings import Plan
from isentrope_trainer import smollm2
from tests.trainer.models.test_local import save


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
