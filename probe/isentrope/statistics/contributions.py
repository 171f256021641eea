"""What contributes most to a step's change of entropy, by |g S_c|: its top tokens, and the rows
that hold most of it.

Both are chosen and gathered on the device, in one go, and read on the host later. Of a row that is
longer than WINDOW tokens, those around its largest are taken. A clipped token counts as what it
would have been. `texts.py` makes of the numbers what a report holds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache, cached_property
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from isentrope.scores.layouts import Packing
from isentrope.statistics.moments import device_constant, device_number, flat, zeros
from isentrope.statistics.samples import REWARD, SAMPLE_NUMBERS, Sample, sample_numbers, sample_of
from isentrope.statistics.sums import Sum
from isentrope.statistics.tokens import StepTokens, TokenBatch
from isentrope_wire.reports import DrivingToken

if TYPE_CHECKING:
    from jaxtyping import Float64, Int

MOST = 16
"""How many tokens a step names."""

ROWS = 6
"""How many rows a step shows."""

WINDOW = 160
"""How many tokens of a row it shows at most."""

_FIELDS = ("g S_c", "code", "log p", "S_c", "H", "A", "sequence", "position")
"""Fields of a token in the vector. A code is 4 id + state: 1 where the token was kept, 3 where it
was clipped, 0 or 2 where it does not count. Id, sequence and position are -1 where not known."""

_OF_A_WINDOW = ("g S_c", "code", "log p", "S_c", "influence")
"""Fields of each token of a window. An influence of 0 was not measured."""


class TableLayout:
    """Where named tables of numbers lie in one vector, each row by row."""

    def __init__(self, shapes: Mapping[str, tuple[int, int]]) -> None:
        """`shapes`: rows and columns of each table, in order."""
        self._shapes = shapes
        sizes = [rows * columns for rows, columns in shapes.values()]
        self._starts = dict(zip(shapes, accumulate(sizes, initial=0), strict=False))
        self.size = sum(sizes)

    def pack(self, tables: Mapping[str, Tensor]) -> list[Tensor]:
        """The vector's parts in order: each table, and zeros for rows that it does not have."""
        parts = []
        for name, (rows, columns) in self._shapes.items():
            table = tables[name]
            parts.append(table.reshape(-1))
            if missing := rows * columns - table.numel():
                parts.append(zeros(missing, table.device))
        return parts

    def row(self, numbers: Sequence[float], name: str, row: int) -> Sequence[float]:
        """One row of a table in a vector."""
        columns = self._shapes[name][1]
        start = self._starts[name] + row * columns
        return numbers[start : start + columns]

    def number(self, numbers: Sequence[float], name: str, row: int) -> float:
        """The only number in a row of a table in a vector."""
        return numbers[self._starts[name] + row]


LAYOUT = TableLayout(
    {
        "tokens": (MOST, len(_FIELDS)),
        "largest": (ROWS, len(_FIELDS)),
        "sum of |g S_c|": (ROWS, 1),
        "reward": (ROWS, 1),
        "first": (ROWS, 1),
        "left": (ROWS, 1),
        **dict.fromkeys(_OF_A_WINDOW, (ROWS, WINDOW)),
        "sample": (ROWS, SAMPLE_NUMBERS),
    }
)
"""A rank's vector: the top tokens; then of each row its largest token, the sum over its tokens, its
reward (infinite: not known), where its window begins, how many tokens follow from there, the
window, and what is kept of the sequence."""


class Row(NamedTuple):
    """A row of a step that contributes much, as its rank measured it."""

    rank: int
    absolute_effect: float
    """Sum of |g S_c| over all its tokens."""
    reward: float
    """Infinite: not known."""
    first: int
    """Position of the first of the numbers below."""
    left: int
    """How many tokens the row has from there on."""
    largest: DrivingToken
    """Its token with the largest |g S_c|."""
    sample: Sample
    effects: Sequence[float]
    """g S_c of WINDOW tokens; likewise the next four, influences (0: not measured) last. What lies
    beyond the row's end does not count."""
    codes: Sequence[float]
    logprobs: Sequence[float]
    vocab_centered_scores: Sequence[float]
    influences: Sequence[float]


