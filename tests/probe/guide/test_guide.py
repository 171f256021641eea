"""Every example in the guide runs as it stands there, and its reports say what the guide says they
do."""

from __future__ import annotations

import os
import re
import runpy
from pathlib import Path
from typing import Any

import pytest
import torch

from isentrope.transport.spool_folder import find_spool_folders
from isentrope_wire.reports import RunFinished, StepReport
from tests.probe.ranks.gang import run_ranks
from tests.probe.transport.fake_telemetry import on_disk

GUIDE = (Path(__file__).parents[3] / "docs" / "attach.md").read_text(encoding="utf-8")
EXAMPLES = {
    re.search(r'name="(\w+)"', code).group(1): (code, bool(torchrun))  # type: ignore[union-attr]
    for torchrun, code in re.findall(r"```python( torchrun)?\n(.*?)```", GUIDE, flags=re.DOTALL)
}


DIFFS = re.findall(r"```diff\n(.*?)```", GUIDE, flags=re.DOTALL)
LOOP = """
from types import SimpleNamespace
import isentrope
import torch
from torch import nn

class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Embedding(24, 16), nn.Linear(16, 24))
    def forward(self, ids):
        return SimpleNamespace(logits=self.layers(ids))

def log_softmax_and_gather(logits, ids):
    return logits.log_softmax(-1).gather(-1, ids.unsqueeze(-1)).squeeze(-1)

def loss_of(logprobs, batch):
    ratio = (logprobs - batch.old).exp()
    return -(ratio * batch.advantages * batch.mask[:, 1:]).sum() / batch.mask[:, 1:].sum()

torch.manual_seed(0)
model, T, steps, tokenizer = Policy(), 0.8, 3, SimpleNamespace(decode=str)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
micro_batches = [
    SimpleNamespace(ids=torch.randint(24, (4, 7)), mask=torch.rand(4, 7) < 0.8) for _ in range(2)
]
for batch in micro_batches:
    batch.advantages = torch.randn(4, 1)
    logits = model(batch.ids).logits[:, :-1] / T
    batch.old = log_softmax_and_gather(logits, batch.ids[:, 1:]).detach()
batches = micro_batches * steps
"""
"""What the diffs of the guide leave to the reader."""
NANOCHAT = """
class GPT(nn.Module):
    def __init__(self, policy):
        super().__init__()
        self.policy = policy
    def forward(self, ids, targets=None, loss_reduction=""):
        logits = self.policy(ids).logits
        if targets is None:
            return logits
        return nn.functional.cross_entropy(
            logits.mT, targets, ignore_index=-1, reduction=loss_reduction
        )

model, num_steps = GPT(model), steps
def passes(step):
    for batch in micro_batches:
        targets = batch.ids[:, 1:].where(batch.mask[:, 1:], -1)
        yield batch.ids[:, :-1], targets, batch.advantages.squeeze(-1)
"""


def run_example(rank: int, script: str, home: str) -> None:
    """As `python train.py` or torchrun would, in this rank's own process."""
    # Which kernels score is another test's business; compiling them into a new home takes seconds.
    os.environ.update(ISENTROPE_HOME=home, ISENTROPE_MODE="offline", ISENTROPE_KERNELS="reference")
    runpy.run_path(script, run_name="__main__")


def reports_of(code: str, folder: Path, *, ranks: int = 1) -> list[list[StepReport]]:
    """Run an example in a process of its own, or in one per rank; the reports of each rank."""
    script, home = folder / "train.py", folder / "home"
    script.write_text(code, encoding="utf-8")
    run_ranks(ranks, run_example, str(script), str(home), group=False, timeout_seconds=120)
    return reported(home, ranks)


def reported(home: Path, ranks: int = 1) -> list[list[StepReport]]:
    """What each rank of the one run in a home has reported, without its end."""
    of_ranks = []
    spools = find_spool_folders(home)
    assert [spool.run().rank for spool in spools] == list(range(ranks))
    assert len({(spool.run().run_id, spool.run().incarnation) for spool in spools}) == 1
    for spool in spools:
        messages = on_disk(spool.path)
        assert isinstance(messages[-1], RunFinished)
        assert messages[-1].status == "finished"
        of_ranks.append([message for message in messages if isinstance(message, StepReport)])
    return of_ranks


def test_the_guide_has_the_examples_it_speaks_of() -> None:
    assert list(EXAMPLES) == ["padded", "packed", "hidden", "ranks", "accelerated"]
    assert [name for name, (_, torchrun) in EXAMPLES.items() if torchrun] == [
        "ranks",
        "accelerated",
    ]


