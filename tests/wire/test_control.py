"""Controls and holds: what is refused, what is filled in, and what is written down again."""

from __future__ import annotations

import math

import pytest

from isentrope_wire.control import Control, Hold, HoldSide, begun_at
from isentrope_wire.errors import ConfigurationError
from isentrope_wire.methods import METHODS, name_and_value


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ({"method": "clip_x"}, "method.*clip_x"),
        ({"method": "clip_v", "mu_low": -1}, "mu_low.*-1"),
        ({"method": "clip_v", "mu_high": math.nan}, "mu_high.*nan"),
        ({"method": "clip_v", "mu_high": math.inf}, "mu_high.*inf"),
        ({"method": "clip_v", "mu_low": "1"}, "mu_low.*'1'"),
        ({"method": "clip_v", "mu_low": True}, "mu_low.*True"),
        ({"method": "clip_b"}, "mu_low.*mu_high"),
        ({"method": "none", "mu_low": 1}, "clip_b.*clip_v"),
        ({"method": "clip_v", "mu_low": 1, "scope": "some"}, "scope.*some"),
        ({"method": "none", "mu": 1}, r"\bmu$|\bmu\b(?!_)"),
        ({"parameters": 3}, "parameters.*3"),
        ({"method": "none", "parameters": {"ratio": 1}}, "none.*ratio"),
        ({"method": "clip_cov", "parameters": {"k": 0.1}}, r"ratio, omega_low.*\bk\b"),
        (
            {"method": "clip_cov", "parameters": {"ratio": 1.5}},
            r"parameters\.ratio.*1\.5",
        ),
        ({"method": "clip_cov", "parameters": {"ratio": "0.5"}}, r"parameters\.ratio.*'0\.5'"),
        ({"method": "clip_cov", "parameters": {"ratio": True}}, r"parameters\.ratio.*True"),
        ({"method": "clip_cov", "parameters": {"ratio": None}}, r"parameters\.ratio.*None"),
        (
            {"method": "clip_cov", "parameters": {"omega_low": math.nan}},
            r"parameters\.omega_low.*nan",
        ),
        ({"method": "clip_cov", "parameters": {"seed": 0.5}}, r"parameters\.seed.*0\.5"),
        (
            {"method": "clip_cov", "parameters": {"omega_low": 5}},
            r"omega_low.*omega_high.*5\.0.*5\.0",
        ),
        ({"method": "kl_cov", "parameters": {"beta": -1}}, r"parameters\.beta.*-1"),
        ({"method": "score_sign", "parameters": {"sign": "up"}}, "sign.*positive, negative.*'up'"),
        (
            {"method": "top_entropy", "parameters": {"fraction": 0}},
            "fraction.* 0",
        ),
        ({"method": "unlikely", "scope": "negative"}, "unlikely.*scope negative"),
        ({"method": "clip_v", "mu_low": 1, "parameters": {"max_fraction": 0}}, "max_fraction"),
        (
            {"method": "clip_v", "mu_low": 1, "parameters": {"denominator": "grow"}},
            "keep, shrink.*'grow'",
        ),
        (
            {"method": "clip_v", "parameters": {"preset": "mine"}},
            "preset.*trinity.*clip_v.*'mine'",
        ),
        (
            {"method": "none", "parameters": {"preset": "mine"}},
            "clip_b.*kl_cov.*'mine'.*none",
        ),
        ({"method": "kl_cov", "parameters": {"preset": "trinity"}}, "verl.*kl_cov.*'trinity'"),
        ({"method": "clip_v", "mu_low": 10**400}, "mu_low.*10000"),
        ({"method": "clip_v", "mu_low": 10**5000}, "mu_low"),
        ({"method": "kl_cov", "parameters": {"beta": 10**400}}, r"parameters\.beta"),
        ({"method": "clip_cov", "parameters": {"seed": 10**400}}, r"parameters\.seed"),
        ({"hold": 75}, "nats.*got 75.*'75%'"),
        ({"hold": {"target_curve": [[1, 50], [9, 25]]}}, "'50%'"),
        ({"method": "kl_cov", "hold": {"target_entropy": 0.5}}, "kl_cov"),
        ({"reason": None}, "reason"),
    ],
)
def test_wrong_control_names_field_and_value(document: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        Control.from_document(document)


def test_control_reads_its_own_document() -> None:
    control = Control.from_document(
        {"method": "clip_v", "mu_low": 1, "scope": "negative", "reason": "collapse"}
    )
    assert control.mu_low == 1.0
    assert control.mu_high is None
    assert Control(method="clip_v", mu_high=0).mu_low is None
    assert Control.from_document(control.to_document()) == control


def test_capability_is_method_or_hold() -> None:
    assert Control.from_document({"method": "clip_b", "mu_low": 2}).capability == "method:clip_b"
    assert Control.from_document({"hold": {"target_entropy": 0.5}}).capability == "hold"


def test_defaults_of_parameters_are_valid() -> None:
    for method in METHODS.values():
        parameters = method.parameters.values()
        mu_low = 1.0 if method.thresholds else None
        defaults = {parameter.name: parameter.default for parameter in parameters}
        control = Control(method=method, mu_low=mu_low, parameters=defaults)
        assert control.parameters == defaults
        assert all(parameter.sense and parameter.range_in_words for parameter in parameters)


def test_default_parameter_is_not_written() -> None:
    control = Control(method="clip_cov", parameters={"ratio": 1})
    assert control.to_document()["parameters"] == {"ratio": 1.0}
    assert (control.number("ratio"), control.number("omega_high"), control.value("seed")) == (
        1.0,
        5.0,
        0,
    )
    assert control.value("epsilon_high") is None
    with pytest.raises(ConfigurationError, match="epsilon_high"):
        control.number("epsilon_high")


def test_preset_fills_in_what_is_absent() -> None:
    trinity = Control(method="clip_v", parameters={"preset": "trinity"})
    assert trinity == Control(
        method="clip_v",
        mu_low=8.5,
        scope="negative",
        parameters={"max_fraction": 1e-4, "denominator": "shrink", "zero_advantage": "clip"},
    )
    kept = Control(method="clip_b", parameters={"preset": "trinity", "denominator": "keep"})
    assert (kept.mu_low, kept.mu_high, kept.scope, kept.value("denominator")) == (
        2.5,
        None,
        "negative",
        "keep",
    )
    own = Control(
        method="clip_v",
        mu_high=2,
        scope="all",
        parameters={"preset": "trinity", "denominator": "keep"},
    )
    assert (own.mu_low, own.mu_high, own.scope) == (None, 2.0, "all")
    assert own.parameters == {"max_fraction": 1e-4, "denominator": "keep", "zero_advantage": "clip"}


def test_names_of_verl_are_accepted() -> None:
    theirs = {"clip_cov_ratio": 0.01, "clip_cov_lb": 0.5, "clip_cov_ub": 4, "clip_ratio_high": 0.3}
    ours = {"ratio": 0.01, "omega_low": 0.5, "omega_high": 4, "epsilon_high": 0.3}
    assert Control(method="clip_cov", parameters=theirs) == Control(
        method="clip_cov", parameters=ours
    )
    by_preset = Control(
        method="kl_cov", parameters={"preset": "verl", "ppo_kl_coef": 1, "kl_cov_ratio": 1e-3}
    )
    assert by_preset.parameters == {"k": 1e-3, "beta": 1.0, "estimator": "abs"}
    with pytest.raises(ConfigurationError, match=r"beta and .*ppo_kl_coef are one"):
        Control(method="kl_cov", parameters={"beta": 1, "ppo_kl_coef": 1})
    with pytest.raises(ConfigurationError, match="clip_cov_lb"):
        Control(method="kl_cov", parameters={"clip_cov_lb": 1})


def test_command_line_gives_name_and_value() -> None:
    texts = (
        "ratio=0.001",
        "seed=7",
        " sign = negative ",
        "max_fraction=off",
        "omega_low=-1e-3",
        "seed=-2",
    )
    expected = [
        ("ratio", 0.001),
        ("seed", 7),
        ("sign", "negative"),
        ("max_fraction", None),
        ("omega_low", -0.001),
    ]
    assert [name_and_value(text) for text in texts] == [*expected, ("seed", -2)]
    for text in ("ratio", "=1", ""):
        with pytest.raises(ConfigurationError, match=repr(text)):
            name_and_value(text)


def test_every_preset_is_valid() -> None:
    for method, name in [(row, name) for row in METHODS.values() for name in row.presets]:
        control = Control(method=method, parameters={"preset": name})
        assert Control.from_document(control.to_document()) == control


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ({}, "target_entropy"),
        ({"target_entropy": None}, "target_entropy"),
        ({"target_entropy": 0}, r"hold\.target_entropy.* 0\b"),
        ({"target_entropy": -0.5}, r"hold\.target_entropy.*-0\.5"),
        ({"target_entropy": math.nan}, r"hold\.target_entropy.*nan"),
        ({"target_entropy": 10**400}, r"hold\.target_entropy.*10000"),
        ({"target_entropy": 0.5, "mu_max": -(10**400)}, r"hold\.mu_max"),
        ({"target_entropy": "0.5"}, r"hold\.target_entropy.*'0\.5'"),
        ({"target_entropy": True}, r"hold\.target_entropy.*True"),
        ({"target_entropy": 0.5, "max_change_per_step": 0}, r"hold\.max_change_per_step.* 0"),
        (
            {"target_entropy": 0.5, "max_change_per_step": math.inf},
            r"hold\.max_change_per_step.*inf",
        ),
        ({"target_entropy": 0.5, "mu_min": -1}, r"hold\.mu_min.*-1"),
        ({"target_entropy": 0.5, "mu_min": 3, "mu_max": 2}, "mu_min.*mu_max.*3.*2"),
        ({"target_entropy": 0.5, "side": "up"}, r"hold\.side.*raise, lower, both.*'up'"),
        ({"target_entropy": 0.5, "lever": "up"}, r"hold\.lever.*auto, thresholds, bonus.*'up'"),
        ({"target_entropy": 0.5, "gain": 1}, "target_entropy.*gain"),
        ([0.5], r"hold.*\[0\.5\]"),
        ({"target_entropy": 0.5, "target_share": 0.5}, "target_entropy, target_share"),
        ({"target_share": 75}, r"hold\.target_share.*75"),
        ({"target_share": "75"}, r"hold\.target_share.*'75'"),
        ({"target_share": "0%"}, r"hold\.target_share.*'0%'"),
        ({"target_curve": []}, r"hold\.target_curve"),
        ({"target_curve": [[1, 0.5, 2]]}, r"hold\.target_curve.*\[1, 0\.5, 2\]"),
        ({"target_curve": [[2, 0.5], [1, 0.4]]}, r"hold\.target_curve.*\[2, 1\]"),
        ({"target_curve": [[1, -0.5]]}, r"hold\.target_curve.*-0\.5"),
        ({"target_entropy": 0.5, "reward_guard": 1}, r"hold\.reward_guard.*1"),
        ({"anneal": ["100%", "40%"]}, r"hold\.anneal takes two levels, with steps.*got anneal"),
        ({"anneal": ["100%", "40%"], "steps": 9, "target_share": 0.5}, "target_share"),
        ({"anneal": ["100%"], "steps": 9}, r"hold\.anneal is two levels.*100%"),
        ({"anneal": "100%", "steps": 9}, r"hold\.anneal is two levels"),
        ({"anneal": ["100%", "40%"], "steps": 0}, r"hold\.steps.*from 1.*got 0"),
        ({"anneal": ["100%", "40%"], "steps": 9.5}, r"hold\.steps.*9\.5"),
        ({"anneal": ["100%", "40%"], "steps": 9, "start": True}, r"hold\.start.*True"),
        ({"anneal": ["100%", 40], "steps": 9}, "'40%'"),
        ({"target": "100% to 40% over 9.5 steps"}, r"9\.5"),
        ({"target": "half"}, "half"),
        (True, "True"),
        (75, r"target_entropy.*75%"),
    ],
)
def test_wrong_hold_names_field_and_value(document: object, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        Control.from_document({"hold": document})


def test_hold_is_written_with_defaults() -> None:
    control = Control(hold={"target_entropy": 0.5, "side": "raise", "mu_max": None})
    assert control.hold == {
        "target_entropy": 0.5,
        "target_share": None,
        "target_curve": None,
        "max_change_per_step": None,
        "mu_min": 0.0,
        "mu_max": 10.0,
        "side": "raise",
        "lever": "auto",
        "reward_guard": True,
    }
    assert Control.from_document(control.to_document()) == control
    assert control.held == Hold(target_entropy=0.5, side=HoldSide.RAISE)
    assert Control().held is None


@pytest.mark.parametrize(
    ("given", "hold", "text"),
    [
        ({"target": "0.46"}, Hold(target_entropy=0.46), "0.46"),
        ({"target": " 75 % "}, Hold(target_share=0.75), "75%"),
        (
            {"target": "1:100%, 200:0.25"},
            Hold(target_curve=((1, "100%"), (200, 0.25))),
            "1:100% 200:0.25",
        ),
        (
            {"anneal": ["100%", 0.2], "steps": 300},
            Hold(target_curve=((1, "100%"), (301, 0.2))),
            "1:100% 301:0.2",
        ),
        (
            {"target": "100% -> 40% over 300 steps", "start": 50},
            Hold(target_curve=((50, "100%"), (350, "40%"))),
            "50:100% 350:40%",
        ),
        (
            "0.6 to 50% in 200",
            Hold(target_curve=((1, 0.6), (201, "50%"))),
            "1:0.6 201:50%",
        ),
        (0.75, Hold(target_entropy=0.75), "0.75"),
        ("0.75", Hold(target_entropy=0.75), "0.75"),
        ("12.5%", Hold(target_share=0.125), "12.5%"),
        (
            {"target_curve": [[0, 0.5], [10, "50.0%"]]},
            Hold(target_curve=((0, 0.5), (10, "50%"))),
            "0:0.5 10:50%",
        ),
    ],
)
def test_target_is_read_in_each_form(given: object, hold: Hold, text: str) -> None:
    held = Control.from_document({"hold": given}).held
    assert (held, hold.target) == (hold, text)
    assert Control.from_document(Control(hold=hold.to_document()).to_document()).held == hold
    assert Hold.from_document({"target": text}) == hold


@pytest.mark.parametrize(
    "hold",
    [
        {"anneal": ["100%", "40%"], "steps": 300, "side": "raise"},
        {"target": "100% to 40% over 300 steps", "target_curve": None, "side": "raise"},
    ],
)
def test_anneal_begins_where_it_is_pushed(hold: dict[str, object]) -> None:
    pushed = Control.from_document(begun_at({"method": "clip_v", "hold": hold}, 120)).held
    assert pushed == Hold(target_curve=((120, "100%"), (420, "40%")), side=HoldSide.RAISE)
    named = {"hold": hold | {"start": 7}}
    assert begun_at(named, 120) == named
    short = begun_at({"hold": "100% to 40% over 300 steps"}, 120)["hold"]
    assert Hold.from_document(short).target == "120:100% 420:40%"
    for unchanged in ({"hold": "75%"}, {"hold": None}, {}, {"hold": {"target_curve": [[1, 0.5]]}}):
        assert begun_at(unchanged, 120) == unchanged


def test_curve_is_straight_between_its_points() -> None:
    hold = Hold(target_curve=((10, "100%"), (20, 0.4), (40, 0.2)))
    steps = (0, 10, 15, 20, 30, 40, 99)
    assert [hold.target_at(step, 0.8) for step in steps] == pytest.approx(
        [0.8, 0.8, 0.6, 0.4, 0.3, 0.2, 0.2]
    )
    assert [hold.target_at(step, None) for step in (15, 30)] == [None, pytest.approx(0.3)]
    assert Hold(target_share=0.5).target_at(1, 0.6) == 0.3
    assert Hold(target_share=0.5).target_at(1, None) is None
    assert Control(method="clip_b", hold={"target_entropy": 0.5}).mu_low is None