class Contributions(NamedTuple):
    """What contributes most, largest first; tokens without their texts, and by the gradient's own
    scale."""

    tokens: tuple[DrivingToken, ...]
    rows: tuple[Row, ...]

    def merge(self, other: Contributions) -> Contributions:
        tokens = sorted((*self.tokens, *other.tokens), key=lambda token: -abs(token.contribution))
        rows = sorted((*self.rows, *other.rows), key=lambda row: -row.absolute_effect)
        return Contributions(tuple(tokens[:MOST]), tuple(rows[:ROWS]))


def id_and_kept(code: float) -> tuple[int, bool | None]:
    """Token id, and whether the token was kept; None: it does not count."""
    token_id, state = divmod(int(code), 4)
    return token_id, {1: True, 3: False}.get(state)


def measure_contributions(tokens: StepTokens) -> list[Tensor]:
    """Top tokens, then of each row its largest token, numbers of its own, and its window."""
    sizes = tokens.effects.abs()
    top = sizes.topk(min(MOST, sizes.numel())).indices
    rows = _Rows(tokens.batches, tokens.valid.device)
    totals, peaks = rows.totals_and_peaks(sizes)
    largest = totals.topk(min(ROWS, len(totals)))
    start, width = rows.starts_and_widths(largest.indices)
    peak = peaks.index_select(0, largest.indices)
    first = peak - WINDOW // 2
    if isinstance(width, int):
        first.clamp_(0, max(width - WINDOW, 0))
    else:
        first = torch.minimum(first, width - WINDOW).clamp_(min=0)
    left, steps = width - first, _steps(first.device)
    chosen = torch.cat([top, start + peak, ((start + first).unsqueeze(1) + steps).reshape(-1)])
    if not isinstance(width, int) or width < WINDOW:
        chosen.clamp_(max=sizes.numel() - 1)
    found = _gathered(tokens, chosen)
    named = len(top) + len(peak)
    sequence, position = rows.places(chosen[:named])
    windows = {name: found[name][named:].view(-1, WINDOW) for name in _OF_A_WINDOW}
    # What lies beyond a row's end does not count.
    if not isinstance(width, int):
        windows["code"].mul_(steps < left.unsqueeze(1))
    elif width < WINDOW:
        windows["code"][:, width:].zero_()
    fields = [*(found[name][:named] for name in _FIELDS[:6]), sequence.double(), position.double()]
    named_tokens = torch.stack(fields, dim=1)
    return LAYOUT.pack(
        {
            "tokens": named_tokens[: len(top)],
            "largest": named_tokens[len(top) :],
            "sum of |g S_c|": largest.values,
            "reward": rows.rewards(largest.indices),
            "first": first.double(),
            "left": left.double(),
            **windows,
            "sample": sample_numbers(rows.batches, largest.indices),
        }
    )


def _gathered(tokens: StepTokens, chosen: Int[Tensor, " chosen"]) -> dict[str, Tensor]:
    """The fields of some tokens but for their places."""
    found = tokens.select(chosen)
    batches = [batch for batch in tokens.batches if batch.mask.numel()]
    if any(batch.token_ids is not None for batch in batches):
        ids = flat([_or_unknown(batch.token_ids, batch.mask) for batch in batches]).index_select(
            0, chosen
        )
        code = torch.add(found["valid"], ids, alpha=4)
    else:
        code = found["valid"] - 4
    if tokens.factors is not None:
        code.add_(~tokens.kept.index_select(0, chosen), alpha=2)
    influences = tokens.influences("gated")
    if influences is None:
        influence = zeros(len(chosen), code.device)
    else:
        influence = influences.index_select(0, chosen)
    return found | {"code": code, "influence": influence}


