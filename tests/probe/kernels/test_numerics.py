"""Every backend against float64, over a list of cases that broke kernels before."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from isentrope.kernels import cpp_backend, reference, triton_backend
from isentrope.kernels.dispatch import Backend
from isentrope.kernels.moments import Upstream, finish, merge
from tests.probe.kernels import numerics
from tests.probe.kernels.numerics import Case
from tests.probe.scores.reference64 import scores64


@dataclass(frozen=True, slots=True)
class Candidate:
    """A backend, how exact it must be, and at which sizes it is asked."""

    name: str
    backend: Backend
    tolerance: float
    """Max abs error in nats."""
    vocabularies: tuple[int, ...]
    """Sizes every case is made in, and but for the last one its gradients: the smallest, and some
    no block divides."""
    shared: int
    """A size for the other tests."""
    rows: int = 5
    """Of each case."""


SIZES = (2, 3, 97, 4099, 16411)
BACKENDS = [
    Candidate("reference", reference, 2e-6, SIZES, 4099),
    Candidate("cpp", cpp_backend, 1e-6, SIZES, 4099),
    Candidate(
        "triton", triton_backend, 1e-6, (3, 97), 97, rows=2
    ),  # interpreted: slow, and without a device
]
LARGER = Candidate("triton, larger", triton_backend, 1e-6, (2, 301, 4099), 97, rows=2)

every_backend = pytest.mark.parametrize("candidate", BACKENDS, ids=lambda candidate: candidate.name)
every_backend_and_size = pytest.mark.parametrize(
    "candidate",
    [*BACKENDS, pytest.param(LARGER, marks=pytest.mark.slow)],
    ids=lambda candidate: candidate.name,
)
every_dtype = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])


def asked(candidate: Candidate, cases: list[Case]) -> list[Case]:
    """The cases a backend is asked about; the others go to the reference by `supports`."""
    return [case for case in cases if candidate.backend.supports(case.logits)]


@pytest.fixture(autouse=True, scope="module")
def kernels_are_there() -> None:
    assert cpp_backend.unavailable_because() is None
    assert triton_backend.unavailable_because() is None


@every_backend_and_size
def test_scores_equal_float64(candidate: Candidate) -> None:
    errors = {
        (case.name, vocabulary, field): error
        for vocabulary in candidate.vocabularies
        for case in asked(candidate, numerics.cases(vocabulary, candidate.rows))
        if case.token_ids.numel() > 0
        for field, error in numerics.errors_of(
            numerics.scored(candidate.backend, case), case
        ).items()
    }
    assert len(errors) > 100 * len(candidate.vocabularies)
    # Of a sum of squares, the error of Q0 is multiplied by (Z1 / Z)^2.
    squares = {place: error for place, error in errors.items() if place[-1] == "squared_scores"}
    assert numerics.too_large(squares, 3 * candidate.tolerance) == {}
    assert (
        numerics.too_large(
            {place: errors[place] for place in errors.keys() - squares.keys()}, candidate.tolerance
        )
        == {}
    )


@every_backend
def test_no_rows_give_no_scores(candidate: Candidate) -> None:
    (case,) = (case for case in numerics.cases(candidate.shared) if case.name == "no rows")
    assert [
        len(numbers) for numbers in numerics.numbers_of(numerics.scored(candidate.backend, case))
    ] == [0] * 6
    gradient = numerics.gradient_by(candidate.backend, case, torch.zeros(0, 3), None)
    assert (gradient.shape, gradient.dtype) == (case.logits.shape, case.logits.dtype)


@every_backend
@every_dtype
@pytest.mark.parametrize("broken", [math.nan, math.inf, "all masked"])
@pytest.mark.parametrize("masked_first", [False, True])
def test_only_broken_rows_are_nan(
    candidate: Candidate, dtype: torch.dtype, broken: float | str, masked_first: bool
) -> None:
    logits = numerics.normal_logits(candidate.shared, 5, 3.0)
    if masked_first:
        logits[:, : candidate.shared * 3 // 4] = -math.inf
    case = Case("broken", logits.to(dtype), torch.full((5,), candidate.shared - 1))
    for row, column in enumerate((0, candidate.shared // 2, candidate.shared - 1), start=1):
        if isinstance(broken, str):
            case.logits[row] = -math.inf
        else:
            case.logits[row, column] = broken
    rows = numerics.scored(candidate.backend, case)
    spoilt = [numbers.isnan().tolist() for numbers in numerics.numbers_of(rows)]
    assert spoilt == [[False, True, True, True, False]] * 6
    gradient = numerics.gradient_by(candidate.backend, case, torch.ones(5), torch.ones(5))
    assert gradient.isnan().any(-1).tolist() == [False, True, True, True, False]


@every_backend
def test_half_precision_is_read_as_torch(candidate: Candidate) -> None:
    for dtype in (torch.float16, torch.bfloat16):
        numbers = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32).to(torch.int16).view(dtype)
        numbers = numbers[numbers.isfinite() & (numbers.abs() < 1e30)]
        numbers = numbers[: candidate.shared] if candidate.shared < 4099 else numbers
        logits = torch.stack([numbers, torch.zeros_like(numbers)], -1)
        moments = candidate.backend.row_moments(
            logits, torch.zeros(len(numbers), dtype=torch.int64), 1.0
        )
        wide = numbers.double()
        torch.testing.assert_close(moments.maximum, wide.clamp(min=0), rtol=1e-6, atol=0)
        torch.testing.assert_close(moments.chosen_shifted, wide.clamp(max=0), rtol=1e-6, atol=1e-45)


@every_backend
@every_dtype
@pytest.mark.parametrize("cuts", [(1,), (0.5,), (0.1, 0.2, 0.9)])
def test_slices_merge_into_whole_row(
    candidate: Candidate, dtype: torch.dtype, cuts: tuple[float, ...]
) -> None:
    whole = numerics.normal_logits(candidate.shared, 5, 3.0).to(dtype)
    whole[2, : candidate.shared // 2] = -math.inf
    token_ids = numerics.drawn(whole)
    edges = [
        0,
        *(cut if cut == 1 else int(cut * candidate.shared) for cut in cuts),
        candidate.shared,
    ]
    slices = [
        candidate.backend.row_moments(
            whole[:, int(first) : int(last)], token_ids, 0.9, start=int(first), squared=True
        )
        for first, last in itertools.pairwise(edges)
    ]
    exact = scores64(whole, token_ids, 0.9)
    for parts in (slices, slices[::-1]):
        rows = finish(merge(parts))
        for field in numerics.FIELDS:
            torch.testing.assert_close(
                getattr(rows, field), exact[field], rtol=0, atol=candidate.tolerance
            )


@every_backend
def test_squares_change_no_other_number(candidate: Candidate) -> None:
    for case in asked(candidate, numerics.cases(candidate.shared, candidate.rows)):
        with_squares, without = (
            candidate.backend.row_moments(
                case.logits, case.token_ids, case.temperature, squared=squared
            )
            for squared in (True, False)
        )
        assert without.square_shifted_twice is None
        for got, expected in zip(
            numerics.numbers_of(with_squares)[:6], numerics.numbers_of(without), strict=True
        ):
            # A compiler may fuse another product and sum of the float64 sums.
            torch.testing.assert_close(got, expected, rtol=1e-14, atol=0, equal_nan=True)


def upstream(case: Case, kind: str) -> tuple[Tensor | None, Tensor | None]:
    """Gradients g of the log-probs and h of the entropies."""
    generator = torch.Generator().manual_seed(5)
    logprob, entropy = (torch.randn(case.token_ids.shape, generator=generator) for _ in range(2))
    return (logprob if "log-prob" in kind else None), (entropy if "entropy" in kind else None)


@every_backend_and_size
@pytest.mark.parametrize("kind", ["log-prob", "entropy", "log-prob and entropy"])
def test_gradients_equal_float64_autograd(candidate: Candidate, kind: str) -> None:
    errors: dict[tuple[str, int], float] = {}
    for vocabulary in candidate.vocabularies[:-1]:
        for case in asked(candidate, numerics.cases(vocabulary, candidate.rows)):
            gradients = upstream(case, kind)
            gradient = numerics.gradient_by(candidate.backend, case, *gradients)
            assert (gradient.dtype, gradient.shape) == (case.logits.dtype, case.logits.shape)
            exact = numerics.exact_gradient(case, *gradients)
            errors[case.name, vocabulary] = numerics.gradient_excess(
                gradient, exact, candidate.tolerance
            )
    assert numerics.too_large(errors, 1.0) == {}


@every_backend
def test_gradient_can_be_sliced(candidate: Candidate) -> None:
    case = Case(
        "slices",
        numerics.normal_logits(candidate.shared, 4, 3.0),
        torch.tensor([0, 1, 40, candidate.shared - 1]),
        0.8,
    )
    gradients = upstream(case, "log-prob and entropy")
    whole, rows, middle = (
        numerics.exact_gradient(case, *gradients),
        numerics.scored(candidate.backend, case),
        41,
    )
    for first, last in ((0, middle), (middle, candidate.shared)):
        arriving = Upstream(case.token_ids, rows.log_normalizer, rows.entropies, *gradients)
        part = candidate.backend.logit_gradient(
            case.logits[:, first:last], arriving, 0.8, start=first
        )
        torch.testing.assert_close(
            part.double(), whole[:, first:last], rtol=0, atol=candidate.tolerance
        )


@every_backend
def test_gated_tokens_get_no_gradient(candidate: Candidate) -> None:
    logits = numerics.normal_logits(candidate.shared, 3, 3.0)
    logits[:, 3] = -math.inf
    logits[2, 5] = math.nan  # padding may hold anything
    case = Case("gated", logits, torch.zeros(3, dtype=torch.int64))
    gate = torch.tensor([0.0, 1.0, 0.0])
    gradient = numerics.gradient_by(candidate.backend, case, gate, gate)
    assert gradient.abs().sum(-1).gt(0).tolist() == [False, True, False]
    assert gradient[:, 3].tolist() == [0.0, 0.0, 0.0]


@every_backend
def test_nearly_certain_gradient_does_not_cancel(candidate: Candidate) -> None:
    """1 - p = 5e-10 is far below float32's spacing around 1."""
    logits = torch.tensor([[0.0, math.log(5e-10)]])
    case = Case("nearly certain", logits, torch.tensor([0]))
    gradient = numerics.gradient_by(candidate.backend, case, torch.ones(1), None)
    assert gradient[0, 1].item() == pytest.approx(-5e-10, rel=1e-5)
    lost = 0.0 if candidate.backend is cpp_backend else 1.2e-7
    assert gradient[0, 0].item() == pytest.approx(5e-10, rel=1e-5, abs=lost)


@every_backend
@every_dtype
def test_logits_are_only_read(candidate: Candidate, dtype: torch.dtype) -> None:
    logits = numerics.normal_logits(candidate.shared, 4, 3.0).to(dtype)
    case, before = Case("read", logits, numerics.drawn(logits)), logits.clone()
    numerics.gradient_by(candidate.backend, case, torch.ones(4), torch.ones(4))
    assert torch.equal(logits, before)
