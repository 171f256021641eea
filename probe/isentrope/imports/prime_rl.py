"""prime-rl's token export (its schema version 1), summed up by step.

`token_exports/step_N/rank_R.jsonl` holds a sequence a line: lists of one length, a value for each token. Counted are the
tokens whose `loss_mask` is true. Per-token scores over the vocabulary are not in it, so no Sc: only what follows from a
token's own probability and entropy, S* = p (H + log p), can be computed.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from isentrope.imports.delivery import ImportRefused
from isentrope_wire.metrics import (
    CLIP_FRACTION,
    COMPLETION_LENGTH_MEAN,
    COVARIANCE_ADVANTAGE_LOGPROB,
    DISCRIMINATOR_SCORES,
    ENTROPY_MEAN,
    RATIO_MEAN,
    REWARD_MEAN,
    SCORE_DISCRIMINATOR_MEAN,
    SCORE_DISCRIMINATOR_STD,
    TOKEN_COUNT,
    TOKEN_ENTROPIES,
    TOKEN_PROBABILITIES,
)
from isentrope_wire.reports import ScoreHistogram, StepReport

_SCHEMA_VERSION = 1
_COLUMNS = ("loss_mask", "trainer_logprobs", "entropy")
"""Columns that every sequence must have."""
_BINS = 64


@dataclass(slots=True)
class _Step:
    """Values of the counted tokens of one step, over all ranks."""

    written_at: float = 0.0
    entropies: list[float] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    advantages: list[tuple[float, float]] = field(default_factory=list)
    """Advantage and log-prob of each token."""
    ratios: list[float] = field(default_factory=list)
    masked: list[bool] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    """One for each sequence."""
    lengths: list[int] = field(default_factory=list)


def is_token_export(path: Path) -> bool:
    """Whether a path is a `token_exports` folder, a step of one, or one rank's file."""
    return bool(_files(path)) or (path.name.startswith("rank_") and path.suffix == ".jsonl" and path.is_file())


def read_token_export(path: Path) -> list[StepReport]:
    """One report for each step.

    Raises:
        ImportRefused: the path is no token export; the message names the line.
    """
    steps: dict[int, _Step] = {}
    for file in _files(path) or [path]:
        for place, sequence in _sequences(file):
            step = _whole(place, sequence, "export_step" if "export_step" in sequence else "step")
            one = steps.setdefault(step, _Step())
            one.written_at = max(one.written_at, file.stat().st_mtime)
            _add(place, sequence, one)
    reports = [_report(number, steps[number]) for number in sorted(steps) if steps[number].entropies]
    if not reports:
        raise ImportRefused(f"{path} has no token that takes part in the loss.")
    return reports


def _files(path: Path) -> list[Path]:
    patterns = ("rank_*.jsonl", "step_*/rank_*.jsonl", "token_exports/step_*/rank_*.jsonl")
    found = {file for pattern in patterns for file in path.glob(pattern)} if path.is_dir() else set()
    return sorted(file for file in found if file.is_file())


def _sequences(file: Path) -> Iterator[tuple[str, Mapping[str, object]]]:
    with file.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            place = f"{file}, line {number}"
            try:
                sequence = json.loads(line)
            except json.JSONDecodeError as error:
                raise ImportRefused(f"{place} must be a JSON object, got {line[:60]!r} ({error}).") from error
            version = sequence.get("schema_version") if isinstance(sequence, dict) else None
            if version != _SCHEMA_VERSION:
                raise ImportRefused(
                    f"{place}: schema version {_SCHEMA_VERSION} of a token export can be read, got {version!r}."
                )
            yield place, sequence


def _whole(place: str, sequence: Mapping[str, object], name: str) -> int:
    value = sequence.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ImportRefused(f"{place}: {name} is a whole number from 0 on, got {value!r}.")
    return value


def _column(place: str, sequence: Mapping[str, object], name: str, length: int | None) -> list[object]:
    column = sequence.get(name)
    if column is None and length is not None and name not in _COLUMNS:
        return [None] * length
    if not isinstance(column, list) or (length is not None and len(column) != length):
        raise ImportRefused(f"{place}: {name} is a list with a value for each token, got {str(column)[:60]!r}.")
    return column


def _add(place: str, sequence: Mapping[str, object], step: _Step) -> None:
    mask = _column(place, sequence, "loss_mask", None)
    columns = {
        name: _column(place, sequence, name, len(mask))
        for name in ("trainer_logprobs", "entropy", "advantages", "importance_ratio", "is_masked", "rewards")
    }
    counted = [index for index, takes_part in enumerate(mask) if takes_part is True]
    step.lengths.append(len(counted))
    rewards = [value for index in counted if (value := _real(columns["rewards"][index])) is not None]
    if rewards:
        # One reward for the whole sequence, repeated at each of its tokens.
        step.rewards.append(statistics.fmean(rewards))
    for index in counted:
        values = {name: _real(column[index]) for name, column in columns.items()}
        logprob, entropy = values["trainer_logprobs"], values["entropy"]
        if logprob is None or entropy is None:
            # Written as null where it was not finite.
            continue
        step.logprobs.append(logprob)
        step.entropies.append(entropy)
        if (advantage := values["advantages"]) is not None:
            step.advantages.append((advantage, logprob))
        if (ratio := values["importance_ratio"]) is not None:
            step.ratios.append(ratio)
        if isinstance(masked := columns["is_masked"][index], bool):
            step.masked.append(masked)


def _real(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _report(number: int, step: _Step) -> StepReport:
    probabilities = [math.exp(min(logprob, 0.0)) for logprob in step.logprobs]
    discriminators = [
        p * (entropy + logprob)
        for p, entropy, logprob in zip(probabilities, step.entropies, step.logprobs, strict=True)
    ]
    scalars: dict[str, float] = {
        ENTROPY_MEAN: statistics.fmean(step.entropies),
        SCORE_DISCRIMINATOR_MEAN: statistics.fmean(discriminators),
        SCORE_DISCRIMINATOR_STD: statistics.pstdev(discriminators),
        TOKEN_COUNT: float(len(step.entropies)),
        COMPLETION_LENGTH_MEAN: statistics.fmean(step.lengths),
    }
    for name, values in ((REWARD_MEAN, step.rewards), (RATIO_MEAN, step.ratios), (CLIP_FRACTION, step.masked)):
        if values:
            scalars[name] = statistics.fmean(values)
    if step.advantages:
        scalars[COVARIANCE_ADVANTAGE_LOGPROB] = _covariance(step.advantages)
    edge = max(map(abs, discriminators)) or 1.0
    return StepReport(
        step=number,
        recorded_at=step.written_at,
        scalars=scalars,
        histograms=(
            _histogram(TOKEN_ENTROPIES, step.entropies, 0.0, max(step.entropies) or 1.0),
            _histogram(DISCRIMINATOR_SCORES, discriminators, -edge, edge),
            _histogram(TOKEN_PROBABILITIES, probabilities, 0.0, 1.0),
        ),
        labels={"imported/from": "prime-rl"},
    )


def _covariance(pairs: Sequence[tuple[float, float]]) -> float:
    """Mean of the product of both deviations."""
    first, second = (statistics.fmean(column) for column in zip(*pairs, strict=True))
    return statistics.fmean((x - first) * (y - second) for x, y in pairs)


def _histogram(name: str, values: Sequence[float], low: float, high: float) -> ScoreHistogram:
    counts = [0] * _BINS
    for value in values:
        counts[min(_BINS - 1, max(0, int((value - low) / (high - low) * _BINS)))] += 1
    return ScoreHistogram(name=name, low=low, high=high, counts=tuple(counts))
