"""What a loop knows of its sequences beside their tokens: rewards and their parts, prompts,
expected answers.

`gate` keeps a bounded part of it, one row of numbers per sequence on the tokens' device, so that it
is chosen, gathered and merged over ranks as the tokens are (`contributions.py`): the last tokens of
a prompt, the first bytes of an answer.

REPETITION says whether completions run in circles, from token ids alone: no text is needed, and no
pass over logits. The first 16 sequences of a `gate` call are looked at, and no call of more than
65 536 tokens: sorting more would cost more than a step's other sums."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from isentrope.statistics.sums import Metrics, StepSums, Sum, mean_of, totals
from isentrope.statistics.tokens import StepTokens, TokenBatch
from isentrope_wire import metrics
from isentrope_wire.errors import InputError

if TYPE_CHECKING:
    from jaxtyping import Bool, Float64, Int, Int32, UInt8

REWARD, PROMPT_IDS, ANSWER = "reward", "prompt_ids", "answer"
TRUNCATED = "truncated"
"""Names under which `gate` takes them; parts of the reward are `reward/NAME`."""

REWARD_PARTS = 4
PROMPT_TOKENS = 96
ANSWER_BYTES = 48
SAMPLE_NUMBERS = REWARD_PARTS + 1 + PROMPT_TOKENS + ANSWER_BYTES


class Sample(NamedTuple):
    """What is kept of one sequence."""

    parts: Sequence[float]
    """Of the reward, as `reward_parts` names them; infinite: it has none."""
    prompt_tokens: float
    prompt: Sequence[float]
    """Its last ids, counted from 1; 0 before a shorter one."""
    answer: Sequence[float]
    """Bytes of it; 0 behind a shorter one."""


def sample_of(numbers: Sequence[float]) -> Sample:
    """The sequence whose numbers come first here."""
    prompt, answer = REWARD_PARTS + 1, SAMPLE_NUMBERS - ANSWER_BYTES
    return Sample(
        numbers[:REWARD_PARTS],
        numbers[REWARD_PARTS],
        numbers[prompt:answer],
        numbers[answer:SAMPLE_NUMBERS],
    )


def sample_numbers(
    batches: Sequence[TokenBatch], rows: Int[Tensor, " chosen"]
) -> Float64[Tensor, "chosen numbers"]:
    """What is kept of some sequences, on their device; 0 where a `gate` call was not given it."""

    def numbers(name: str, width: int) -> Tensor:
        columns = [batch.completions[name] for batch in batches if name in batch.completions]
        if len(columns) < len(batches):
            return torch.zeros((len(rows), width), dtype=torch.float64, device=rows.device)
        return torch.cat(columns).index_select(0, rows).double().view(len(rows), width)

    parts = reward_parts(batches)
    missing = [numbers("", REWARD_PARTS - len(parts))]
    of_prompts, of_answers = numbers(PROMPT_IDS, 1 + PROMPT_TOKENS), numbers(ANSWER, ANSWER_BYTES)
    return torch.cat(
        [*(numbers(name, 1) for name in parts), *missing, of_prompts, of_answers], dim=1
    )


def reward_parts(batches: Sequence[TokenBatch]) -> tuple[str, ...]:
    """Names of the parts of the reward that every `gate` call was given, at most REWARD_PARTS; the
    same on every rank."""
    names = [
        {name for name in batch.completions if name.startswith(f"{REWARD}/")}
        for batch in batches
        if batch.mask.numel()
    ]
    if names:
        return tuple(sorted(set.intersection(*names)))[:REWARD_PARTS]
    return ()


def prompt_ends(ids: Int[Tensor, "batch tokens"]) -> Int32[Tensor, "batch numbers"]:
    """How many tokens each prompt has, and its last PROMPT_TOKENS ids counted from 1; 0 before a
    shorter one. Ids are negative on padding, wherever that is."""
    is_token = ids >= 0
    padding_first = is_token.int().argsort(dim=1, stable=True)
    ends = (ids + 1).masked_fill(~is_token, 0).gather(1, padding_first)[:, -PROMPT_TOKENS:]
    return torch.cat(
        [is_token.sum(1, keepdim=True), pad(ends, (PROMPT_TOKENS - ends.shape[1], 0))], dim=1
    ).int()


def text_bytes(texts: Sequence[object], device: torch.device) -> UInt8[Tensor, "batch bytes"]:
    """The first ANSWER_BYTES of each text; 0 behind a shorter one, and all 0 in the place of
    None."""
    rows = [
        b"" if text is None else str(text)[:ANSWER_BYTES].encode(errors="replace")[:ANSWER_BYTES]
        for text in texts
    ]
    packed = bytearray(b"".join(row.ljust(ANSWER_BYTES, b"\0") for row in rows))
    return (
        torch.frombuffer(packed, dtype=torch.uint8)
        .view(len(rows), ANSWER_BYTES)
        .to(device, non_blocking=True)
    )


_OF_A_SEQUENCE = {PROMPT_IDS: "token ids, [{}, tokens]", ANSWER: "a list of {} texts"}


def completions_of(
    completions: Mapping[str, Tensor | Sequence[object]] | None, logprobs: Tensor, *, texts: bool
) -> dict[str, Tensor]:
    """What the loop knows of each sequence, copies of bounded size; without `texts` numbers
    alone."""
    kept: dict[str, Tensor] = {}
    for name, given in (completions or {}).items():
        is_reward = name in (REWARD, TRUNCATED) or name.startswith(f"{REWARD}/")
        if not is_reward and name not in _OF_A_SEQUENCE:
            raise InputError(
                f"completions takes {REWARD}, {REWARD}/NAME, {TRUNCATED}, {PROMPT_IDS} and "
                f"{ANSWER}, got {name!r}."
            )
        if logprobs.dim() != 2:
            raise InputError(
                "completions needs one row per sequence, [batch, tokens]. Leave it out where"
                " sequences are packed."
            )
        if name == ANSWER and isinstance(given, list | tuple):
            given = text_bytes(given, logprobs.device)
        rows = logprobs.shape[0]
        wanted = _OF_A_SEQUENCE.get(name, "one number per sequence, [{}]").format(rows)
        if not isinstance(given, Tensor):
            raise InputError(f"completions[{name!r}] must be {wanted}, got {given!r:.200}.")
        shape = list(given.shape)
        if is_reward:
            fits = shape == [rows]
        elif name == ANSWER:
            fits = shape == [rows, ANSWER_BYTES]
        else:
            fits = len(shape) == 2 and shape[0] == rows
        if not fits:
            raise InputError(f"completions[{name!r}] must be {wanted}, got {shape}.")
        if given.device != logprobs.device:
            raise InputError(
                f"completions[{name!r}] are on {given.device}, the scores on {logprobs.device}."
                " Move one to the other."
            )
        if is_reward or texts:
            if name == PROMPT_IDS:
                kept[name] = prompt_ends(given)
            else:
                kept[name] = given.detach().clone()
    return kept


GRAM = 4
_SEQUENCES, _MOST_TOKENS = 16, 1 << 16
_VOCABULARY, _FACTOR = 1 << 24, 6_364_136_223_846_793_005
"""Ids are digits to the first base, pairs of them to the second, of Knuth's generator, modulo 2^64:
grams that differ have one number only by a chance of 1 in 10^19."""


def repeated_grams(
    token_ids: Int[Tensor, " tokens"],
    mask: Bool[Tensor, " tokens"],
    sequences: Int[Tensor, " tokens"],
) -> Float64[Tensor, " 2"]:
    """How many grams a sequence had before, and how many there are, over all sequences.

    A gram counts where the mask holds all of its tokens, which follow each other in one
    sequence."""
    ids, width = token_ids.long(), len(token_ids) - GRAM + 1
    pairs = torch.add(ids[1:], ids[:-1], alpha=_VOCABULARY)
    # The same gram in two sequences makes two numbers.
    first = torch.add(pairs[:-2], sequences[:width], alpha=_VOCABULARY**2)
    grams = torch.add(pairs[2:], first, alpha=_FACTOR)
    counts = mask.unfold(0, GRAM, 1).all(1) & (sequences[:width] == sequences[GRAM - 1 :])
    counts = counts & (sequences[:width] < _SEQUENCES)
    # What does not count gets a number of its own, which nothing repeats.
    own = torch.arange(-1, -width - 1, -1, device=ids.device)
    ordered = torch.where(counts, grams, own).sort().values
    repeated = (ordered[1:] == ordered[:-1]).sum(dtype=torch.float64)
    return torch.stack([repeated, counts.sum(dtype=torch.float64)])


def _count_step(tokens: StepTokens) -> Tensor | None:
    counted = [_count_batch(batch) for batch in tokens.batches]
    of_batches = [counts for counts in counted if counts is not None]
    if not of_batches:
        return None
    return torch.stack(of_batches).sum(0)


def _count_batch(batch: TokenBatch) -> Tensor | None:
    """None where it is not known which tokens make a sequence, or there is no gram."""
    ids = batch.token_ids
    if ids is None or not batch.has_sequences or not GRAM <= batch.mask.numel() <= _MOST_TOKENS:
        return None
    mask = batch.mask.reshape(-1)
    sequences = torch.arange(len(mask), device=mask.device)
    if batch.packing is None:
        sequences = sequences // batch.mask.shape[1]
    else:
        count = len(batch.sequence_sums(mask.double()))
        sequences = batch.spread_sequences(sequences[:count])
    return repeated_grams(ids.reshape(-1), mask, sequences)


REPETITION: Sum[float | None] = mean_of(
    _count_step, lambda share: {metrics.COMPLETION_REPETITION: share}
)


class SampleSums(NamedTuple):
    """Over the sequences of a step."""

    rewarded: float
    reward: float
    reward_square: float
    known: float
    """Sequences of which it is known whether the length limit cut them."""
    truncated: float
    parts: tuple[float, ...]
    """Sums of the parts of the reward, in the order of `reward_parts`, then of how many sequences
    each is known."""


_NUMBERS = len(SampleSums._fields) - 1 + 2 * REWARD_PARTS


def _sum_samples(tokens: StepTokens) -> Tensor:
    total = torch.zeros(_NUMBERS, dtype=torch.float64, device=tokens.none.device)
    names = reward_parts(tokens.batches)
    for batch in tokens.batches:
        if not batch.has_sequences or not batch.completions or not batch.mask.numel():
            continue
        counts = (batch.sequence_sums(batch.mask.reshape(-1).double()) > 0).double()
        rows = [torch.zeros_like(counts)] * len(total)
        reward, truncated = batch.completions.get(REWARD), batch.completions.get(TRUNCATED)
        if reward is not None:
            rows[:3] = counts, reward.double(), reward.double() ** 2
        if truncated is not None:
            rows[3:5] = counts, (truncated > 0).double()
        for place, name in enumerate(names, start=5):
            part = batch.completions[name].double()
            rows[place] = torch.where(part.isfinite(), part, 0.0)
            rows[place + REWARD_PARTS] = part.isfinite().double()
        total = total + torch.where(counts > 0, torch.stack(rows), 0.0).sum(1)
    return total


def _read_samples(*numbers: float) -> SampleSums:
    rewarded, reward, reward_square, known, truncated, *parts = numbers
    return SampleSums(rewarded, reward, reward_square, known, truncated, tuple(parts))


def _sample_metrics(sums: SampleSums, step: StepSums) -> Metrics:
    scalars: dict[str, float] = {}
    if sums.rewarded:
        mean = sums.reward / sums.rewarded
        variance = sums.reward_square / sums.rewarded - mean * mean
        scalars[metrics.REWARD_MEAN] = mean
        if variance < 0:
            variance = 0.0
        scalars[metrics.REWARD_STD] = math.sqrt(variance)
    if sums.known:
        scalars[metrics.COMPLETION_TRUNCATED] = sums.truncated / sums.known
    return scalars


SAMPLES = totals(
    _read_samples,
    _NUMBERS,
    _sum_samples,
    _sample_metrics,
)
"""What `completions=` says of a step, over all ranks."""


def part_means(sums: SampleSums, names: Sequence[str]) -> dict[str, float]:
    """Mean of each part of the reward, under the name that the checks read: `rewards/NAME/mean`."""
    totals_of, known = sums.parts[:REWARD_PARTS], sums.parts[REWARD_PARTS:]
    return {
        f"rewards/{name.removeprefix(f'{REWARD}/')}/mean": total / count
        for name, total, count in zip(names, totals_of, known, strict=False)
        if count
    }
