"""What every backend must get right: named cases of logits, and their scores and gradients in
float64.

The cases are made for a vocabulary size, so that an interpreted kernel can be asked about small
ones."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from isentrope.kernels.dispatch import Backend
from isentrope.kernels.moments import Moments, RowScores, Upstream, finish
from tests.probe.scores.reference64 import scores64

FIELDS = ("logprobs", "entropies", "discriminator_scores", "expected_scores", "squared_scores")
Place = TypeVar("Place")


@dataclass(frozen=True, slots=True)
class Case:
    """Logits as a model might give them, and tokens drawn from them."""

    name: str
    logits: Tensor
    """[..., vocabulary]"""
    token_ids: Tensor
    """[...]"""
    temperature: float | Tensor = 1.0
    """T of all rows, or float64 [rows]."""

    @property
    def divisor(self) -> float | Tensor:
        """What the logits are divided by."""
        return (
            self.temperature.unsqueeze(-1)
            if isinstance(self.temperature, Tensor)
            else self.temperature
        )


def cases(vocabulary: int, rows: int = 5) -> list[Case]:
    """The published list, each with `rows` rows of `vocabulary` logits; the same every time."""
    return [Case(name, *make(vocabulary, rows)) for name, make in MAKERS.items()]


def scored(backend: Backend, case: Case) -> RowScores:
    return finish(backend.row_moments(case.logits, case.token_ids, case.temperature, squared=True))


def numbers_of(rows: RowScores | Moments) -> list[Tensor]:
    """Those that were computed, in order."""
    return [numbers for numbers in rows if numbers is not None]


def errors_of(rows: RowScores, case: Case) -> dict[str, float]:
    """Max abs error of each field against float64, in nats; infinite where one is NaN and the other
    is not."""
    exact = scores64(case.logits, case.token_ids, case.divisor)
    return {
        name: _largest_difference(getattr(rows, name).cpu(), exact[name].reshape(-1))
        for name in FIELDS
    }


def too_large(errors: dict[Place, float], tolerance: float) -> dict[Place, float]:
    """Those above it, NaN included."""
    return {place: error for place, error in errors.items() if not error <= tolerance}


def gradient_excess(gradient: Tensor, exact: Tensor, tolerance: float) -> float:
    """The largest error, in multiples of what rounding to the gradient's type and `tolerance`
    allow; infinite for NaN."""
    rounding = torch.finfo(gradient.dtype).eps / 2
    allowed = tolerance + exact.abs() * rounding * 1.001
    excess = ((gradient.cpu().double() - exact).abs() / allowed).nan_to_num(math.inf)
    return excess.max().item() if excess.numel() else 0.0


def exact_gradient(
    case: Case, logprob_gradient: Tensor | None, entropy_gradient: Tensor | None
) -> Tensor:
    """The gradient of sum(g log p_k + h H) by autograd in float64."""
    leaf = case.logits.detach().double().requires_grad_()
    logprobs = (leaf / case.divisor).log_softmax(-1)
    floored = logprobs.clamp(min=-1000.0)  # 0 * -inf
    objective = torch.zeros((), dtype=torch.float64)
    if logprob_gradient is not None:
        chosen = logprobs.gather(-1, case.token_ids.unsqueeze(-1)).squeeze(-1)
        objective = objective + (logprob_gradient.double() * chosen).sum()
    if entropy_gradient is not None:
        objective = (
            objective - (entropy_gradient.double() * (floored.exp() * floored).sum(-1)).sum()
        )
    (gradient,) = torch.autograd.grad(objective, leaf)
    return gradient


def gradient_by(
    backend: Backend, case: Case, logprob_gradient: Tensor | None, entropy_gradient: Tensor | None
) -> Tensor:
    rows = scored(backend, case)
    entropies = None if entropy_gradient is None else rows.entropies
    upstream = Upstream(
        case.token_ids, rows.log_normalizer, entropies, logprob_gradient, entropy_gradient
    )
    return backend.logit_gradient(case.logits, upstream, case.temperature)


def normal_logits(vocabulary: int, rows: int, spread: float, seed: int = 0) -> Tensor:
    return torch.randn(rows, vocabulary, generator=_generator(seed)) * spread


def drawn(logits: Tensor, temperature: float = 1.0) -> Tensor:
    """One token per row, sampled from softmax(z / T)."""
    p = (logits.double() / temperature).softmax(-1)
    return torch.multinomial(p.reshape(-1, p.shape[-1]), 1, generator=_generator(1)).reshape(
        logits.shape[:-1]
    )


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _largest_difference(values: Tensor, exact: Tensor) -> float:
    same = values == exact  # infinite alike
    return (
        torch.where(same, 0.0, (values.double() - exact).abs())
        .nan_to_num(math.inf)
        .max(dim=0)
        .values.item()
    )


Made = tuple[Tensor, Tensor] | tuple[Tensor, Tensor, float | Tensor]


def _normal(
    spread: float, dtype: torch.dtype = torch.float32, offset: float = 0.0, temperature: float = 1.0
) -> Callable[[int, int], Made]:
    def make(vocabulary: int, rows: int) -> Made:
        logits = (normal_logits(vocabulary, rows, spread) + offset).to(dtype)
        return logits, drawn(logits, temperature), temperature

    return make


def _masked(where: Callable[[Tensor], Tensor]) -> Callable[[int, int], Made]:
    """N(0, 9) with -inf at the places that `where` makes of random numbers in [0, 1), column 0 or
    the last excepted."""

    def make(vocabulary: int, rows: int) -> Made:
        logits = normal_logits(vocabulary, rows, 3.0)
        logits[where(torch.rand(logits.shape, generator=_generator(2)))] = -math.inf
        return logits, drawn(logits)

    return make


def _scattered(chance: Tensor) -> Tensor:
    mask = chance < 0.3
    mask[:, 0] = False
    return mask


def _first_block(chance: Tensor) -> Tensor:
    mask = torch.zeros_like(chance, dtype=torch.bool)
    mask[:, : min(4096, chance.shape[1] - 1)] = True
    return mask


def _padded_vocabulary(chance: Tensor) -> Tensor:
    mask = torch.zeros_like(chance, dtype=torch.bool)
    mask[:, chance.shape[1] // 2 + 1 :] = True
    return mask


def _nearly_certain(rare: bool) -> Callable[[int, int], Made]:
    """The first token has all but 5e-10 of the probability; the others share the rest."""

    def make(vocabulary: int, rows: int) -> Made:
        logits = torch.full((rows, vocabulary), math.log(5e-10 / (vocabulary - 1)))
        logits[:, 0] = 0.0
        return logits, torch.full((rows,), int(rare))

    return make


def _rising(vocabulary: int, rows: int) -> Made:
    """Every block brings a new maximum."""
    logits = normal_logits(vocabulary, rows, 3.0) + torch.linspace(-200, 200, vocabulary)
    return logits, drawn(logits)


def _row_views(vocabulary: int, rows: int) -> Made:
    """[B, T - 1, V] and its rows lie apart: `logits[:, :-1]` of a wider tensor."""
    logits = normal_logits(vocabulary + 3, 3 * (rows + 1), 3.0).reshape(3, rows + 1, vocabulary + 3)
    view = logits[:, :-1, 1:-2]
    return view, drawn(view)


def _shared_rows(vocabulary: int, rows: int) -> Made:
    view = normal_logits(vocabulary, 2, 3.0).unsqueeze(1).expand(2, rows, vocabulary)
    return view, drawn(view)


def _turned_rows(vocabulary: int, rows: int) -> Made:
    view = (
        normal_logits(vocabulary, 4 * rows, 3.0).reshape(rows, 2, 2, vocabulary).permute(2, 0, 1, 3)
    )
    return view, drawn(view)


def _turned_columns(vocabulary: int, rows: int) -> Made:
    view = normal_logits(rows, vocabulary, 3.0).T
    return view, drawn(view)


def _single_row(vocabulary: int, rows: int) -> Made:
    logits = normal_logits(vocabulary, 1, 3.0)[0]
    return logits, drawn(logits)


def _no_rows(vocabulary: int, rows: int) -> Made:
    return torch.empty(0, 3, vocabulary), torch.empty(0, 3, dtype=torch.int64)


def _uniform(vocabulary: int, rows: int) -> Made:
    return torch.full((rows, vocabulary), 7.5), torch.arange(rows) % vocabulary


def _masked_choice(vocabulary: int, rows: int) -> Made:
    logits = normal_logits(vocabulary, rows, 3.0)
    logits[:, -1] = -math.inf
    return logits, torch.full((rows,), vocabulary - 1)


def _temperature_of_each_row(vocabulary: int, rows: int) -> Made:
    temperatures = torch.linspace(0.3, 1.7, rows, dtype=torch.float64)
    logits = normal_logits(vocabulary, rows, 3.0)
    return logits, drawn(logits / temperatures.unsqueeze(1)), temperatures


MAKERS: dict[str, Callable[[int, int], Made]] = {
    "N(0, 9)": _normal(3.0),
    "N(0, 100)": _normal(10.0),
    "N(0, 9), bfloat16": _normal(3.0, torch.bfloat16),
    "N(0, 9), float16": _normal(3.0, torch.float16),
    "N(0, 100), bfloat16": _normal(10.0, torch.bfloat16),
    "N(0, 100), float16": _normal(10.0, torch.float16),
    "N(0, 9), offset 1e4": _normal(3.0, offset=1e4),
    "N(0, 9), offset -1e4": _normal(3.0, offset=-1e4),
    "N(0, 9), offset 1e4, T = 0.6": _normal(3.0, offset=1e4, temperature=0.6),
    "N(0, 9), offset 1e4, bfloat16": _normal(3.0, torch.bfloat16, offset=1e4),
    "N(0, 9), T = 0.6": _normal(3.0, temperature=0.6),
    "N(0, 9), T = 1.7, bfloat16": _normal(3.0, torch.bfloat16, temperature=1.7),
    "N(0, 100), T = 0.3": _normal(10.0, temperature=0.3),
    "N(0, 9), T of each row": _temperature_of_each_row,
    "30 % scattered -inf": _masked(_scattered),
    "first block all -inf": _masked(_first_block),
    "padded vocabulary": _masked(_padded_vocabulary),
    "p_max = 1 - 5e-10": _nearly_certain(rare=False),
    "p_max = 1 - 5e-10, rare token": _nearly_certain(rare=True),
    "uniform": _uniform,
    "rising": _rising,
    "masked token": _masked_choice,
    "rows of a wider tensor": _row_views,
    "one row for all": _shared_rows,
    "turned rows": _turned_rows,
    "turned columns": _turned_columns,
    "one row": _single_row,
    "no rows": _no_rows,
}
