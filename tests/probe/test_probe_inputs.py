"""What the probe is given by mistake, it names."""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import enum
import functools
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import isentrope
from isentrope.run_config import jsonable
from isentrope_wire import reports as wire
from isentrope_wire.errors import ConfigurationError, InputError
from tests.probe.tiny_loop import TinyLoop, probe_and_transport, reports


def test_padding_may_hold_nan_from_the_first_step_on_and_a_counted_token_may_not() -> None:
    probe, transport = probe_and_transport()
    logits = torch.zeros(4, 9)
    logits[3] = math.nan
    scores = probe.score(logits, torch.tensor([0, 1, 2, 3]))
    with pytest.raises(InputError, match="1 of 4 rows"):
        probe.gate(scores, torch.ones(4))
    probe.gate(scores, torch.ones(4), torch.tensor([1, 1, 1, 0]))
    probe.step(0)
    assert reports(transport)[0].scalars["token/count"] == 3


def test_what_a_server_would_refuse_is_left_out_and_said_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    probe, transport = probe_and_transport()
    for step in (1, 2):
        probe.log({"n" * 501: 1.0, "reward/mean": 1.0})
        probe.step(step)
    probe.log({f"norm/{number:05}": 1.0 for number in range(10_001)})
    probe.step(3)
    first, second, third = reports(transport)
    for report in (first, second):
        assert set(report.scalars) & {"n" * 501, "reward/mean"} == {"reward/mean"}
        assert report.labels[wire.DROPPED_SERIES].startswith("1: nnn")
    assert len([name for name in third.scalars if name.startswith("norm/")]) == 10_000
    assert third.labels[wire.DROPPED_SERIES] == "1: norm/10000"
    assert [
        record.getMessage() for record in caplog.records if "logged scalars" in record.getMessage()
    ] == [
        (
            "1 logged scalars are not reported; a name has at most 500 characters, a step 10000 of"
            f" them: {'n' * 100}"
        )
    ]


def test_the_most_names_of_one_s_own_are_reported_without_a_word(
    caplog: pytest.LogCaptureFixture,
) -> None:
    probe, transport = probe_and_transport()
    own = {f"norm/{number:05}": 1.0 for number in range(wire.LOGGED_SCALARS)}
    for step in (1, 2):
        probe.log({**own, "time/step_seconds": 1.0})
        probe.step(step)
    for report in reports(transport):
        assert {*own, "time/step_seconds", "probe/seconds"} <= report.scalars.keys()
        assert wire.DROPPED_SERIES not in report.labels
    assert "not reported" not in caplog.text


def test_a_step_s_number_that_cannot_be_meant_costs_that_report_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    probe, transport = probe_and_transport()
    probe.step(torch.tensor(0))  # type: ignore[arg-type]
    monkeypatch.delenv("PYTEST_CURRENT_TEST")
    for step in ("1", "2", 3):
        probe.step(step)  # type: ignore[arg-type]
    assert [report.step for report in reports(transport)] == [0, 3]
    assert reports(transport)[1].scalars["probe/failures"] == 2.0


DEEP: list[object] = []
for _ in range(40):
    DEEP = [DEEP]
ENDLESS: list[object] = []
ENDLESS.append(ENDLESS)


def nested(levels: int) -> dict[str, Any]:
    config: dict[str, Any] = {}
    for _ in range(levels - 1):
        config = {"deeper": config}
    return config


def test_a_config_as_deep_as_its_readers_go_is_taken() -> None:
    _, transport = probe_and_transport(config=nested(32))
    assert transport.messages == []


@pytest.mark.parametrize(
    ("arguments", "environment", "words"),
    [
        ({"project": 5}, {}, "^project .* 5"),
        ({"control": {"method": "clip_v"}}, {}, "^control "),
        ({"mode": "sometimes"}, {}, "^mode .*online, offline, disabled"),
        ({"run_id": "a/b"}, {}, "^run_id "),
        ({"project": "x" * 501}, {}, "^project .*500.*501"),
        ({"config": {"lr": 1e-6, "data": ["x" * 100] * 3_000}}, {}, "309021.*'data'"),
        ({"config": {"a": DEEP}}, {}, "^config .*32"),
        ({"config": {"a": ENDLESS}}, {}, "^config .*32"),
        ({"config": "lr=0.1"}, {}, "^config .*str"),
        ({"config": [("lr", 0.1)]}, {}, "^config .*list"),
        ({"tags": ["x"] * 51}, {}, "^tags .*50.*100.*51"),
        ({"tags": ["x" * 101]}, {}, "^tags .*50.*100.*101"),
        ({"tags": "baseline"}, {}, "^tags "),
        ({"planned_steps": 0}, {}, "^planned_steps .*1"),
        ({"config": nested(33)}, {}, "^config .*32"),
        (
            {"threshold_source": "guess"},
            {},
            "^threshold_source .*auto, first_pass, previous_step, micro_batch",
        ),
        (
            {"control": isentrope.Control(hold={"target_entropy": 0.5}), "mode": "disabled"},
            {},
            "^hold ",
        ),
        ({}, {"WORLD_SIZE": "2", "RANK": "0"}, "run_id|run id"),
        ({"run_id": "a"}, {"WORLD_SIZE": "2", "RANK": "2"}, "^rank "),
        ({}, {"WORLD_SIZE": "two"}, "^WORLD_SIZE "),
    ],
)
def test_settings_that_cannot_work_are_named_where_the_probe_is_built(
    arguments: dict[str, Any],
    environment: dict[str, str],
    words: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigurationError, match=words):
        probe_and_transport(**arguments)


