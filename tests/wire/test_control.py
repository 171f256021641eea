"""A control document is checked where it is built, and says what is wrong with it."""

from __future__ import annotations

import math

import pytest

from isentrope_wire.control import THRESHOLD_METHODS, Control, Method
from isentrope_wire.errors import ControlError
from isentrope_wire.method_parameters import PARAMETERS, name_and_value
from isentrope_wire.presets import PRESETS


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ({"method": "clip_x"}, "method must be one of none, clip_b"),
        ({"method": "clip_v", "mu_low": -1}, "mu_low .* not negative, got -1"),
        ({"method": "clip_v", "mu_high": math.nan}, "mu_high .* finite"),
        ({"method": "clip_v", "mu_high": math.inf}, "mu_high .* finite"),
        ({"method": "clip_v", "mu_low": "1"}, "must be a number, got '1'"),
        ({"method": "clip_v", "mu_low": True}, "must be a number, got True"),
        ({"method": "clip_b"}, "needs mu_low, mu_high or both"),
        ({"method": "none", "mu_low": 1}, "act only with clip_b, clip_v"),
        ({"method": "clip_v", "mu_low": 1, "scope": "some"}, "scope must be one of"),
        ({"method": "none", "mu": 1}, "got mu"),
        ({"parameters": 3}, "parameters must be an object"),
        ({"method": "none", "parameters": {"ratio": 1}}, "none has no parameters; got ratio"),
        ({"method": "clip_cov", "parameters": {"k": 0.1}}, "has the parameters ratio, omega_low.*; got k"),
        (
            {"method": "clip_cov", "parameters": {"ratio": 1.5}},
            "parameters.ratio must be a finite number of at least 0",
        ),
        ({"method": "clip_cov", "parameters": {"ratio": "0.5"}}, "parameters.ratio .* got '0.5'"),
        ({"method": "clip_cov", "parameters": {"ratio": True}}, "parameters.ratio .* got True"),
        ({"method": "clip_cov", "parameters": {"ratio": None}}, "parameters.ratio .* got None"),
        ({"method": "clip_cov", "parameters": {"omega_low": math.nan}}, "parameters.omega_low must be a finite number"),
        ({"method": "clip_cov", "parameters": {"seed": 0.5}}, "parameters.seed must be a whole number"),
        (
            {"method": "clip_cov", "parameters": {"omega_low": 5}},
            "omega_low must lie below omega_high, got 5.0 and 5.0",
        ),
        ({"method": "kl_cov", "parameters": {"beta": -1}}, "parameters.beta .* got -1"),
        ({"method": "score_sign", "parameters": {"sign": "up"}}, "sign must be one of positive, negative; got 'up'"),
        (
            {"method": "top_entropy", "parameters": {"fraction": 0}},
            "fraction must be a finite number above 0 and at most",
        ),
        ({"method": "unlikely", "scope": "negative"}, "weights positive samples"),
        ({"method": "clip_v", "mu_low": 1, "parameters": {"max_fraction": 0}}, "max_fraction"),
        ({"method": "clip_v", "mu_low": 1, "parameters": {"denominator": "grow"}}, "one of keep, shrink; got 'grow'"),
        (
            {"method": "clip_v", "parameters": {"preset": "mine"}},
            "preset must be one of paper, trinity with method clip_v, got 'mine'",
        ),
        (
            {"method": "none", "parameters": {"preset": "mine"}},
            "goes with clip_b and clip_v .paper, trinity., got 'mine' with method none",
        ),
        ({"method": "kl_cov", "parameters": {"preset": "paper"}}, "with method kl_cov"),
        ({"method": "clip_v", "mu_low": 10**400}, "mu_low .* finite and not negative, got 10000"),
        ({"method": "clip_v", "mu_low": 10**5000}, "mu_low .* thousands of digits"),
        ({"method": "kl_cov", "parameters": {"beta": 10**400}}, "parameters.beta must be a finite number"),
        ({"method": "clip_cov", "parameters": {"seed": 10**400}}, "parameters.seed must be a whole number"),
        ({"hold": "0.5"}, "hold must be an object"),
        ({"reason": None}, "reason must be text"),
    ],
)
def test_a_wrong_control_is_refused_with_one_sentence_on_the_field(document: dict[str, object], words: str) -> None:
    with pytest.raises(ControlError, match=words):
        Control.from_document(document)


