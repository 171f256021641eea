"""The answers of the REST API: runs, metrics, steps, alerts, tokens, gaps, access tokens, the audit
trail.

One dataclass an answer: the server returns it, `/openapi.json` describes it, the client reads it
and the pages show it. Times are seconds since the Unix epoch, entropies and scores in nats. Answers
about controls are in `control_answers`."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Generic, TypeVar

from isentrope_wire.control_answers import RunControl
from isentrope_wire.numbers import Answer, Number
from isentrope_wire.reports import AlertCause, AlertLevel, DrivingToken, Rollout, ScoreHistogram

_T = TypeVar("_T")


class Status(StrEnum):
    """State of a run."""

    RUNNING = "running"
    FINISHED = "finished"
    FAILED = "failed"
    ENDED = "ended"
    """The process ended without finishing the run; whether that went well is not known."""
    SILENT = "silent"
    """No report and no finish for a while: frozen, killed or cut off."""

    @property
    def is_over(self) -> bool:
        """Whether no training is there any more to report, or to apply a control."""
        return self not in (Status.RUNNING, Status.SILENT)


class TokenScope(StrEnum):
    """What an access token allows."""

    READ = "read"
    """Read everything."""
    INGEST = "ingest"
    """Report runs and nothing else: for machines that train."""
    CONTROL = "control"
    """Read, push controls, write names, tags and notes of runs."""
    ADMIN = "admin"
    """All of it, and delete runs and manage tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Page(Answer, Generic[_T]):
    """Part of a list."""

    items: list[_T]
    next_cursor: str | None
    """The `cursor` of the next page; null at the end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorDetail(Answer):
    """What went wrong."""

    code: str
    message: str
    details: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorBody(Answer):
    """The body of every error."""

    error: ErrorDetail


@dataclass(frozen=True, slots=True, kw_only=True)
class Health(Answer):
    """The server's health in one word."""

    status: str


class HealthLevel(StrEnum):
    """How urgently a run needs attention."""

    NO_DATA = "no_data"
    """No entropy was reported."""
    HEALTHY = "healthy"
    WATCH = "watch"
    """Look at the run."""
    ACT = "act"
    """Change something now."""
    HOLDING = "holding"
    """A hold keeps the entropy near its target, or the newest control stopped the change."""


