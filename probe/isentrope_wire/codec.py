"""Domain dataclass <-> protobuf. The only file that knows both sides."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from itertools import accumulate
from operator import sub

from google.protobuf.message import DecodeError

from isentrope_wire.control import Control
from isentrope_wire.errors import CodecError, ConfigurationError
from isentrope_wire.reports import (
    Alert,
    AlertCause,
    AlertLevel,
    ControlOutcome,
    ControlSnapshot,
    DrivingToken,
    Gap,
    OutcomeState,
    Payload,
    Record,
    Rollout,
    RunFinished,
    RunStarted,
    ScoreHistogram,
    StepReport,
)
from isentrope_wire.v1 import telemetry_pb2 as pb
from isentrope_wire.what_if import EDGE_SET, BinSums, WhatIfError, WhatIfSums

JSON_NESTING = 32
"""How deep objects and lists may be nested in a run's configuration."""

_PARTS = 8191
"""Of the largest number of a list, to which the numbers of a rollout are rounded: two bytes hold each."""
_STATES: tuple[bool | None, ...] = (None, False, True)
"""`Rollout.kept`, as it is numbered on the wire."""
_SMALLEST_FLOAT, _LARGEST_FLOAT = 1e-37, 3e38
"""That a float of the wire holds in full precision."""


def payload_hash(payload: bytes) -> bytes:
    """BLAKE2b-128 of the payload's bytes: it distinguishes a harmless repeat from two payloads under one key."""
    return hashlib.blake2b(payload, digest_size=16).digest()


def encode_payload(message: Payload) -> bytes:
    """Serialise one message for the spool and the wire."""
    match message:
        case RunStarted():
            envelope = pb.Payload(run_started=run_started_to_pb(message))
        case StepReport():
            envelope = pb.Payload(step_report=_step_report_to_pb(message))
        case RunFinished():
            envelope = pb.Payload(run_finished=_run_finished_to_pb(message))
        case Gap():
            envelope = pb.Payload(
                gap=pb.Gap(first_seq=message.first_seq, last_seq=message.last_seq, reason=message.reason)
            )
    return envelope.SerializeToString(deterministic=True)


def decode_payload(payload: bytes) -> Payload:
    """Read one message back.

    Raises:
        CodecError: the bytes are no payload of this protocol version.
    """
    try:
        envelope = pb.Payload.FromString(payload)
    except DecodeError as error:
        raise CodecError(f"Expected a serialised isentrope_wire.v1.Payload, got {len(payload)} other bytes.") from error
    kind = envelope.WhichOneof("body")
    if kind == "run_started":
        return run_started_from_pb(envelope.run_started)
    if kind == "step_report":
        return _step_report_from_pb(envelope.step_report)
    if kind == "run_finished":
        return _run_finished_from_pb(envelope.run_finished)
    if kind == "gap":
        gap = envelope.gap
        return Gap(first_seq=gap.first_seq, last_seq=gap.last_seq, reason=gap.reason)
    raise CodecError("The payload holds no message this version knows; upgrade the server before the probe.")


def record_of(seq: int, message: Payload) -> Record:
    """The record that carries `message` under `seq`."""
    payload = encode_payload(message)
    return Record(seq=seq, payload=payload, payload_hash=payload_hash(payload))


def record_to_pb(record: Record) -> pb.Record:
    return pb.Record(seq=record.seq, payload=record.payload, payload_hash=record.payload_hash)


def record_from_pb(record: pb.Record) -> Record:
    return Record(seq=record.seq, payload=record.payload, payload_hash=record.payload_hash)


def run_started_to_pb(run: RunStarted) -> pb.RunStarted:
    return pb.RunStarted(
        run_id=run.run_id,
        incarnation=run.incarnation,
        rank=run.rank,
        world_size=run.world_size,
        name=run.name,
        project=run.project,
        config_json=_to_json(run.config),
        tags=run.tags,
        started_at=run.started_at,
        probe_version=run.probe_version,
        capabilities=run.capabilities,
        planned_steps=run.planned_steps,
        initial_control=None if run.initial_control is None else control_snapshot_to_pb(run.initial_control),
    )