@pytest.mark.parametrize(
    ("diff", "steps"), [(0, 6), (1, 6), (2, 3)], ids=["five lines", "a helper", "nanochat"]
)
def test_the_lines_that_a_diff_adds_leave_the_loop_as_it_was(
    diff: int, steps: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ISENTROPE_HOME", str(tmp_path))
    monkeypatch.setenv("ISENTROPE_MODE", "offline")
    lines, is_nanochat = DIFFS[diff].splitlines(), diff == 2
    added, removed = ([line for line in lines if line.startswith(sign)] for sign in "+-")
    assert {line[:1] for line in lines} <= {"+", "-", " ", ""}
    assert len(added) + 1 <= 8  # and the import
    assert len(removed) == is_nanochat
    weights: list[torch.Tensor] = []
    for left_out in (added, removed):
        chosen = [line for line in lines if line not in left_out]
        loop: dict[str, Any] = {}
        exec(LOOP + NANOCHAT * is_nanochat + "\n".join(line[2:] for line in chosen), loop)  # noqa: S102  # our own page
        weights.append(
            torch.cat([parameter.detach().flatten() for parameter in loop["model"].parameters()])
        )
    if is_nanochat:  # its loss is of the probe's log-probs
        torch.testing.assert_close(*weights, rtol=1e-4, atol=1e-6)
    else:
        assert torch.equal(*weights)
    (reports,) = reported(tmp_path)
    assert [report.step for report in reports] == list(range(1, steps + 1))
    for report in reports:
        assert report.labels["entropy/prediction_basis"] == "loss_gradient"
        assert "probe/failures" not in report.scalars
        assert ("entropy/observed_change" in report.scalars) == (diff == 0)


@pytest.mark.parametrize("name", ["padded", pytest.param("hidden", marks=pytest.mark.slow)])
def test_an_example_in_plain_torch_reports_every_step(name: str, tmp_path: Path) -> None:
    line = 'probe.log({"reward/mean": rewards.mean()})'
    counted = (
        "probe.log({'counted': sum(min((row + [END]).index(END) + 1, 12) for row in token_ids[:,"
        " PROMPT:].tolist())})"
    )
    code = EXAMPLES[name][0]
    if name == "padded":
        assert line in code
        code = code.replace(line, f"{line}; {counted}")
    (reports,) = reports_of(code, tmp_path)
    assert [report.step for report in reports] == list(range(1, 21))
    for report in reports:
        assert {"entropy/mean", "entropy/observed_change", "score/self_check_z"} <= set(
            report.scalars
        )
        assert "probe/failures" not in report.scalars
    assert "entropy/predicted_change" in reports[-1].scalars
    # No prompt, and nothing behind the end of a completion.
    tokens = [report.scalars["token/count"] for report in reports]
    assert tokens == (
        [report.scalars["counted"] for report in reports] if name == "padded" else [16 * 12] * 20
    )
    assert name == "hidden" or min(tokens) < 32 * 12


@pytest.mark.slow
def test_the_packed_example_counts_its_thresholds_from_the_first_pass(tmp_path: Path) -> None:
    (reports,) = reports_of(EXAMPLES["packed"][0], tmp_path)
    assert [report.step for report in reports] == list(range(1, 17))
    assert {report.labels["threshold/source"] for report in reports} == {"first_pass"}
    assert all(0 < report.scalars["clip/fraction"] < 1 for report in reports)
    ratios = [report.scalars["ratio/mean"] for report in reports]
    assert ratios[0] == pytest.approx(1.0, abs=1e-6)
    assert abs(ratios[1] - 1) > 1e-6
    assert {report.labels["entropy/prediction_basis"] for report in reports} == {"loss_gradient"}


@pytest.mark.slow
@pytest.mark.parametrize("model", ["DDP", "FSDP2"])
def test_the_example_for_several_ranks_reports_all_tokens_once(model: str, tmp_path: Path) -> None:
    code = EXAMPLES["ranks"][0]
    if model == "FSDP2":
        lines = re.findall(r"^    (.*fully_shard.*)$", GUIDE, flags=re.MULTILINE)
        assert len(lines) == 2
        code = code.replace("model = DistributedDataParallel(policy)", "\n".join(lines))
    first, second = reports_of(code, tmp_path, ranks=2)
    assert (
        [report.step for report in first]
        == [report.step for report in second]
        == list(range(1, 13))
    )
    assert {report.scalars["token/count"] for report in first} == {(8 + 5) * 12}
    assert all("entropy/observed_change" in report.scalars for report in first)
    assert {report.labels["entropy/prediction_basis"] for report in first} == {"loss_gradient"}
    assert [report.labels["threshold/source"] for report in first] == ["micro_batch"] + [
        "previous_step"
    ] * 11
    names = {name for report in second for name in report.scalars}
    assert {name for name in names if not name.startswith(("probe/", "system/", "time/"))} == {
        "reward/mean"
    }


@pytest.mark.slow
def test_the_example_for_accelerate_reports_all_tokens_once(tmp_path: Path) -> None:
    first, second = reports_of(EXAMPLES["accelerated"][0], tmp_path, ranks=2)
    assert (
        [report.step for report in first] == [report.step for report in second] == list(range(1, 9))
    )
    assert {report.scalars["token/count"] for report in first} == {2 * 2 * 8 * 12}
    assert {report.labels["entropy/prediction_basis"] for report in first} == {"loss_gradient"}
