"""A step costs the loop few operations: on an accelerator each is a launch, and none waits for the
device."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

import isentrope
from isentrope_wire.reports import StepReport
from tests.probe.test_step_on_gpu import BuiltLater
from tests.probe.tiny_loop import CLIP, VOCABULARY, probe_and_transport, reports

MOST_OPERATIONS = 205
"""Of a step with one `gate` call; 305 when tensors of several types were joined, 520 when each
statistic looked at the tokens by itself. Some 24, half of them views, look for repeated ids; eleven
count what an entropy bonus would add."""


class Operations(TorchDispatchMode):
    """Names what is computed inside; views compute nothing."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: list[str] = []

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if not (
            function.is_view
            or function.name().startswith(("aten::_unsafe_view", "aten::scalar_tensor"))
        ):
            # Of tensors of several types each is copied by itself.
            joined = args[0] if function.name() in ("aten::cat", "aten::stack") else ()
            kinds = {part.dtype for part in joined}
            self.names += [function.name()] * (len(joined) if len(kinds) > 1 else 1)
        return function(*args, **(kwargs or {}))


def operations_of_a_step(control: isentrope.Control | None = None, **given: Any) -> list[str]:
    """Of the third step."""
    transport = BuiltLater()  # the writer thread's work is not the step's
    probe = isentrope.Probe("test", transport=transport, control=control)
    logits, token_ids = torch.randn(8, 16, VOCABULARY), torch.randint(0, VOCABULARY, (8, 16))
    for step in range(3):
        scores = probe.score(logits, token_ids)
        operations = Operations()
        with operations:
            probe.gate(scores, torch.randn(8), torch.rand(8, 16) < 0.9, **given)
            probe.log({"reward/mean": 0.5})
            probe.step(step)
        report = transport.waiting.pop()()
        assert isinstance(report, StepReport)
        assert report.scalars["token/count"] > 0
    return operations.names


def test_an_observed_step_takes_few_operations() -> None:
    assert len(operations_of_a_step()) <= MOST_OPERATIONS


def test_no_step_waits_for_the_device() -> None:
    waiting = {
        "aten::_local_scalar_dense",
        "aten::nonzero",
        "aten::item",
        "aten::masked_select",
        "aten::bincount",
    }
    ratios = {"sampler_logprobs": torch.randn(8, 16) - 3, "groups": 4}
    for control in (None, CLIP, isentrope.Control(method="clip_cov", parameters={"ratio": 0.2})):
        assert not waiting & set(operations_of_a_step(control, **ratios))


def test_a_step_in_which_nothing_was_scored_needs_no_tensor() -> None:
    probe, transport = probe_and_transport()
    operations = Operations()
    with operations:
        for step in range(3):
            probe.log({"reward/mean": 0.5})
            probe.step(step)
    assert operations.names == []
    assert [report.scalars["reward/mean"] for report in reports(transport)] == [0.5] * 3