def run_started_from_pb(run: pb.RunStarted) -> RunStarted:
    return RunStarted(
        run_id=run.run_id,
        incarnation=run.incarnation,
        rank=run.rank,
        world_size=run.world_size,
        name=run.name,
        project=run.project,
        config=_object_from_json("config_json", run.config_json),
        tags=tuple(run.tags),
        started_at=run.started_at,
        probe_version=run.probe_version,
        capabilities=tuple(run.capabilities),
        planned_steps=run.planned_steps if run.HasField("planned_steps") else None,
        initial_control=(control_snapshot_from_pb(run.initial_control) if run.HasField("initial_control") else None),
    )


def encode_control(snapshot: ControlSnapshot) -> bytes:
    """The snapshot as it lies in the control file and in a checkpoint, and as rank 0 broadcasts it."""
    return control_snapshot_to_pb(snapshot).SerializeToString(deterministic=True)


def decode_control(content: bytes) -> ControlSnapshot:
    """Read `encode_control` back; see `received_control`.

    Raises:
        CodecError: the bytes are no snapshot of this protocol version.
    """
    try:
        return received_control(pb.ControlSnapshot.FromString(content))
    except DecodeError as error:
        raise CodecError(f"Expected a serialised control snapshot, got {len(content)} other bytes.") from error


def received_control(snapshot: pb.ControlSnapshot) -> ControlSnapshot:
    """Read a snapshot on its way to a probe: one it can't read comes as `unreadable`, so that the probe can reject it."""
    try:
        return control_snapshot_from_pb(snapshot)
    except CodecError as error:
        return ControlSnapshot(
            version=snapshot.version,
            control=Control(),
            author=snapshot.author,
            requested_at=snapshot.requested_at,
            unreadable=str(error),
        )


def control_snapshot_to_pb(snapshot: ControlSnapshot) -> pb.ControlSnapshot:
    return pb.ControlSnapshot(
        version=snapshot.version,
        document_json=_to_json(snapshot.control.to_document()),
        author=snapshot.author,
        requested_at=snapshot.requested_at,
        expires_at=snapshot.expires_at,
        unreadable=snapshot.unreadable,
    )


def control_snapshot_from_pb(snapshot: pb.ControlSnapshot) -> ControlSnapshot:
    """Read a snapshot back.

    Raises:
        CodecError: the snapshot holds a control that no probe could apply.
    """
    try:
        control = Control.from_document(_object_from_json("document_json", snapshot.document_json))
    except ConfigurationError as error:
        raise CodecError(f"Control version {snapshot.version} can't be read: {error}") from error
    return ControlSnapshot(
        version=snapshot.version,
        control=control,
        author=snapshot.author,
        requested_at=snapshot.requested_at,
        expires_at=snapshot.expires_at if snapshot.HasField("expires_at") else None,
        unreadable=snapshot.unreadable,
    )


def _step_report_to_pb(report: StepReport) -> pb.StepReport:
    return pb.StepReport(
        step=report.step,
        recorded_at=report.recorded_at,
        scalars=report.scalars,
        histograms=[
            pb.ScoreHistogram(name=h.name, low=h.low, high=h.high, counts=h.counts, not_finite=h.not_finite)
            for h in report.histograms
        ],
        control_version=report.control_version,
        outcomes=[_outcome_to_pb(outcome) for outcome in report.outcomes],
        labels=report.labels,
        what_if=None if report.what_if is None else _what_if_to_pb(report.what_if),
        tokens=_tokens_to_pb(report.tokens) if report.tokens else None,
        rollouts=_rollouts_to_pb(report.rollouts) if report.rollouts else None,
        alerts=[_alert_to_pb(alert) for alert in report.alerts],
    )


