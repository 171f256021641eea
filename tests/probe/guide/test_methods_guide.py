"""What the page on methods states holds: its examples act, its tables are those of the wire, its
dead knobs are reported."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

import isentrope
from isentrope_wire.control import Method, Scope
from isentrope_wire.methods import METHODS, Parameter
from tests.probe.tiny_loop import TinyLoop, probe_and_transport, reports

WEIGHS = (
    "kl_cov",
    "unlikely",
    "rank_reward",
    "positive_advantage",
    "steer",
    "stare",
    "entropy_bonus",
)
GUIDE = (Path(__file__).parents[3] / "docs" / "methods.md").read_text(encoding="utf-8")
EXAMPLES = [
    line
    for block in re.findall(r"```python control\n(.*?)```", GUIDE, flags=re.DOTALL)
    for line in block.splitlines()
]
SECTIONS_BY_TITLE = dict(
    re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", GUIDE, flags=re.DOTALL | re.MULTILINE)
)
SECTIONS = {
    title.strip("`"): text for title, text in SECTIONS_BY_TITLE.items() if title.startswith("`")
}
IN_COMMON = GUIDE[GUIDE.index("## What all have in common") : GUIDE.index("## Composing two")]


def example(line: str) -> isentrope.Control:
    control = eval(line, {"isentrope": isentrope})
    assert isinstance(control, isentrope.Control)
    return control


@pytest.mark.parametrize("line", EXAMPLES)
def test_an_example_acts_and_reports_what_the_page_says(line: str) -> None:
    control = example(line)
    probe, transport = probe_and_transport(control=control)
    loop = TinyLoop()
    for step in range(2):
        logits, token_ids, advantages = loop.sample()
        scores = probe.score(3 * logits, token_ids)
        old = scores.logprobs.detach() + 0.3 * torch.sin(torch.arange(80.0)).view(16, 5)
        moved = scores.entropies.detach() * (0.1 * torch.sin(torch.arange(80.0))).exp().view(16, 5)
        logprobs = probe.gate(
            scores, advantages, loop.mask, old_logprobs=old, groups=4, old_entropies=moved
        )
        assert torch.equal(logprobs, scores.logprobs)
        gated, plain = (
            torch.autograd.grad(
                -(advantages * (of - old).exp())[loop.mask].mean(),
                scores.logprobs,
                retain_graph=True,
            )
            for of in (logprobs, scores.logprobs)
        )
        acted = not torch.allclose(gated[0], plain[0])
        probe.step(step)
    report = reports(transport)[-1]
    preset = control.mu_low in (2.5, 8.5)
    assert report.labels["control/method"] == control.method
    assert {"clip/candidate_fraction", "clip/fraction", "change/by_intervention"} <= set(
        report.scalars
    )
    # A preset's thresholds are meant for more than 80 tokens.
    assert preset or (acted and report.scalars["clip/candidate_fraction"] > 0)
    assert preset or "control/dead" not in report.labels
    assert preset or report.scalars["change/by_intervention"] != 0
    weighs = control.method in WEIGHS
    assert (report.scalars["clip/fraction"] == 0) == (weighs or preset)
    parts = [report.scalars[f"change/{part}"] for part in ("by_policy_loss", "by_intervention")]
    assert sum(parts) == pytest.approx(
        report.scalars["entropy/unit_predicted_change"], rel=1e-9, abs=1e-12
    )


def test_every_method_and_scope_has_its_place_and_an_example() -> None:
    assert set(SECTIONS) == set(METHODS) - {Method.NONE}
    assert {example(line).method for line in EXAMPLES} == set(SECTIONS)
    for name, text in SECTIONS.items():
        assert f'method="{name}"' in text
        assert "https://arxiv.org/abs/" in text, name
        assert f"| `{name}` |" in GUIDE
    assert all(f"`{scope}`" in IN_COMMON for scope in Scope)


def row(parameter: Parameter) -> str:
    default = parameter.default
    shown = (
        "off"
        if default is None
        else f"{default:g}"
        if isinstance(default, int | float)
        else default
    )
    return f"| `{parameter.name}` | {shown} | {parameter.range_in_words} | {parameter.sense} |"


@pytest.mark.parametrize("method", sorted(SECTIONS))
def test_the_parameters_are_those_of_the_wire(method: str) -> None:
    common = {line for line in IN_COMMON.splitlines() if line.startswith("| `")}
    rows = {row(parameter) for parameter in METHODS[method].parameters.values()}
    assert rows <= common | set(SECTIONS[method].splitlines())
    listed = {line for line in SECTIONS[method].splitlines() if re.match(r"\| `\w+` \|", line)}
    assert listed <= rows


def test_the_presets_are_those_of_the_wire() -> None:
    presets = [
        (method, name, fields)
        for method in METHODS.values()
        for name, fields in method.presets.items()
    ]
    for method, name, fields in presets:
        parameters = fields.get("parameters", {})
        assert isinstance(parameters, dict)
        words = ", ".join(
            f"`{key}={value if isinstance(value, str) else f'{value:g}'}`"
            for key, value in parameters.items()
        )
        cells = (
            f"`{name}` of `{method}`",
            fields.get("mu_low", ""),
            fields.get("scope", ""),
            words,
        )
        assert "|" + "|".join(f" {cell} ".replace("  ", " ") for cell in cells) + "|" in GUIDE
    assert GUIDE.count("` of `") == len(presets)


def test_aliases_are_those_of_the_wire() -> None:
    listed = {
        pair
        for line in SECTIONS_BY_TITLE["Presets and verl's names"].splitlines()
        if line.startswith("| `") and " of " not in line
        for pair in zip(
            *(re.findall(r"`(\w+)`", cell) for cell in line.strip("|").split("|")), strict=True
        )
    }
    parameters = [
        parameter for method in METHODS.values() for parameter in method.parameters.values()
    ]
    assert listed == {
        (parameter.name, alias) for parameter in parameters for alias in parameter.aliases
    }