def test_a_configuration_and_tags_as_large_as_allowed_begin_a_run() -> None:
    config = {"data": "x" * (wire.CONFIG_CHARACTERS - len('{"data":""}'))}
    probe_and_transport(config=config, tags=["y" * wire.TAG_CHARACTERS] * wire.TAGS)
    with pytest.raises(ConfigurationError, match="262145"):
        probe_and_transport(config={"data": config["data"] + "x"})


class Loss(enum.Enum):
    GRPO = "grpo"
    SUM = (1, 2)


@dataclasses.dataclass
class Lora:
    rank: int = 8
    modules: frozenset[str] = frozenset({"q_proj", "k_proj", "v_proj"})


class Plain:
    pass


@pytest.mark.parametrize(
    ("value", "reported"),
    [
        (np.float32(1e-4), 1e-4),
        (np.float64(0.1), 0.1),
        (np.int64(7), 7),
        (np.bool_(True), True),
        (np.array([0.5]), 0.5),
        (np.arange(3), [0, 1, 2]),
        (np.zeros((40, 50)), "ndarray of shape [40, 50]"),
        (torch.tensor(0.5), 0.5),
        (torch.tensor(3), 3),
        (torch.empty(2, device="meta"), "Tensor of shape [2]"),
        (torch.bfloat16, "torch.bfloat16"),
        (math.nan, "nan"),
        (np.float32("-inf"), "-inf"),
        (Loss.GRPO, "grpo"),
        (Loss.SUM, "SUM"),
        (Lora(), {"rank": 8, "modules": ["k_proj", "q_proj", "v_proj"]}),
        (argparse.Namespace(lr=0.1), {"lr": 0.1}),
        ({3, 1, 2}, [1, 2, 3]),
        (Path("a/b"), "a/b"),
        ("data/\udce9t\udce9", "data/\\udce9t\\udce9"),
        (datetime.date(2026, 1, 2), "2026-01-02"),
        (Plain(), f"{__name__}.Plain"),
        (nested, f"{__name__}.nested"),
        (functools.partial(nested, 3), "functools.partial(<function nested>, 3)"),
        pytest.param(10**5000, "an integer of 16610 bits", id="long"),
        (2**64 - 1, 2**64 - 1),
    ],
)
def test_a_setting_is_reported_as_it_was_meant(value: object, reported: object) -> None:
    shown = jsonable({"value": value})["value"]
    assert shown == reported
    assert type(shown) is type(reported)


@pytest.mark.parametrize(
    "name",
    [
        "password",
        "HF_TOKEN",
        "token",
        "apiKey",
        "openai_api_key",
        "db.passwd",
        "clientSecret",
        "auth_token",
        "aws-secret-access-key",
        "api_tokens",
        "user_token",
        "credentials",
    ],
)
def test_what_a_name_calls_secret_is_hidden(name: str) -> None:
    assert jsonable({"deeper": [{name: "abc123"}]}) == {"deeper": [{name: "***"}]}
    assert jsonable({name: "abc123"}, hides_secrets=False) == {name: "abc123"}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_tokens", 512),
        ("max_tokens", "512"),
        ("tokenizer", "Qwen/Qwen3-0.6B"),
        ("token_count", 3),
        ("pad_token_id", 0),
        ("pad_token", "PAD"),
        ("start_of_text_token", "<|text|>"),
        ("key_dim", 64),
        ("sort_key", "length"),
        ("token", 17),
        ("use_credentials", False),
        ("secret_length", 5),
        ("hub_token", None),
        ("url", "https://host:80/a@b"),
        ("model", "a/sk-small"),
    ],
)
def test_what_only_resembles_a_secret_stays(name: str, value: object) -> None:
    assert jsonable({name: value}) == {name: value}


