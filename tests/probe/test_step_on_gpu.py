"""A step on a CUDA or ROCm device: `TRITON_INTERPRET=0 pytest -m gpu`. It never waits, and says
what it says on a CPU."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import isentrope
from isentrope.scores import linear_token_scores, token_scores
from isentrope.transport.transport import InMemoryTransport, MakeMessage
from isentrope_wire.reports import StepReport
from tests.probe.tiny_loop import CLIP, of_the_machine, probe_and_transport, pushed, reports

pytestmark = pytest.mark.gpu
VOCABULARY, ROWS, LENGTH = 997, 16, 24
KL_COV = isentrope.Control(method="kl_cov", parameters={"k": 0.2, "beta": 0.5})
CLIP_COV = isentrope.Control(method="clip_cov", parameters={"ratio": 0.2})


@pytest.fixture(autouse=True)
def waiting_is_allowed_again() -> Iterator[None]:
    yield
    torch.cuda.set_sync_debug_mode("default")


class BuiltLater(InMemoryTransport):
    """Builds the messages when they are asked for: the writer's thread may wait for the device, the
    training thread not."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting: list[MakeMessage] = []

    def put(self, make: MakeMessage) -> bool:
        self.waiting.append(make)
        return True

    def reports(self) -> list[StepReport]:
        built = [make() for make in self.waiting]
        return [message for message in built if isinstance(message, StepReport)]


def policy_of(device: str) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, VOCABULARY)).to(device)


def run(
    device: str,
    control: isentrope.Control | None,
    steps: int = 6,
    *,
    observed: bool = True,
    forbid: bool = False,
    compiled: bool = False,
) -> tuple[Tensor, list[StepReport]]:
    """Steps of a loop whose tokens are given. `forbid`: from the third on, waiting for the device
    is an error.

    Returns:
        The weights, and the reports.
    """
    generator = torch.Generator().manual_seed(1)
    policy = policy_of(device)
    model = torch.compile(policy) if compiled else policy
    optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-2)
    states = torch.randn(ROWS, LENGTH, 32, generator=generator).to(device)
    mask = (torch.rand(ROWS, LENGTH, generator=generator) < 0.9).to(device)
    transport = BuiltLater()
    probe = isentrope.Probe("test", transport=transport, control=control)
    given = [
        (
            torch.randint(0, VOCABULARY, (ROWS, LENGTH), generator=generator).to(device),
            torch.randn(ROWS, generator=generator).to(device),
            (0.1 * torch.randn(ROWS, LENGTH, generator=generator)).to(device),
        )
        for _ in range(steps)
    ]
    for step, (token_ids, advantages, noise) in enumerate(given):
        if forbid and step >= 2:
            torch.cuda.set_sync_debug_mode("error")
        logits = model(states)
        if observed:
            scores = probe.score(logits, token_ids)
            old = scores.logprobs.detach() + noise
            gated = probe.gate(
                scores, advantages, mask, old_logprobs=old, sampler_logprobs=old + noise, groups=4
            )
        else:
            gated = token_scores(logits, token_ids).logprobs
            old = gated.detach() + noise
        loss = -((gated - old).exp() * advantages.unsqueeze(1) * mask).sum() / mask.sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if observed:
            probe.log({"reward/mean": loss.detach()})
            probe.step(step, optimizer, lambda ids=token_ids: probe.score(policy(states), ids))  # type: ignore[misc]
    torch.cuda.set_sync_debug_mode("default")
    return torch.cat([p.detach().flatten().cpu() for p in policy.parameters()]), transport.reports()


def scalars(report: StepReport) -> dict[str, float]:
    return {name: value for name, value in report.scalars.items() if not of_the_machine(name)}


@pytest.mark.parametrize(
    "control",
    [None, CLIP, CLIP_COV, KL_COV],
    ids=lambda control: getattr(control, "method", "none"),
)
def test_a_step_never_waits_for_the_device(control: isentrope.Control | None) -> None:
    _, made = run("cuda", control, forbid=True)
    assert [report.step for report in made] == list(range(6))
    assert all(math.isfinite(report.scalars["entropy/mean"]) for report in made)


