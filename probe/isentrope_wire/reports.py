"""What probe and server exchange, as plain frozen dataclasses.

Times are seconds since the Unix epoch, entropies and scores are in nats. A quantity that was not
measured is absent from `scalars`, never 0.

The limits of what a run may report. The probe checks them where it is built; the server cuts what
exceeds them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from isentrope_wire.control import Control
from isentrope_wire.metrics import (
    CLIP_FRACTION,
    ENTROPY_MEAN,
    ENTROPY_OBSERVED_CHANGE,
    ENTROPY_PREDICTED_CHANGE,
    REWARD_MEAN,
)
from isentrope_wire.numbers import Answer, Count, Index, Number
from isentrope_wire.what_if import WhatIfSums

PROTOCOL_VERSION = 8

_SHOWN_FIRST = (
    ENTROPY_MEAN,
    ENTROPY_PREDICTED_CHANGE,
    ENTROPY_OBSERVED_CHANGE,
    CLIP_FRACTION,
    REWARD_MEAN,
)
"""Scalars that a printed report shows; the rest are counted."""

PREDICTION_BASIS = "entropy/prediction_basis"
"""Label of a report: what its prediction was made from, `entropy_gradient` where it is coupled;
else what the unit prediction was read from, `loss_gradient` or `advantages`."""
ENTROPY_GRADIENT, LOSS_GRADIENT, ADVANTAGES = "entropy_gradient", "loss_gradient", "advantages"
"""The last two: g is read from the gradient of the loss, or is r A as in the theorems."""
HOLD_STATE, HOLD_WHY = "hold/state", "hold/why"
"""What a hold does in the step (`HoldStatus`), and why it does not act."""
COURSE_SAID = "entropy/urgency_said"
"""Label of a report where the entropy's course is more urgent than what was said of it, 0 nothing,
1 watch: it is what learning costs, or follows from a cause that was named."""
CHECKS_HOLDING = "checks/holding"
"""Label of a report: the kinds that rang and still hold, by commas; none before the first rings."""
CHECKS_FOLLOWING = "checks/following"
"""Label of a report: what the checks found at this step and did not ring for, each with the cause
that it follows from: `plateau=truncation,length=truncation`."""
LIKELY_CAUSE = "sampler/likely_cause"
"""Label of a report: why tokens and logits do not belong together, in words."""


class OutcomeState(StrEnum):
    """How one rank ended one control version. Each version ends in exactly one of these."""

    APPLIED = "APPLIED"
    REJECTED = "REJECTED"
    EXPIRED = "EXPIRED"
    SUPERSEDED = "SUPERSEDED"


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlSnapshot:
    """The whole requested control of a run at one version, so that one message after a reconnect is
    enough."""

    version: Count
    control: Control
    author: str
    requested_at: float
    expires_at: float | None = None
    """A probe that reads the snapshot later than this, by the clock of its machine, does not apply
    it."""
    unreadable: str = ""
    """Why this probe can't read the control: the version is to be rejected, and `control` means
    nothing. Set by the shipper for the training process; the server never sends it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlOutcome:
    """What became of a control version on one rank; travels up with the next report."""

    version: Count
    state: OutcomeState
    at: float
    step: Count | None = None
    """The first step in which the control was active; only when APPLIED."""
    code: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStarted:
    """One rank of one incarnation of a run describes itself. The first record of every spool, and
    the Hello."""

    run_id: str
    incarnation: str
    rank: Index
    world_size: Index
    name: str
    project: str
    started_at: float
    probe_version: str
    config: Mapping[str, object] = field(default_factory=dict)
    tags: tuple[str, ...] = ()
    capabilities: tuple[str, ...] = ()
    """What this probe can carry out, e.g. `method:clip_v`; the server refuses controls that need
    anything else."""
    planned_steps: Count | None = None
    initial_control: ControlSnapshot | None = None
    """The control the run starts with: version 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreHistogram(Answer):
    """Counts over equal bins of [low, high]; values that are not finite are counted apart."""

    name: str
    low: Number
    high: Number
    counts: tuple[Count, ...]
    not_finite: Count = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DrivingToken(Answer):
    """One of the tokens of a step that count most for the change of its entropy."""

    rank: Index
    sequence: Index | None
    """Row of the token among the rank's rows of the step, in the order they were gated; None: there
    are no rows."""
    position: Index
    """In its row; among the tokens of its `gate` call where there are no rows."""
    token_id: Count | None
    text: str | None
    """At most 40 characters; None without a tokenizer. Any text is possible, as a model or a user
    wrote it: show it as text, never as markup."""
    logprob: Number
    entropy: Number
    vocab_centered_score: Number
    advantage: Number
    contribution: Number
    """-u S_c in nats per unit gain, over no count; what it would have been where the token was
    clipped."""
    kept: bool
    """Whether its gradient took part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout(Answer):
    """Running text: the tokens of one row of a step around the one that contributes most, with
    their contributions.

    The lists have one item per token. Of a token that the mask leaves out, such as the output of a
    tool, only the text is known. On the wire numbers are rounded to 1/8191 of the list's largest.
    """

    rank: Index
    sequence: Index | None
    """As a `DrivingToken`'s."""
    first_position: Index
    """Position in its row of the first token here."""
    cut_before: bool
    """Whether the row has tokens before the first one here."""
    cut_after: bool
    """Whether the row has tokens after the last one here."""
    advantage: Number
    """Advantage of the token that contributes most."""
    reward: Number | None
    """None: not known."""
    absolute_contribution: Number
    """Sum of |contribution| over all tokens of the row, also those that are not here."""
    texts: tuple[str, ...]
    """They join to readable text. Empty where a token ends inside a character: the next one's text
    has it whole. At most 40 characters each. Any text is possible: show it as text, never as
    markup."""
    logprobs: tuple[Number | None, ...]
    vocab_centered_scores: tuple[Number | None, ...]
    contributions: tuple[Number | None, ...]
    """As a `DrivingToken`'s."""
    kept: tuple[bool | None, ...]
    """Whether the token's gradient took part; None: the mask leaves it out."""
    prompt: str | None = None
    """Text of its end, at most 1024 bytes; begins with "… " where something is left out. None: not
    known."""
    rewards: Mapping[str, Number] = field(default_factory=dict)
    """Parts of the reward, by name."""
    answer: str | None = None
    """What the loop expects, its first 48 bytes; None: not known."""
    influences: tuple[Number | None, ...] = ()
    """What the token's part of the update does to the mean entropy, in nats; of a clipped token,
    what it would have done.
    Empty: not measured in this step."""