def _step_report_from_pb(report: pb.StepReport) -> StepReport:
    scalars = report.scalars
    return StepReport(
        step=report.step,
        recorded_at=report.recorded_at,
        # Both are quicker than the shorter `dict(...)` and `tuple(...)`, and decoding is half of what a busy server does.
        scalars={name: scalars[name] for name in scalars},
        histograms=tuple(
            ScoreHistogram(name=h.name, low=h.low, high=h.high, counts=tuple(h.counts[:]), not_finite=h.not_finite)
            for h in report.histograms
        ),
        control_version=report.control_version,
        outcomes=tuple(_outcome_from_pb(outcome) for outcome in report.outcomes),
        labels=dict(report.labels),
        what_if=_what_if_from_pb(report.what_if) if report.HasField("what_if") else None,
        tokens=_tokens_from_pb(report.tokens) if report.HasField("tokens") else (),
        rollouts=_rollouts_from_pb(report.rollouts) if report.HasField("rollouts") else (),
        alerts=tuple(_alert_from_pb(alert) for alert in report.alerts),
    )


def _alert_to_pb(alert: Alert) -> pb.Alert:
    cause, suggestion = alert.cause, alert.suggestion
    return pb.Alert(
        kind=alert.kind,
        message=alert.message,
        evidence=alert.evidence,
        level=str(alert.level),
        cause=None
        if cause is None
        else pb.AlertCause(
            quadrant=cause.quadrant, mechanism=cause.mechanism, changes=cause.changes, message=cause.message
        ),
        suggestion_json=None if suggestion is None else _to_json(suggestion.to_document()),
    )


def _alert_from_pb(alert: pb.Alert) -> Alert:
    """
    Raises:
        CodecError: a level that there is not, or a suggestion that is no control document.
    """
    cause = alert.cause
    try:
        return Alert(
            kind=alert.kind,
            message=alert.message,
            evidence=dict(alert.evidence),
            level=AlertLevel(alert.level),
            cause=AlertCause(
                quadrant=cause.quadrant,
                mechanism=cause.mechanism if cause.HasField("mechanism") else None,
                changes=dict(cause.changes),
                message=cause.message,
            )
            if alert.HasField("cause")
            else None,
            suggestion=Control.from_document(_object_from_json("suggestion_json", alert.suggestion_json))
            if alert.HasField("suggestion_json")
            else None,
        )
    except ValueError as error:
        raise CodecError(f"The alert {alert.kind:.80} can't be read: {error}") from error


def encode_tokens(tokens: Sequence[DrivingToken]) -> bytes:
    """The tokens that count most by themselves, for the server's store."""
    return _tokens_to_pb(tokens).SerializeToString(deterministic=True)


def decode_tokens(packed: bytes) -> tuple[DrivingToken, ...]:
    """Read `encode_tokens` back.

    Raises:
        CodecError: the bytes are no tokens of this version.
    """
    try:
        return _tokens_from_pb(pb.DrivingTokens.FromString(packed))
    except DecodeError as error:
        raise CodecError(f"Expected serialised tokens of a step, got {len(packed)} other bytes.") from error


def _tokens_to_pb(tokens: Sequence[DrivingToken]) -> pb.DrivingTokens:
    return pb.DrivingTokens(
        tokens=[
            pb.DrivingToken(
                rank=token.rank,
                sequence=token.sequence,
                position=token.position,
                token_id=token.token_id,
                text=token.text,
                logprob=token.logprob,
                entropy=token.entropy,
                vocab_centered_score=token.vocab_centered_score,
                advantage=token.advantage,
                contribution=token.contribution,
                kept=token.kept,
            )
            for token in tokens
        ]
    )


def _tokens_from_pb(tokens: pb.DrivingTokens) -> tuple[DrivingToken, ...]:
    return tuple(
        DrivingToken(
            rank=token.rank,
            sequence=token.sequence if token.HasField("sequence") else None,
            position=token.position,
            token_id=token.token_id if token.HasField("token_id") else None,
            text=token.text if token.HasField("text") else None,
            logprob=token.logprob,
            entropy=token.entropy,
            vocab_centered_score=token.vocab_centered_score,
            advantage=token.advantage,
            contribution=token.contribution,
            kept=token.kept,
        )
        for token in tokens.tokens
    )


def encode_rollouts(rollouts: Sequence[Rollout]) -> bytes:
    """The rollouts by themselves, for the server's store."""
    return _rollouts_to_pb(rollouts).SerializeToString(deterministic=True)