class RunOrder(StrEnum):
    """The order of a list of runs."""

    NEWEST = "newest"
    """By the time of the first report."""
    ATTENTION = "attention"
    """Runs that need attention first: running ones by level, then silent, then ended ones; newest
    first among equals."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DigestControl(Answer):
    """What is active in a run, in short."""

    method: str
    mu_low: float | None
    mu_high: float | None
    hold_target: str | None
    """The entropy that is held: `0.46` nats, `75%` of the early level, or a curve; null: none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunDigest(Answer):
    """Summary of a run, computed some seconds after a change; final once the run has ended."""

    level: HealthLevel
    """Level of health; that of an ended run is its last one."""
    share_lost: float | None
    """Share of the early entropy that is lost."""
    steps_to_three_quarters_lost: float | None
    """Until a quarter of the early entropy is left, at the present pace; null where it does not
    fall."""
    entropy: Number | None
    """Median of the last five steps, in nats; so is the reward."""
    reward: Number | None
    entropy_line: list[float | None]
    """Means over at most 36 equal parts of the run's steps; null where a part has no value."""
    reward_line: list[float | None]
    """Over the same parts."""
    control: DigestControl | None
    """The active one; null where this server does not know it."""
    reason: str
    """Last line of a failed run's error; empty for other runs."""
    seconds_per_step: float | None
    """Mean over the newest steps."""
    metrics: dict[str, Number] = field(default_factory=dict)
    """Newest values of the metrics that a list was asked for by `metric`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NameCount(Answer):
    """A name with the number of runs that have it."""

    name: str
    runs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCounts(Answer):
    """How many runs there are, for filters. Each count ignores the filter on its own field."""

    total: int
    """Runs that pass all filters."""
    statuses: dict[str, int]
    """By every `Status`."""
    levels: dict[str, int]
    """By every `HealthLevel`; running ones only."""
    projects: list[NameCount]
    """Most runs first; at most 500."""
    tags: list[NameCount]
    """Most runs first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary(Answer):
    """A run in a list."""

    id: str
    name: str
    project: str
    status: Status
    step: int | None
    planned_steps: int | None
    created_at: float
    last_report_at: float | None
    tags: list[str]
    notes: str
    """In a list only their beginning."""
    config: dict[str, Any]
    digest: RunDigest | None = None
    """null until it is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunDetail(RunSummary):
    """One run."""

    finished_at: float | None
    error: str
    world_size: int
    probe_version: str
    capabilities: list[str]
    """What its probe can carry out."""
    incarnations: int
    """Number of times the run was started or resumed."""
    control: RunControl

    @property
    def methods(self) -> list[str]:
        """The methods that the run's probe can carry out."""
        return [
            name.removeprefix("method:") for name in self.capabilities if name.startswith("method:")
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class LatestMetric(Answer):
    """A metric with its newest value."""

    name: str
    step: int
    value: Number


REDUCED_SERIES = (
    "Longer series are reduced to buckets of neighbouring steps. step is a bucket's last step, and "
    "value the value there. min and max leave out NaN; mean leaves out all that is not finite. "
    "count is the number of values, not_finite how many of them are NaN or infinite. A sum over "
    "steps is that of mean times (count - not_finite), never of value."
)
"""What a reduced series holds, as REST, its reference and the assistants' tools say it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesColumns(Answer):
    """One metric over steps, as columns of one length, by rising step. REDUCED_SERIES says what
    they hold where the series was reduced."""

    step: list[int]
    value: list[Number]
    min: list[Number] | None
    """Null when the series was not reduced; likewise the columns below."""
    max: list[Number] | None
    mean: list[Number] | None = None
    count: list[int] | None = None
    not_finite: list[int] | None = None

    @property
    def measured(self) -> list[int]:
        """Finite values that each point stands for."""
        if self.count is None or self.not_finite is None:
            return [int(math.isfinite(value)) for value in self.value]
        return [all_ - odd for all_, odd in zip(self.count, self.not_finite, strict=True)]

    @property
    def means(self) -> list[float]:
        """Mean of the finite values that each point stands for; NaN where there is none."""
        if self.mean is None:
            values = self.value
        else:
            values = self.mean
        return [value if math.isfinite(value) else math.nan for value in values]

    @property
    def reduced(self) -> bool:
        """Whether a value stands for a bucket of several steps."""
        return self.min is not None and self.min != self.max


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesAnswer(Answer):
    """Several metrics over steps."""

    series: dict[str, SeriesColumns]
    cursor: str
    """The `since` of the next request, which then returns only what is new."""
    reset: bool
    """True: these are all points and replace earlier ones. False: add them; a known step is
    replaced."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HistogramColumns(Answer):
    """One histogram over steps."""

    name: str
    step: list[int]
    low: list[Number]
    high: list[Number]
    counts: list[list[int]]
    not_finite: list[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport(Answer):
    """The whole report of one step."""

    step: int
    recorded_at: float
    received_at: float
    control_version: int
    incarnation: str
    rank: int
    scalars: dict[str, Number]
    histograms: list[ScoreHistogram]
    labels: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopTokens(Answer):
    """The top contributing tokens of a step, largest first; empty where the step reported none."""

    step: int | None
    items: list[DrivingToken]
    score_std: Number | None = None
    """Standard deviation of S_c over the step's tokens, in nats; null where not measured."""
    lowering: Number | None = None
    """Sum of the contributions of all tokens of the step that lower the entropy, clipped ones
    included; null where not measured."""
    raising: Number | None = None
    """Sum of the contributions of the tokens that raise it; null where not measured."""
    next_cursor: None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollouts(Answer):
    """The rollouts of a step whose tokens contribute most, largest first; empty where the step
    reported none."""

    step: int | None
    items: list[Rollout]
    score_std: Number | None
    """As in `TopTokens`; likewise the next two."""
    lowering: Number | None
    raising: Number | None
    also_in: dict[str, list[int]] = field(default_factory=dict)
    """Prompt -> the other steps whose rollouts have it, rising; of the newest 1000 steps, where it
    was asked for."""
    next_cursor: None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RecurringToken(Answer):
    """One text among the top contributing tokens of several steps."""

    text: str | None
    """Untrusted text of a model or a user; null without a tokenizer."""
    token_id: int | None
    """Id at its first occurrence; several ids may have one text."""
    times: int
    """How often it is a top token."""
    steps: int
    """In how many of the steps it is one."""
    contribution: Number
    """Sum over those occurrences, in nats per unit gain."""
    share: Number | None
    """The contribution over the pull: below 0 where it lowers the entropy; null where the pull is
    not measured."""
    mean_probability: Number
    mean_score: Number | None
    """Mean of S_c over its step's standard deviation; null where that is not measured."""
    kept_share: Number
    """Share of the occurrences whose gradient took part."""
    beyond_share: Number | None = None
    """Share of those with a known S_c that lie beyond the µ that was asked for: what Clip_V would
    clip; null without one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecurringTokens(Answer):
    """The top contributing tokens of several steps, by their text: first those that move the
    entropy the way all tokens move it together; of these, and of the others, the largest
    |contribution| first."""

    steps: list[int]
    """The steps looked at, rising: those that reported top tokens."""
    pull: Number | None
    """Sum over these steps of the contributions of all tokens that move the entropy the way they
    move it together, as a positive number; null where not measured."""
    items: list[RecurringToken]
    next_cursor: None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert(Answer):
    """One alert of a step."""

    id: str
    step: int
    recorded_at: float
    kind: str
    """One of `ALERT_KINDS`: collapse, explosion, zero_advantage, truncation ..."""
    level: AlertLevel
    message: str
    cause: AlertCause | None
    """Cause of a collapse or an explosion, where it is measured."""
    evidence: dict[str, float | str | None]
    """The numbers behind the message; `cause` is a word: which of several causes of its kind."""
    suggestion: dict[str, Any] | None
    """The cheapest control that would stop it, as a document to PUT; null where none would."""
    acknowledged_by: str | None
    """Name of the token; null: nobody has acknowledged it."""
    acknowledged_at: float | None


REFUSED = "The server could not use it: "
"""Begins the reason of a refused record among the gaps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap(Answer):
    """Records of one rank that were lost before they reached the server, or that it refused."""

    incarnation: str
    rank: int
    first_seq: int
    last_seq: int
    reason: str
    """The cause that the probe's spool reported: a full queue, a full disk, a damaged segment. Or
    why the server could not use a record, which it keeps apart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessToken(Answer):
    """A token without its secret."""

    id: str
    name: str
    scope: TokenScope
    created_at: float
    revoked_at: float | None
    last_used_at: float | None
    """To within some seconds; null: never."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatedToken(AccessToken):
    """A new token. Its secret is shown only here."""

    token: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Destination(Answer):
    """Where alerts are sent."""

    service: str
    """The beginning of its address, such as `slack` or `mailto`; the rest may hold a password."""
    delivered: bool | None
    """Whether it took the test; null where none was sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored(Answer):
    """The newest `isentrope restore` of the database."""

    at: float
    newest_report_at: float | None
    """When the backup's newest report arrived; null: it has none. Tokens revoked later are active
    again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Me(Answer):
    """Who makes a request."""

    token_id: str
    name: str
    """Author of every change made with the token."""
    scope: TokenScope
    is_owner: bool
    """Whether it is the owner's token, which the server made at its first start."""
    is_session: bool
    """Whether the request came from a browser that logged in with the token, not with the token
    itself."""
    run_id: str | None = None
    """The one run that is shown, of who came by a link; null: all runs."""
    restored: Restored | None = None
    """Whether, and from when, the server's database is a restored one; null: it never was."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEntry(Answer):
    """One change."""

    number: int
    """Rises from entry to entry; numbers may be missing."""
    at: float
    actor: str
    """Name of a token, `rank N`, or server."""
    token_id: str | None
    """Id of the actor's token; names may repeat."""
    action: str
    subject: str
    change: dict[str, Any]
    """What changed, old and new where both exist."""