class AlertLevel(StrEnum):
    """How urgent an alert is."""

    WATCH = "watch"
    """Look at the run."""
    ACT = "act"
    """Change something now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertCause(Answer):
    """Which part of the unit prediction changes the entropy most."""

    quadrant: str
    """The metric of the part of the unit prediction, by sign of A and S_c, that pulls most:
    `change/positive_high` ..."""
    mechanism: str | None
    """The part by mechanism that pulls most: `change/by_kl_penalty` ...; None if none is measured
    or pulls that way."""
    changes: Mapping[str, float | None]
    """Mean of every such part over the last steps, in nats per unit gain, and newest influences, in
    nats; None: not finite, in an answer."""
    message: str
    """The cause in a sentence."""


ALERT_KINDS = {
    "collapse": "Collapse",
    "explosion": "Explosion",
    "overshoot": "A control does harm",
    "hold_ended": "A hold has ended",
    "hold_waits": "A hold waits",
    "self_check": "Tokens were not drawn as scored",
    "prediction": "Prediction is of no use",
    "dead_knob": "A parameter can't act",
    "zero_advantage": "Many groups teach nothing",
    "truncation": "Completions are cut off",
    "length": "Length runs away",
    "repetition": "Completions repeat themselves",
    "reward_hacking": "Reward rises, held-out score does not",
    "reward_parts": "One part of the reward takes all",
    "decline": "Reward falls",
    "plateau": "Reward stands",
    "kl": "KL runs away",
    "clip_saturation": "The clip cuts much",
    "gradient": "The gradient is not finite, jumps or vanishes",
    "value": "Value function is of no use",
    "throughput": "Steps take longer",
    "not_finite": "NaN or infinite values",
    "left_out": "Something was left out",
    "refused": "Reports could not be used",
    "two_trainers": "Two trainings report one run",
    "id_taken": "The run's id was used before",
}
"""In words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """Something a person should know, reported at the step where it was found."""

    kind: str
    """One of ALERT_KINDS."""
    level: AlertLevel
    message: str
    """What was found, in a sentence."""
    evidence: Mapping[str, float] = field(default_factory=dict)
    """The numbers behind the message."""
    cause: AlertCause | None = None
    """Cause of a collapse or an explosion, where its parts are measured."""
    suggestion: Control | None = None
    """The cheapest control that would stop it; None where none would."""
    words: Mapping[str, str] = field(default_factory=dict)
    """Evidence that is no number: `cause`, which of several causes of its kind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """All that was measured in one optimiser update on one rank."""

    step: Count
    recorded_at: float
    scalars: Mapping[str, float] = field(default_factory=dict)
    histograms: tuple[ScoreHistogram, ...] = ()
    control_version: Count = 0
    """The control active in this step; 0 is the one the run started with."""
    outcomes: tuple[ControlOutcome, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    """Facts that are words, e.g. `control/method`, `threshold/source`."""
    what_if: WhatIfSums | None = None
    """What other thresholds would have done to the step; None when it was not measured."""
    tokens: tuple[DrivingToken, ...] = ()
    """The top contributing tokens, largest first."""
    rollouts: tuple[Rollout, ...] = ()
    """The rollouts whose tokens contribute most, largest first; none where no tokenizer gives their
    text."""
    alerts: tuple[Alert, ...] = ()

    def __repr__(self) -> str:
        # Field by field it would fill some screens: thousands of sums and bins.
        shown = {name: self.scalars[name] for name in _SHOWN_FIRST if name in self.scalars}
        words = [f"step={self.step}", *(f"{name}={value:.4g}" for name, value in shown.items())]
        words.append(f"{len(self.scalars) - len(shown)} more scalars")
        for count, of in ((len(self.histograms), "histograms"), (len(self.tokens), "tokens")):
            words += [f"{count} {of}"] if count else []
        words += [f"alert {alert.kind}" for alert in self.alerts]
        return f"StepReport({', '.join(words)})"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFinished:
    """The training process ended the run."""

    status: str
    """`finished`, `failed` or `ended`."""
    finished_at: float
    step: Count | None = None
    error: str = ""
    outcomes: tuple[ControlOutcome, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """Records first_seq..last_seq will never come, and why."""

    first_seq: Count
    last_seq: Count
    reason: str


Payload = RunStarted | StepReport | RunFinished | Gap


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One spooled payload. Its key is (run_id, incarnation, rank, seq)."""

    seq: int
    payload: bytes
    payload_hash: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Quarantined:
    """A record the server keeps aside because it can't use it."""

    seq: int
    code: str
    message: str