def test_secrets_within_texts_are_hidden() -> None:
    shown = jsonable({"db": "postgresql://me:pw@host/db", "command": "run --key hf_" + "a" * 30})
    assert shown == {"db": "postgresql://me:***@host/db", "command": "run --key ***"}


@pytest.mark.parametrize(("switch", "shown"), [("off", "abc"), ("on", "***"), ("", "***")])
def test_a_variable_says_whether_secrets_leave(
    switch: str, shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ISENTROPE_REDACT", switch)
    probe = isentrope.Probe(
        name="a", config=argparse.Namespace(api_key="abc"), mode="offline", run_id="secret"
    )
    probe.step(1)
    probe.finish()
    starts = [path.read_bytes() for path in probe.config.home.rglob("*") if path.is_file()]
    assert any(f'"api_key":"{shown}"'.encode() in content for content in starts)


def test_why_a_run_failed_is_cut() -> None:
    probe, transport = probe_and_transport()
    probe.finish("failed", "RuntimeError: " + "x" * 2 * wire.ERROR_CHARACTERS)
    ended = transport.messages[-1]
    assert isinstance(ended, wire.RunFinished)
    assert len(ended.error) == wire.ERROR_CHARACTERS
    assert ended.error.startswith("RuntimeError: xxx")
    assert ended.error.endswith("xxx ... cut")


def some_scores(probe: isentrope.Probe, rows: int = 4) -> isentrope.TokenScores:
    return probe.score(torch.zeros(rows, 5, 9), torch.zeros(rows, 5, dtype=torch.long))


def score_hidden(probe: isentrope.Probe, token_ids: torch.Tensor, value: float = 0.0) -> None:
    probe.score_hidden(torch.full((5, 7, 8), value), torch.zeros(24, 8), token_ids)


def rescored_by(probe: isentrope.Probe, found: Callable[[isentrope.Probe], Any] | None) -> None:
    """`found` None: a micro-batch by the scores that the next one was gated with, which a helper
    kept."""
    kept = some_scores(probe)
    if found is None:
        probe.gate(some_scores(probe), torch.zeros(4), rescore=lambda: kept)
    probe.gate(kept, torch.zeros(4))
    probe.step(0, rescore=None if found is None else lambda: found(probe))


IDS = torch.arange(4)
CALLS: list[tuple[Callable[[Any], object], str]] = [
    (
        lambda probe: probe.score(torch.zeros(2, 5, 9), torch.zeros(2, 4, dtype=torch.long)),
        r"logits\[:, :-1\]",
    ),
    (lambda probe: probe.score(torch.zeros(4, 9), torch.tensor([0, 1, 2, 9])), r"\[0, 9\).* 9"),
    (lambda probe: probe.score(torch.zeros(4, 9), torch.tensor([0, 1, 2, -100])), "-100"),
    (lambda probe: probe.score(torch.full((4, 9), math.nan), IDS), "4 of 4 rows"),
    (lambda probe: probe.score([[0.0]], IDS), "^logits .*list"),
    (lambda probe: probe.score(torch.zeros(1, 2), [0]), "^token_ids .*list"),
    (lambda probe: probe.score(torch.zeros(4, 9), IDS, temperature="1"), "^temperature .*'1'"),
    (lambda probe: probe.gate(some_scores(probe), torch.zeros(3)), r"\[4, 5\].*\[4\].*\[3\]"),
    (lambda probe: probe.gate(some_scores(probe), 1.0), "^advantages .*float"),
    (
        lambda probe: probe.gate(some_scores(probe), torch.zeros(4, device="meta")),
        "^advantages .*meta.*cpu",
    ),
    (lambda probe: probe.gate(some_scores(probe), torch.zeros(4), [1]), "^mask .*list"),
    (lambda probe: probe.gate(some_scores(probe), torch.zeros(4), torch.ones(4)), "^mask "),
    (
        lambda probe: probe.gate(
            some_scores(probe), torch.zeros(4), torch.ones(4, 5, device="meta")
        ),
        "^mask .*meta",
    ),
    (
        lambda probe: probe.gate(
            some_scores(probe), torch.zeros(4), sampler_logprobs=torch.zeros(4, 4)
        ),
        "^sampler_logprobs ",
    ),
    (
        lambda probe: probe.gate(some_scores(probe), torch.zeros(4), logprobs=torch.zeros(3)),
        r"^logprobs .*\[4, 5\], got \[3\]",
    ),
    (lambda probe: score_hidden(probe, torch.full((5, 7), 24)), r"\[0, 24\).* 24"),
    (lambda probe: score_hidden(probe, torch.zeros(5, 6, dtype=torch.long)), "^hidden "),
    (
        lambda probe: score_hidden(probe, torch.zeros(5, 7, dtype=torch.long), math.nan),
        "35 of 35 rows",
    ),
    (lambda probe: probe.first_pass([1]), "^first_pass .*TokenScores"),
    (
        lambda probe: probe.first_pass([some_scores(probe)], [torch.ones(4, 5)] * 2),
        "1 parts.* 2 masks",
    ),
    (lambda probe: probe.first_pass(some_scores(probe), torch.ones(3)), "^mask "),
    (lambda probe: probe.log(5), "^log .*5"),
    *(
        (lambda probe, value=value: probe.log({"reward": value}), "^reward ")
        for value in ("high", torch.zeros(2), torch.tensor(1j), 1j, None)
    ),
    *(
        (lambda probe, name=name: probe.log({name: 1.0}), re.escape(repr(name)))
        for name in (1, None, "", "half a \ud800 character")
    ),
    *(
        (lambda probe, step=step: probe.step(step), f"^step .*{re.escape(repr(step))}")
        for step in (-1, 1.5, "7", None, 2**63)
    ),
    (lambda probe: probe.step(0, "adam"), "^optimizer .*'adam'"),
    (lambda probe: probe.step(0, clip_factor="half"), "^clip_factor .*'half'"),
    (lambda probe: rescored_by(probe, lambda _: None), "^rescore .*TokenScores.*None"),
    (
        lambda probe: rescored_by(probe, lambda probe: some_scores(probe, 3)),
        r"\[\[4, 5\]\].*\[\[3, 5\]\]",
    ),
    (lambda probe: rescored_by(probe, None), "^rescore .*gated, from before the update"),
]


@pytest.mark.parametrize(("call", "words"), CALLS)
def test_an_argument_that_cannot_be_meant_is_named(
    call: Callable[[Any], object], words: str
) -> None:
    probe, transport = probe_and_transport()
    with pytest.raises(InputError, match=words):
        call(probe)
    assert transport.messages == []


@pytest.mark.parametrize("weight", [0.5, float("nan")])
def test_a_mask_of_weights_is_refused_in_the_first_step(weight: float) -> None:
    loop = TinyLoop()
    probe, _ = probe_and_transport()
    logits, token_ids, advantages = loop.sample()
    mask = loop.mask.float()
    assert probe.gate(probe.score(logits, token_ids), advantages, mask).shape == mask.shape
    mask[0, 0] = weight
    with pytest.raises(InputError, match=f"{weight}.*into the loss"):
        probe.gate(probe.score(logits, token_ids), advantages, mask)


def test_advantages_that_are_not_finite_are_left_out_with_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    loop = TinyLoop()
    probe, transport = probe_and_transport()
    clean, clean_transport = probe_and_transport()
    logits, token_ids, advantages = loop.sample()
    broken, mask = advantages.clone(), torch.ones_like(loop.mask)
    broken[0, :3] = torch.tensor([float("nan"), float("inf"), -float("inf")])
    mask[0, :3] = False
    for _ in range(2):
        probe.gate(probe.score(logits, token_ids), broken)
        clean.gate(clean.score(logits, token_ids), advantages, mask)
    probe.step(1)
    clean.step(1)
    (report,), without = reports(transport), reports(clean_transport)[0]
    assert report.scalars["token/not_finite"] == 6
    for name in (
        "token/count",
        "entropy/mean",
        "entropy/unit_predicted_change",
        "covariance/advantage_logprob",
    ):
        assert report.scalars[name] == without.scalars[name]
    (alert,) = report.alerts
    assert (alert.kind, alert.evidence) == ("not_finite", {"not_finite": 6.0, "tokens": 160.0})
    assert without.alerts == ()
    (record,) = [one for one in caplog.records if "step 1: Act" not in one.message]
    assert "3 of 80 advantages" in record.getMessage()


def test_a_step_number_that_does_not_rise_is_said_once_and_its_report_kept(
    caplog: pytest.LogCaptureFixture,
) -> None:
    probe, transport = probe_and_transport()
    for step in (1, 2, 2, 1):
        probe.step(step)
    assert [report.step for report in reports(transport)] == [1, 2, 2, 1]
    (record,) = [one for one in caplog.records if "closed after" in one.getMessage()]
    assert record.getMessage().lower().count("step 2") == 2


def test_rank_0_must_count() -> None:
    with pytest.raises(ConfigurationError, match="rank 0"):
        isentrope.Probe("test", counts=False, mode="disabled")