def decode_rollouts(packed: bytes) -> tuple[Rollout, ...]:
    """Read `encode_rollouts` back.

    Raises:
        CodecError: the bytes are no rollouts of this version.
    """
    try:
        return _rollouts_from_pb(pb.Rollouts.FromString(packed))
    except DecodeError as error:
        raise CodecError(f"Expected serialised rollouts of a step, got {len(packed)} other bytes.") from error


def _rollouts_to_pb(rollouts: Sequence[Rollout]) -> pb.Rollouts:
    return pb.Rollouts(
        rollouts=[
            pb.Rollout(
                rank=rollout.rank,
                sequence=rollout.sequence,
                first_position=rollout.first_position,
                cut_before=rollout.cut_before,
                cut_after=rollout.cut_after,
                advantage=rollout.advantage,
                reward=rollout.reward,
                absolute_contribution=rollout.absolute_contribution,
                texts=rollout.texts,
                logprobs=_rounded_to_pb(rollout.logprobs),
                vocab_centered_scores=_rounded_to_pb(rollout.vocab_centered_scores),
                contributions=_rounded_to_pb(rollout.contributions),
                states=map(_STATES.index, rollout.kept),
            )
            for rollout in rollouts
        ]
    )


def _rollouts_from_pb(rollouts: pb.Rollouts) -> tuple[Rollout, ...]:
    """
    Raises:
        CodecError: lists of different lengths, or a state that there is not.
    """
    return tuple(map(_rollout_from_pb, rollouts.rollouts))


def _rollout_from_pb(rollout: pb.Rollout) -> Rollout:
    lists = (rollout.logprobs.parts, rollout.vocab_centered_scores.parts, rollout.contributions.parts, rollout.states)
    if any(len(one) != len(rollout.texts) for one in lists):
        raise CodecError(f"A rollout has as many numbers as texts, got {len(rollout.texts)} and {[*map(len, lists)]}.")
    if max(rollout.states, default=0) >= len(_STATES):
        raise CodecError(f"A token of a rollout has a state from 0 to 2, got {max(rollout.states)}.")
    kept = tuple(_STATES[state] for state in rollout.states)
    return Rollout(
        rank=rollout.rank,
        sequence=rollout.sequence if rollout.HasField("sequence") else None,
        first_position=rollout.first_position,
        cut_before=rollout.cut_before,
        cut_after=rollout.cut_after,
        advantage=rollout.advantage,
        reward=rollout.reward if rollout.HasField("reward") else None,
        absolute_contribution=rollout.absolute_contribution,
        texts=tuple(rollout.texts),
        logprobs=_rounded_from_pb(rollout.logprobs, kept),
        vocab_centered_scores=_rounded_from_pb(rollout.vocab_centered_scores, kept),
        contributions=_rounded_from_pb(rollout.contributions, kept),
        kept=kept,
    )


def _rounded_to_pb(numbers: Sequence[float | None]) -> pb.RoundedNumbers:
    """What is not finite becomes 0."""
    known = [number if number is not None and math.isfinite(number) else 0.0 for number in numbers]
    known = [max(-_LARGEST_FLOAT, min(number, _LARGEST_FLOAT)) for number in known]
    largest = max(map(abs, known), default=0.0)
    scale = _PARTS / largest if largest > _SMALLEST_FLOAT else 0.0
    return pb.RoundedNumbers(largest=largest, parts=[round(scale * number) for number in known])


def _rounded_from_pb(numbers: pb.RoundedNumbers, kept: Sequence[bool | None]) -> tuple[float | None, ...]:
    scale = numbers.largest / _PARTS
    return tuple(None if state is None else scale * part for part, state in zip(numbers.parts, kept, strict=True))


def encode_what_if(sums: WhatIfSums) -> bytes:
    """The sums by themselves, for the server's store."""
    return _what_if_to_pb(sums).SerializeToString(deterministic=True)


def decode_what_if(packed: bytes) -> WhatIfSums:
    """Read `encode_what_if` back.

    Raises:
        CodecError: the bytes are no sums of this version.
    """
    try:
        return _what_if_from_pb(pb.WhatIfSums.FromString(packed))
    except DecodeError as error:
        raise CodecError(f"Expected serialised what-if sums, got {len(packed)} other bytes.") from error