@cache
def _steps(device: torch.device) -> Tensor:
    """0, 1, 2 ... of a window."""
    return device_constant(range(WINDOW), device).long()


def _or_unknown(token_ids: Tensor | None, mask: Tensor) -> Tensor:
    if token_ids is None:
        return torch.full_like(mask, -1, dtype=torch.int64)
    return token_ids.long()


class _Block(NamedTuple):
    """Rows of one width that follow each other, or packed sequences."""

    rows: int
    width: int
    """0 of packed sequences, which differ."""
    sequence: int
    """Number of the first row among the rank's; -1: the tokens of this `gate` call are not in rows,
    they are one."""
    packing: Packing | None = None

    @property
    def tokens(self) -> int:
        """Of all its rows."""
        if self.packing is None:
            return self.rows * self.width
        return self.packing.count

    def table(self, device: torch.device) -> Int[Tensor, "3 rows"]:
        """Where each row begins in the block, its width and its number."""
        index = torch.arange(self.rows, device=device)
        if self.packing is not None:
            about = self.packing.starts, self.packing.lengths
        else:
            about = index * self.width, torch.full_like(index, self.width)
        sequence = torch.full_like(index, -1)
        if self.sequence >= 0:
            sequence = index + self.sequence
        return torch.stack([*about, sequence])

    def totals_and_peaks(self, sizes: Float64[Tensor, " tokens"]) -> tuple[Tensor, Tensor]:
        """For each row the sum of the sizes, and the position of the largest; of a row without
        tokens 0."""
        packing = self.packing
        if packing is None:
            of_rows = sizes.view(self.rows, self.width)
            return of_rows.sum(1), of_rows.argmax(1)
        none = sizes.new_zeros(self.rows)
        highest = none.scatter_reduce(0, packing.sequence, sizes, "amax")
        places = torch.arange(packing.count, device=sizes.device)
        # The first of equals, as `argmax` gives it.
        places = torch.where(sizes == packing.spread(highest), places, packing.count)
        first = places.new_full((self.rows,), packing.count)
        first.scatter_reduce_(0, packing.sequence, places, "amin")
        peaks = torch.where(packing.lengths > 0, first - packing.starts, 0)
        return packing.sums(sizes), peaks