def test_a_control_reads_its_own_document() -> None:
    control = Control.from_document({"method": "clip_v", "mu_low": 1, "scope": "negative", "reason": "collapse"})
    assert control.mu_low == 1.0
    assert control.mu_high is None
    assert Control.from_document(control.to_document()) == control


def test_a_side_left_out_does_not_clip_and_zero_clips_everything_beyond_the_centre() -> None:
    assert Control(method="clip_v", mu_high=0).mu_low is None


def test_a_control_names_the_capability_it_needs() -> None:
    assert Control.from_document({"method": "clip_b", "mu_low": 2}).capability == "method:clip_b"
    assert Control.from_document({"hold": {"target_entropy": 0.5}}).capability == "hold"


def test_every_method_has_parameters_with_a_default_they_take_themselves() -> None:
    assert set(PARAMETERS) == set(Method)
    for method, parameters in PARAMETERS.items():
        mu_low = 1.0 if method in THRESHOLD_METHODS else None
        names = [parameter.name for parameter in parameters]
        assert len(names) == len(set(names))
        defaults = {parameter.name: parameter.default for parameter in parameters}
        control = Control(method=method, mu_low=mu_low, parameters=defaults)
        assert control.parameters == defaults
        assert all(parameter.sense and parameter.range_in_words for parameter in parameters)


def test_a_parameter_left_out_stands_at_its_default_and_is_not_written_down() -> None:
    control = Control(method="clip_cov", parameters={"ratio": 1})
    assert control.to_document()["parameters"] == {"ratio": 1.0}
    assert (control.number("ratio"), control.number("omega_high"), control.value("seed")) == (1.0, 5.0, 0)
    assert control.value("epsilon_high") is None
    with pytest.raises(ControlError, match="epsilon_high"):
        control.number("epsilon_high")


def test_a_preset_fills_in_what_was_left_out_and_does_not_stay() -> None:
    trinity = Control(method="clip_v", parameters={"preset": "trinity"})
    assert trinity == Control(
        method="clip_v",
        mu_low=8.5,
        scope="negative",
        parameters={"max_fraction": 1e-4, "denominator": "shrink"},
    )
    paper = Control(method="clip_b", parameters={"preset": "paper"})
    assert (paper.mu_low, paper.mu_high, paper.scope, paper.parameters) == (2.5, None, "negative", {})
    own = Control(method="clip_v", mu_high=2, scope="all", parameters={"preset": "trinity", "denominator": "keep"})
    assert (own.mu_low, own.mu_high, own.scope) == (None, 2.0, "all")
    assert own.parameters == {"max_fraction": 1e-4, "denominator": "keep"}


def test_a_parameter_is_read_from_a_word_of_a_command_line() -> None:
    texts = ("ratio=0.001", "seed=7", " sign = negative ", "max_fraction=off", "omega_low=-1e-3", "seed=-2")
    expected = [("ratio", 0.001), ("seed", 7), ("sign", "negative"), ("max_fraction", None), ("omega_low", -0.001)]
    assert [name_and_value(text) for text in texts] == [*expected, ("seed", -2)]
    for text in ("ratio", "=1", ""):
        with pytest.raises(ControlError, match="NAME=VALUE"):
            name_and_value(text)


def test_every_preset_is_a_control() -> None:
    for method, name in PRESETS:
        control = Control(method=method, parameters={"preset": name})
        assert Control.from_document(control.to_document()) == control