@pytest.mark.parametrize(
    "control", [None, CLIP, KL_COV], ids=lambda control: getattr(control, "method", "none")
)
def test_the_report_is_that_of_a_cpu(control: isentrope.Control | None) -> None:
    """Of the first step, from the same weights and tokens. What optimisers make of round-off grows
    from step to step."""
    (_, (on_device, *_)), (_, (on_cpu, *_)) = run("cuda", control, 1), run("cpu", control, 1)
    assert scalars(on_device).keys() == scalars(on_cpu).keys()
    differences = {
        name: (value, scalars(on_cpu)[name])
        for name, value in scalars(on_device).items()
        if value != pytest.approx(scalars(on_cpu)[name], rel=1e-3, abs=2e-5, nan_ok=True)
    }
    assert differences == {}
    assert on_device.what_if is not None
    assert on_cpu.what_if is not None
    assert on_device.what_if.tokens == on_cpu.what_if.tokens


def test_observing_leaves_a_run_bit_identical() -> None:
    weights, _ = run("cuda", None)
    alone, _ = run("cuda", None, observed=False)
    assert torch.equal(weights, alone)


def test_a_run_repeats_itself() -> None:
    """To the last bit; but what is counted into bins is added by several threads at once, in any
    order, in float64."""
    (weights, first), (again, second) = run("cuda", CLIP), run("cuda", CLIP)
    assert torch.equal(weights, again)
    for one, other in zip(first, second, strict=True):
        assert scalars(one) == pytest.approx(scalars(other), rel=1e-9, nan_ok=True)


def test_a_pushed_control_reaches_the_device() -> None:
    probe, transport = probe_and_transport()
    logits = torch.randn(ROWS, LENGTH, VOCABULARY, device="cuda")
    token_ids = torch.randint(0, VOCABULARY, (ROWS, LENGTH), device="cuda")
    for step in range(4):
        probe.gate(probe.score(logits, token_ids), torch.randn(ROWS, device="cuda"))
        probe.step(step)
        if step == 1:
            transport.set_control(pushed(1))
    probe.finish()
    fractions = [report.scalars["clip/fraction"] for report in reports(transport)]
    assert fractions[:2] == [0, 0]
    assert min(fractions[2:]) > 0


def test_the_compiled_model_may_be_in_the_loop() -> None:
    _, made = run("cuda", CLIP, forbid=True, compiled=True)
    _, eager = run("cuda", CLIP)
    for one, other in zip(made[:2], eager[:2], strict=True):
        assert one.scalars["entropy/mean"] == pytest.approx(other.scalars["entropy/mean"], rel=1e-4)


def test_scores_are_computed_on_the_stream_in_use() -> None:
    """The logits come late on a stream of their own; scores of another stream would be of what was
    there before."""
    stream, token_ids = torch.cuda.Stream(), torch.zeros(64, dtype=torch.int64, device="cuda")
    logits = torch.zeros(64, 50257, device="cuda")
    exact = torch.randn(64, 50257, generator=torch.Generator().manual_seed(2)).cuda()
    wanted = token_scores(exact, token_ids)
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        logits.copy_(exact)
        scores = token_scores(logits, token_ids)
    stream.synchronize()
    for field in ("logprobs", "entropies", "vocab_centered_scores"):
        assert torch.equal(getattr(scores, field), getattr(wanted, field))


@pytest.mark.parametrize("head", [False, True], ids=["logits", "head"])
def test_scoring_can_be_captured_in_a_graph(head: bool) -> None:
    """And is replayed with other logits, forward and backward."""
    weight = torch.randn(4099, 64, device="cuda")
    inputs = torch.randn(32, 64 if head else 4099, device="cuda", requires_grad=True)
    token_ids = torch.randint(0, 4099, (32,), device="cuda")

    def scored(of: Tensor) -> tuple[Any, Tensor]:
        scores = linear_token_scores(of, weight, token_ids) if head else token_scores(of, token_ids)
        return scores, torch.autograd.grad(scores.logprobs.sum(), of)[0]

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            scored(inputs)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        scores, gradient = scored(inputs)
    other = torch.randn_like(inputs)
    with torch.no_grad():
        inputs.copy_(other)
    graph.replay()
    wanted, wanted_gradient = scored(other.requires_grad_())
    torch.testing.assert_close(scores.entropies, wanted.entropies, rtol=0, atol=1e-6)
    torch.testing.assert_close(scores.logprobs, wanted.logprobs, rtol=0, atol=1e-6)
    torch.testing.assert_close(gradient, wanted_gradient, rtol=0, atol=1e-6)