class _Rows:
    """Where the rows of a step are among its tokens. Their shapes are known; what is chosen of them
    is not, and stays on the device."""

    def __init__(self, batches: Sequence[TokenBatch], device: torch.device) -> None:
        self.batches, self._device = [batch for batch in batches if batch.mask.numel()], device
        self._blocks: list[_Block] = []
        sequences = 0
        for batch in self.batches:
            if batch.packing is not None:
                rows = len(batch.packing.lengths)
                self._blocks.append(_Block(rows, 0, sequences, batch.packing))
                sequences += rows
                continue
            if batch.mask.dim() != 2:
                self._blocks.append(_Block(1, batch.mask.numel(), -1))
                continue
            rows, width = batch.mask.shape
            last = None
            if self._blocks:
                last = self._blocks[-1]
            if (
                last is not None
                and last.packing is None
                and last.sequence >= 0
                and last.width == width
            ):
                self._blocks[-1] = last._replace(rows=last.rows + rows)
            else:
                self._blocks.append(_Block(rows, width, sequences))
            sequences += rows
        only = self._blocks[0]
        self._width = None
        if len(self._blocks) == 1 and only.sequence == 0 and only.packing is None:
            self._width = only.width
        """Width of all rows; None: they differ, or the tokens are not in rows."""

    @cached_property
    def _table(self) -> Int[Tensor, "3 rows"]:
        """Where each row begins, its width and its number."""
        columns, start = [], 0
        for block in self._blocks:
            table = block.table(self._device)
            table[0] += start
            columns.append(table)
            start += block.tokens
        return torch.cat(columns, dim=1)

    def totals_and_peaks(self, sizes: Float64[Tensor, " tokens"]) -> tuple[Tensor, Tensor]:
        """For each row the sum of the sizes, and the position of the largest."""
        totals, peaks, start = [], [], 0
        for block in self._blocks:
            end = start + block.tokens
            of_rows, places = block.totals_and_peaks(sizes[start:end])
            totals.append(of_rows)
            peaks.append(places)
            start = end
        return flat(totals), flat(peaks)

    def starts_and_widths(self, rows: Int[Tensor, " chosen"]) -> tuple[Tensor, Tensor | int]:
        """Where some rows begin among the step's tokens, and their widths."""
        if self._width is not None:
            return rows * self._width, self._width
        start, width, _ = self._table.index_select(1, rows).unbind()
        return start, width

    def places(self, chosen: Int[Tensor, " chosen"]) -> tuple[Tensor, Tensor]:
        """Sequence and position of some tokens."""
        if self._width is not None:
            return chosen // self._width, chosen % self._width
        row = torch.searchsorted(self._table[0].contiguous(), chosen, right=True) - 1
        start, _, sequence = self._table.index_select(1, row).unbind()
        return sequence, chosen - start

    def rewards(self, rows: Int[Tensor, " chosen"]) -> Tensor:
        """Rewards of the chosen rows, infinite where a `gate` call was not given them."""
        rewards = [batch.completions.get(REWARD) for batch in self.batches]
        known = [reward for reward in rewards if reward is not None]
        if len(known) < len(rewards):
            return device_number(math.inf, self._device).expand(len(rows))
        return flat(known).double().index_select(0, rows)


def _token(numbers: Sequence[float], rank: int) -> DrivingToken | None:
    """The token of _FIELDS; None where it does not count."""
    row = dict(zip(_FIELDS, numbers, strict=True))
    token_id, kept = id_and_kept(row["code"])
    if kept is None:
        return None
    return DrivingToken(
        rank=rank,
        sequence=int(row["sequence"]) if row["sequence"] >= 0 else None,
        position=int(row["position"]),
        token_id=token_id if token_id >= 0 else None,
        text=None,
        logprob=row["log p"],
        entropy=row["H"],
        vocab_centered_score=row["S_c"],
        advantage=row["A"],
        contribution=-row["g S_c"],
        kept=kept,
    )


def _row(numbers: Sequence[float], row: int, rank: int) -> Row | None:
    """A row of the step; None where there is none, or nothing in it moves the entropy."""
    largest = _token(LAYOUT.row(numbers, "largest", row), rank)
    absolute_effect = LAYOUT.number(numbers, "sum of |g S_c|", row)
    if largest is None or not absolute_effect > 0:
        return None
    effects, codes, logprobs, scores, influences = (
        LAYOUT.row(numbers, name, row) for name in _OF_A_WINDOW
    )
    return Row(
        rank=rank,
        absolute_effect=absolute_effect,
        reward=LAYOUT.number(numbers, "reward", row),
        first=int(LAYOUT.number(numbers, "first", row)),
        left=int(LAYOUT.number(numbers, "left", row)),
        largest=largest,
        sample=sample_of(LAYOUT.row(numbers, "sample", row)),
        effects=effects,
        codes=codes,
        logprobs=logprobs,
        vocab_centered_scores=scores,
        influences=influences,
    )


def _read(numbers: Sequence[float], rank: int) -> Contributions:
    tokens = (_token(LAYOUT.row(numbers, "tokens", place), rank) for place in range(MOST))
    rows = (_row(numbers, place, rank) for place in range(ROWS))
    return Contributions(
        tokens=tuple(token for token in tokens if token is not None),
        rows=tuple(row for row in rows if row is not None),
    )


CONTRIBUTIONS = Sum(
    size=LAYOUT.size,
    measure=measure_contributions,
    read=_read,
    merge=Contributions.merge,
)