def _what_if_to_pb(sums: WhatIfSums) -> pb.WhatIfSums:
    return pb.WhatIfSums(
        edge_set=EDGE_SET,
        tokens=sums.tokens,
        change_sum=sums.change_sum,
        clip_b=_bins_to_pb(sums.clip_b),
        clip_v=_bins_to_pb(sums.clip_v),
    )


def _what_if_from_pb(sums: pb.WhatIfSums) -> WhatIfSums:
    if sums.edge_set != EDGE_SET:
        raise CodecError(
            f"What-if sums over the bin edges of set {EDGE_SET} can be read, got set {sums.edge_set}; "
            "upgrade the server before the probe."
        )
    try:
        return WhatIfSums(
            tokens=sums.tokens,
            change_sum=sums.change_sum,
            clip_b=_bins_from_pb(sums.clip_b),
            clip_v=_bins_from_pb(sums.clip_v),
        )
    except WhatIfError as error:
        raise CodecError(f"What-if sums can't be read: {error}") from error


def _bins_to_pb(sums: BinSums) -> pb.BinSums:
    steps = list(map(sub, sums.cells, (-1, *sums.cells)))
    return pb.BinSums(cell_steps=steps, counts=sums.counts, change_sums=sums.change_sums)


def _bins_from_pb(sums: pb.BinSums) -> BinSums:
    cells = tuple(count - 1 for count in accumulate(sums.cell_steps))
    return BinSums(cells, tuple(sums.counts), tuple(sums.change_sums))


def _run_finished_to_pb(finished: RunFinished) -> pb.RunFinished:
    return pb.RunFinished(
        status=finished.status,
        step=finished.step,
        finished_at=finished.finished_at,
        error=finished.error,
        outcomes=[_outcome_to_pb(outcome) for outcome in finished.outcomes],
    )


def _run_finished_from_pb(finished: pb.RunFinished) -> RunFinished:
    return RunFinished(
        status=finished.status,
        step=finished.step if finished.HasField("step") else None,
        finished_at=finished.finished_at,
        error=finished.error,
        outcomes=tuple(_outcome_from_pb(outcome) for outcome in finished.outcomes),
    )


def _outcome_to_pb(outcome: ControlOutcome) -> pb.ControlOutcome:
    return pb.ControlOutcome(
        version=outcome.version,
        state=outcome.state,
        step=outcome.step,
        at=outcome.at,
        code=outcome.code,
        message=outcome.message,
    )


def _outcome_from_pb(outcome: pb.ControlOutcome) -> ControlOutcome:
    try:
        state = OutcomeState(outcome.state)
    except ValueError:
        raise CodecError(f"A control outcome is one of {', '.join(OutcomeState)}; got {outcome.state!r}.") from None
    return ControlOutcome(
        version=outcome.version,
        state=state,
        step=outcome.step if outcome.HasField("step") else None,
        at=outcome.at,
        code=outcome.code,
        message=outcome.message,
    )


def _to_json(value: Mapping[str, object]) -> str:
    return json.dumps(dict(value), sort_keys=True, separators=(",", ":"))


def _object_from_json(name: str, text: str) -> dict[str, object]:
    try:
        value = json.loads(text or "{}")
    # A number of thousands of digits, and text that only nests, fail in ways of their own.
    except (ValueError, RecursionError) as error:
        raise CodecError(f"{name} must be a JSON object, got {text[:80]!r}.") from error
    if not isinstance(value, dict):
        raise CodecError(f"{name} must be a JSON object, got {text[:80]!r}.")
    if is_deeper(value, JSON_NESTING):
        raise CodecError(f"{name} may nest objects and lists {JSON_NESTING} deep, got more: {text[:80]!r}.")
    return value


def is_deeper(value: object, levels: int) -> bool:
    """Whether objects and lists are nested deeper than this: writing them as JSON would exceed the recursion limit."""
    if not isinstance(value, dict | list):
        return False
    items = value.values() if isinstance(value, dict) else value
    return levels == 0 or any(is_deeper(item, levels - 1) for item in items)