CONFIG_CHARACTERS = 256 * 1024
"""Largest configuration, as compact JSON."""
TAGS = 50
TAG_CHARACTERS = 100
DEFAULT_NAME, DEFAULT_PROJECT = "run", "default"
"""Of a run whose code names none. They replace no stored name or project where a run continues."""
NAME_CHARACTERS = 500
"""Longest name of a run, project, metric or label: an index entry of PostgreSQL holds 2 700
bytes."""
LOGGED_SCALARS = 10_000
"""Most scalars that a loop logs in one step, such as a norm for each parameter; the probe adds some
hundred of its own."""
DROPPED_SERIES = "report/dropped_series"
"""Label of a report whose metrics were too many or had too long names: how many were dropped, and
the first of them."""
RUN_OF_CALL = "isentrope-run"
"""Metadata of a call that names its run, quoted: what is refused is not read."""
DROPPED_PARTS = "report/dropped_parts"
"""The label of a report that lacks parts; its value names them."""
ERROR_CHARACTERS = 30_000
"""Longest error of a failed run, with the end of its output."""
OUTPUT = "\n\nThe last lines of its output:\n"
"""In an error, before what the process wrote last."""

_CUT = " ... cut"
_NAMES_SHOWN = 5
_SHOWN_CHARACTERS = 100


def cut(text: str, characters: int) -> str:
    """The text, or its beginning and the word that it was cut."""
    if len(text) <= characters:
        return text
    return text[: characters - len(_CUT)] + _CUT


def first_of(names: Collection[str]) -> str:
    """The first of many names, cut, for a message."""
    first = sorted(names)[:_NAMES_SHOWN]
    return ", ".join(name[:_SHOWN_CHARACTERS] for name in first) + (
        ", ..." if len(names) > len(first) else ""
    )


def error_in_a_line(error: str) -> str:
    """What a run failed of: of a traceback the line behind the last call, of other words the first
    line."""
    lines = error.partition(OUTPUT)[0].strip().splitlines()
    last_call = max((at for at, line in enumerate(lines) if line.startswith("  File ")), default=-1)
    return next(
        (line for line in lines[last_call + 1 :] if not line.startswith((" ", "Traceback"))), ""
    )


DELETED = "was deleted on this server and takes no more reports"
"""In a server's refusal of a run that people deleted."""


def is_visible(name: str) -> bool:
    """Whether anything of a name is seen: blanks alone would be a link that nobody finds."""
    return any(sign.isprintable() and not sign.isspace() for sign in name)
