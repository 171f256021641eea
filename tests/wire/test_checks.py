"""Each check finds its failure in a series made by hand, and nothing in a run that learns."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest

from isentrope_wire.diagnosis.checks import CHECKS, cure_of, missing, reason_for_health
from isentrope_wire.diagnosis.measures import (
    HELD_OUT,
    PART,
    POSITION,
    READ,
    Measures,
    quantity_of,
)
from isentrope_wire.diagnosis.rules.rewards import decline
from isentrope_wire.diagnosis.traces import Trace

Row = dict[str, float]
STEPS = 200


def healthy(step: int) -> Row:
    """A run that learns: by another seed in each step, so that rows can be changed one by one."""
    noise = random.Random(step)
    reward = 0.2 + 0.5 * step / STEPS
    return {
        "reward/mean": reward + noise.gauss(0, 0.01),
        "reward/std": 0.4 + noise.gauss(0, 0.01),
        "advantage/zero_group_fraction": 0.1 + noise.gauss(0, 0.01),
        "entropy/mean": math.exp(-step / 500) + noise.gauss(0, 0.005),
        "kl/reference": 0.001 * step + abs(noise.gauss(0, 0.002)),
        "completion/length_mean": 200 + 0.2 * step + noise.gauss(0, 4),
        "completion/truncated_fraction": abs(noise.gauss(0, 0.004)),
        "completion/repetition": 0.02 + noise.gauss(0, 0.002),
        "ratio/clipped": 0.05 + noise.gauss(0, 0.004),
        "train/grad_norm": math.exp(noise.gauss(0, 0.2)),
        "value/explained_variance": 0.3 + 0.2 * step / STEPS + noise.gauss(0, 0.02),
        "time/step_seconds": 10 + noise.gauss(0, 0.5),
        "rewards/right/mean": reward + noise.gauss(0, 0.01),
        "rewards/format/mean": min(0.3 + step / 40, 0.98) + noise.gauss(0, 0.01),
        **({"eval/accuracy": reward - 0.03 + noise.gauss(0, 0.01)} if step % 20 == 0 else {}),
    }


def found(row_of: Callable[[int], Row], steps: int = STEPS) -> dict[str, tuple[int, str]]:
    """Kind -> first step and cause of what the checks find in a run."""
    measures, first = Measures(), dict[str, tuple[int, str]]()
    for step in range(steps):
        measures.add(healthy(step) | row_of(step))
        for check in CHECKS:
            finding = check.find(measures)
            if finding is not None:
                first.setdefault(check.kind, (step, finding.cause))
                assert finding.message.endswith(".")
                assert 0.5 < finding.certainty <= 0.999
    return first


def after(step: int, value: float, early: float, pace: float = 0.0) -> float:
    """`early` up to step 100, then `value` and `pace` a step."""
    return early if step < 100 else value + pace * (step - 100)


@pytest.mark.parametrize(
    ("row_of", "kind", "cause", "first", "last"),
    [
        pytest.param(
            lambda step: {
                "advantage/zero_group_fraction": after(step, 0.8, 0.1),
                "reward/mean": after(step, 0.97, 0.7),
            },
            "zero_advantage", "too_easy", 100, 115, id="groups all right",
        ),
        pytest.param(
            lambda step: {"advantage/zero_group_fraction": 0.8, "reward/mean": 0.03},
            "zero_advantage", "too_hard", 0, 60, id="groups all wrong from the start",
        ),
        pytest.param(
            lambda step: {
                "advantage/zero_group_fraction": after(step, 0.9, 0.1),
                "group/identical": after(step, 0.9, 0.0),
            },
            "zero_advantage", "identical", 100, 115, id="groups of identical completions",
        ),
        pytest.param(
            lambda step: {
                "advantage/zero_group_fraction": after(step, 0.9, 0.1),
                "group/identical": after(step, 0.9, 0.0),
                "group/all_right": after(step, 0.85, 0.1),
                "group/all_wrong": after(step, 0.05, 0.0),
            },
            "zero_advantage", "too_easy", 100, 115, id="groups learnt by heart",
        ),
        pytest.param(
            lambda step: {
                "advantage/zero_group_fraction": after(step, 0.62, 0.1),
                "group/identical": after(step, 0.15, 0.0),
                "group/all_right": after(step, 0.12, 0.0),
                "group/all_wrong": 0.03,
            },
            "zero_advantage", "same_score", 100, 115, id="groups of one graded reward",
        ),
        pytest.param(
            lambda step: {
                "advantage/zero_group_fraction": after(step, 0.75, 0.1),
                "reward/mean": after(step, 0.55, 0.5) + 0.01 * math.sin(step),
            },
            "zero_advantage", "", 100, 115, id="groups of which no place is measured",
        ),
        pytest.param(
            lambda step: {"sampler/kl_k3": 0.15 + 0.01 * math.sin(step)},
            "kl", "sampler", 39, 45, id="tokens of another policy from the start",
        ),
        pytest.param(
            lambda step: {"ratio/clipped": 0.18, "reward/mean": 0.3 + 0.01 * math.sin(step)},
            "clip_saturation", "", 19, 25, id="a share that is cut while the reward stands",
        ),
        pytest.param(
            lambda step: {"reward/mean": 0.2 + 0.05 * math.sin(3 * step)},
            "plateau", "", 99, 125, id="a reward that never rose",
        ),
        pytest.param(
            lambda step: {
                "advantage/zero_group_fraction": min(step / 40, 0.8),
                "group/all_right": min(step / 40, 0.8),
                "group/all_wrong": 0.0,
                "rewards/format/mean": min(0.2 + step / 25, 0.98),
                "rewards/right/mean": 0.1,
            },
            "reward_parts", "", 59, 66, id="a part that saturates the groups",
        ),
        pytest.param(
            lambda step: {
                "solve_all/all": after(step, 0.1, 0.1),
                "solve_none/all": after(step, 0.7, 0.2),
                "reward/mean": 0.3,
            },
            "zero_advantage", "too_hard", 100, 115, id="shares of groups as prime-rl names them",
        ),
        pytest.param(
            lambda step: {"completion/truncated_fraction": after(step, 0.0, 0.0, 0.004)},
            "truncation", "", 105, 135, id="completions that are cut more and more",
        ),
        pytest.param(
            lambda step: {"completion/truncated_fraction": 0.4},
            "truncation", "", 0, 30, id="completions that are cut from the start",
        ),
        pytest.param(
            lambda step: {
                "completion/length_mean": 200.0 + 2 * step,
                **({"eval/accuracy": 0.2} if step % 20 == 0 else {}),
            },
            "length", "", 60, 110, id="length that no held-out score follows",
        ),
        pytest.param(
            lambda step: {
                "completion/length_mean": after(step, 200, 200, 3.0),
                "completion/reward_of_length": 0.8,
            },
            "length", "", 110, 150, id="length that the reward pays for",
        ),
        pytest.param(
            lambda step: {"completion/length_mean": after(step, 20, 200), "reward/mean": 0.3},
            "length", "short", 100, 115, id="completions that shrink",
        ),
        pytest.param(
            lambda step: {"completion/repetition": after(step, 0.02, 0.02, 0.01)},
            "repetition", "", 105, 130, id="completions that run in circles",
        ),
        pytest.param(
            lambda step: {"eval/accuracy": 0.3 - 0.0005 * step} if step % 20 == 0 else {},
            "reward_hacking", "", 80, 150, id="held-out score that falls",
        ),
        pytest.param(
            lambda step: {"rewards/right/mean": 0.1},
            "reward_parts", "", 95, 140, id="a format reward that takes all",
        ),
        pytest.param(
            lambda step: {
                "reward/mean": healthy(min(step, 80))["reward/mean"] + 0.001 * (step % 3)
            },
            "plateau", "", 110, 160, id="reward that stands",
        ),
        pytest.param(
            lambda step: {"kl/reference": 0.001 * step * math.exp(after(step, 0, 0, 0.05))},
            "kl", "reference", 105, 140, id="KL that explodes",
        ),
        pytest.param(
            lambda step: {
                f"kl_positional/{place}": after(step, 0.02 if place else 0.5, 0.02)
                for place in range(4)
            },
            "kl", "positions", 100, 115, id="KL on the first tokens",
        ),
        pytest.param(
            lambda step: {
                "ratio/clipped": after(step, 0.4, 0.05),
                "ratio/clipped_low": 0.02,
                "ratio/clipped_high": after(step, 0.38, 0.03),
            },
            "clip_saturation", "high", 100, 112, id="a clip that cuts much on the upper side",
        ),
        pytest.param(
            lambda step: {"train/grad_norm": 60.0} if step == 120 else {},
            "gradient", "spike", 120, 120, id="a gradient that jumps",
        ),
        pytest.param(
            lambda step: {"train/grad_norm": math.nan} if step == 50 else {},
            "gradient", "not_finite", 50, 50, id="a gradient that is NaN",
        ),
        pytest.param(
            lambda step: {"train/grad_norm": 0.0},
            "gradient", "zero", 19, 19, id="weights that are not trained",
        ),
        pytest.param(
            lambda step: {"train/grad_norm": math.exp(after(step, 0, 0, 0.05))},
            "gradient", "growing", 145, 175, id="a gradient that grows and stays large",
        ),
        pytest.param(
            lambda step: {"reward/mean": after(step, math.nan, 0.4)},
            "not_finite", "", 104, 104, id="a reward that is NaN from a step on",
        ),
        pytest.param(
            lambda step: {"reward/mean": math.inf} if step == 70 else {},
            "not_finite", "", 70, 70, id="one reward that is infinite",
        ),
        pytest.param(
            lambda step: {"reward/mean": 0.0, "advantage/zero_group_fraction": 0.1},
            "plateau", "constant", 19, 19, id="a reward that is one number",
        ),
        pytest.param(
            lambda step: {"advantage/zero_group_fraction": 1.0, "reward/mean": 0.3},
            "zero_advantage", "constant", 19, 25, id="a reward that pays all the same",
        ),
        pytest.param(
            lambda step: {"learning_rate": 0.0},
            "plateau", "rate", 19, 19, id="a learning rate of 0",
        ),
        pytest.param(
            lambda step: {"reward/mean": 0.5 - 0.002 * step + 0.01 * math.sin(7 * step)},
            "decline", "from_start", 19, 40, id="a reward that falls from the start on",
        ),
        pytest.param(
            lambda step: {"reward/mean": after(step, 0.05, healthy(step)["reward/mean"])},
            "decline", "lost", 100, 112, id="a reward that falls off a cliff",
        ),
        pytest.param(
            lambda step: {"reward/mean": 0.4 + 0.2 * math.sin(step / 10)},
            "decline", "lost", 19, 60, id="a reward that goes up and down",
        ),
        pytest.param(
            lambda step: {
                "advantage/zero_group_fraction": min(0.3 + 0.2 * step, 1.0),
                "reward/mean": max(0.2 - 0.05 * step, 0.0),
            },
            "zero_advantage", "lost", 19, 25, id="a policy that is lost within ten steps",
        ),
        pytest.param(
            lambda step: {
                "advantage/zero_group_fraction": 1.0,
                "reward/mean": 0.0,
                "completion/truncated_fraction": 1.0,
            },
            "zero_advantage", "cut", 19, 25, id="groups all wrong since they are cut",
        ),
        pytest.param(
            lambda step: {"kl/reference": -0.3 + 0.05 * math.sin(step)},
            "kl", "negative", 39, 45, id="a KL that is negative",
        ),
        pytest.param(
            lambda step: {"kl/reference": 0.4 + 0.02 * math.sin(step)},
            "kl", "stale_reference", 39, 45, id="a reference of another run",
        ),
        pytest.param(
            lambda step: {"completion/truncated_fraction": 1.0},
            "truncation", "never_ends", 19, 25, id="completions that never end",
        ),
        pytest.param(
            lambda step: {"critic/vf_loss": 0.1 * math.exp(after(step, 0, 0, 0.08))},
            "value", "loss", 120, 150, id="a value function whose loss explodes",
        ),
        pytest.param(
            lambda step: {
                "reward/mean": 0.3 + 0.01 * math.sin(step),
                **({"eval/accuracy": max(0.3 - 0.002 * step, 0.02)} if step % 20 == 0 else {}),
            },
            "reward_hacking", "score_falls", 99, 125, id="held-out score that falls alone",
        ),
        pytest.param(
            lambda step: {"train/grad_norm": after(step, 0.01, 1.0)},
            "gradient", "vanishing", 110, 120, id="a gradient that vanishes",
        ),
        pytest.param(
            lambda step: {"value/explained_variance": after(step, 0.4, 0.4, -0.01)},
            "value", "", 105, 130, id="a value function that diverges",
        ),
        pytest.param(
            lambda step: {"time/step_seconds": after(step, 10, 10, 0.1)},
            "throughput", "machine", 130, 160, id="steps that take longer",
        ),
        pytest.param(
            lambda step: {
                "time/step_seconds": after(step, 10, 10, 0.1),
                "completion/length_mean": after(step, 200, 200, 2.0),
            },
            "throughput", "length", 130, 160, id="steps that take longer as completions grow",
        ),
    ],
)  # fmt: skip
def test_a_failure_is_found_soon_and_told_apart(
    row_of: Callable[[int], Row], kind: str, cause: str, first: int, last: int
) -> None:
    step, named = found(row_of)[kind]
    assert named == cause
    assert first <= step <= last


def test_nothing_is_found_in_a_run_that_learns() -> None:
    assert found(lambda step: {}) == {}


@pytest.mark.parametrize(("clipped", "cause"), [(0.25, "braked"), (0.0, "")])
def test_a_hold_is_the_first_brake_named(clipped: float, cause: str) -> None:
    measures = Measures()
    for step in range(160):
        reward = healthy(min(step, 80))["reward/mean"] + 0.001 * (step % 3)
        measures.add(healthy(step) | {"reward/mean": reward, "clip/fraction": clipped})
    [finding] = [check.find(measures) for check in CHECKS if check.kind == "plateau"]
    assert finding is not None
    assert finding.cause == cause
    first = "What may brake: the active control or hold clips 25 % of the tokens"
    assert (first in finding.message.replace("\u00a0", " ")) == bool(clipped)
    assert ("brakes" in cure_of("plateau", finding.cause)) == bool(clipped)


def test_a_run_that_has_learnt_all_stands_on_no_plateau() -> None:
    def solved(step: int) -> Row:
        paid = 0.97 - 0.7 * math.exp(-step / 20) + 0.002 * math.sin(step)
        return {"reward/mean": paid, "rewards/right/mean": paid}

    assert found(solved) == {}


@pytest.mark.parametrize("unit", [1e-3, 1.0, 1e3])
@pytest.mark.parametrize("failure", ["", "format"])
def test_findings_do_not_depend_on_the_rewards_unit(unit: float, failure: str) -> None:
    def row_of(step: int) -> Row:
        row = healthy(step)
        if failure:
            row["rewards/right/mean"] = 0.1
        return {name: unit * row[name] for name in row if name.startswith(("reward", "eval"))}

    assert {*found(row_of)} == ({"reward_parts"} if failure else set())


def test_rewards_that_scatter_about_a_level_are_no_decline() -> None:
    for seed in range(20):
        noise, measures = random.Random(seed), Measures()
        for _ in range(STEPS):
            right = sum(noise.random() < 0.2 for _ in range(64))
            measures.add({"reward": right / 64})
            assert decline(measures) is None


def test_a_constant_run_of_few_steps_is_not_judged() -> None:
    assert found(lambda step: dict.fromkeys(healthy(step), 0.5), steps=15) == {}


def test_what_is_not_measured_is_listed_with_its_need() -> None:
    measures = Measures()
    measures.add({"reward": 0.3, "kl": 0.1})
    unjudged = {check.kind: check.needs for check in missing(measures)}
    assert {"plateau", "kl"}.isdisjoint(unjudged)
    assert "eval" in unjudged["reward_hacking"]
    assert "clip_ratio/region_mean" in unjudged["clip_saturation"]


def test_what_the_checks_read_is_kept() -> None:
    assert {metric for check in CHECKS for names in check.reads for metric in names} <= {*READ}


def test_every_cause_has_something_to_do() -> None:
    for check in CHECKS:
        for cause in ("", *check.cures):
            assert cure_of(check.kind, cause).endswith(".")


def test_health_says_why() -> None:
    measures = Measures()
    for step in range(STEPS):
        measures.add(healthy(step))
    reason = reason_for_health(measures)
    assert reason.startswith("The reward still rises (+0.1")
    assert "90 % of the groups teach" in reason
    assert 300 < int(reason.split(" would last ")[1].split()[0]) < 400  # 500 ln 2


@pytest.mark.parametrize(
    ("name", "quantity"),
    [
        ("entropy", "entropy/mean"),
        ("train/entropy", "entropy/mean"),
        ("actor/entropy", "entropy/mean"),
        ("frac_reward_zero_std", "advantage/zero_group_fraction"),
        ("completions/clipped_ratio", "completion/truncated_fraction"),
        ("response_length/clip_ratio", "completion/truncated_fraction"),
        ("rollout/truncated_ratio", "completion/truncated_fraction"),
        ("is_truncated/all/mean", "completion/truncated_fraction"),
        ("rollout/repetition_frac", "completion/repetition"),
        ("actor/ppo_kl", "kl/old"),
        ("actor/pg_clipfrac", "ratio/clipped"),
        ("clip_ratio/region_mean", "ratio/clipped"),
        ("critic/vf_explained_var", "value/explained_variance"),
        ("timing_s/step", "time/step_seconds"),
        ("rewards/format_reward/mean", PART + "format_reward"),
        ("rewards/format_reward/std", None),
        ("reward/mean", "reward/mean"),
        ("eval_reward", HELD_OUT + "reward"),
        ("eval/avg_at_k", HELD_OUT + "avg_at_k"),
        ("val-core/gsm8k/acc/mean@8", HELD_OUT + "gsm8k/acc/mean@8"),
        ("val-core/gsm8k/acc/std@8", None),
        ("eval/aime24", HELD_OUT + "aime24"),
        ("eval_runtime", None),
        ("eval/entropy", None),
        ("eval_completions/mean_length", None),
        ("kl_positional/0", POSITION + "0"),
        ("epoch", None),
    ],
)
def test_logged_names_are_understood(name: str, quantity: str | None) -> None:
    assert quantity_of(name) == quantity


def test_a_trace_of_a_long_run_keeps_its_line() -> None:
    trace = Trace()
    for step in range(10_000):
        trace.add(step, 3 + 0.001 * step)
    assert len(trace.blocks) <= 64
    assert sum(block.count for block in trace.blocks) == 10_000
    change = trace.change(5_000)
    assert change is not None
    assert change.value == pytest.approx(0.001 * 5_000, rel=0.03)
    assert (trace.start, trace.level) == pytest.approx((3.0045, 12.9945))


def test_the_scatter_of_a_trace_is_that_of_its_values() -> None:
    trace, noise = Trace(), random.Random(0)
    for step in range(2_000):
        trace.add(step, noise.gauss(0, 0.3))
    assert trace.noise == pytest.approx(0.3, rel=0.3)
    change = trace.change(1_000)
    assert change is not None
    assert abs(change.value) < 4 * change.error
    assert change.error == pytest.approx(0.3 * math.sqrt(12 / 1_000), rel=0.5)
