"""The judge outside everything that fails: ledgers on one side, the server's database and REST API
on the other.

A rank's n-th message has the sequence number n + 2 (1 is the start of the run), accepted or not: a
refused one leaves a gap under its number. So each message handed over has exactly one place to be,
and the oracle looks there."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import httpx

from isentrope_wire.reports import StepReport
from tests.faults.ledger import Ledger, Offer
from tests.faults.stored import StoredControl, StoredStream, StoredTruth
from tests.system.running_server import patience

FIRST_SEQ = 2
FINAL_STATES = frozenset({"APPLIED", "PARTIAL", "REJECTED", "EXPIRED", "SUPERSEDED"})
LONGEST_PUT_SECONDS = 0.25
"""Far above what a put costs on a machine whose other processes are being killed, far below any
wait for one of them."""
LONGEST_CLOSE_SECONDS = 1.2


class OracleError(AssertionError):
    """A promise that was not kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowance:
    """What a fault may cost at most. Nothing by default."""

    gap_reasons: tuple[str, ...] = ()
    """Gaps whose reason contains one of these may be there."""
    unwritten_seconds: float = 0.0
    """A process that is killed may lose what it put within so many seconds before the last line of
    its ledger."""
    left_out: bool = False
    """Reports may lack tokens, what-if sums and histograms where their label names them."""
    quarantined: tuple[str, ...] = ()
    """Codes of records that may be kept aside."""


@dataclass(slots=True, kw_only=True)
class Verdict:
    """What became of one ledger's messages."""

    offered: int = 0
    stored: int = 0
    in_gaps: int = 0
    unwritten: int = 0
    left_out: int = 0
    broken: list[str] = field(default_factory=list)

    def __iadd__(self, other: Verdict) -> Self:
        """Both ledgers' messages together."""
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        return self

    def require(self, holds: bool, promise: str) -> None:
        if not holds:
            self.broken.append(promise)

    def hold(self) -> None:
        """
        Raises:
            OracleError: naming each promise that was not kept.
        """
        if self.broken:
            raise OracleError(f"{self}\n  " + "\n  ".join(self.broken[:20]))

    def __str__(self) -> str:
        parts = f"{self.stored} of {self.offered} stored, {self.in_gaps} in gaps"
        if self.unwritten:
            parts += f", {self.unwritten} never written"
        return parts + (f", {self.left_out} in part" if self.left_out else "")


class Oracle:
    """Knows what was handed over; asks what is stored."""

    def __init__(self, database_url: str, api: httpx.Client) -> None:
        """
        Args:
            database_url: of the server's database, as `StoredTruth` takes it.
            api: a client of the server's REST API, base URL `.../api/v1`, with a token that may
                read.
        """
        self.truth = StoredTruth(database_url)
        self._api = api

    def judge(
        self,
        ledgers: Sequence[Ledger],
        allowance: Allowance | None = None,
        allowances: Mapping[str, Allowance] | None = None,
    ) -> Verdict:
        """All promises about all ledgers of one run.

        Args:
            ledgers: of all ranks and all attempts, these in their order.
            allowance: for all of them.
            allowances: for some, by their incarnation.

        Raises:
            OracleError: naming each promise that was not kept.
        """
        allowance = allowance or Allowance()
        allowances = allowances or {}
        run_id = ledgers[0].run_id
        total = Verdict()
        streams = self.truth.streams(run_id)
        for ledger in ledgers:
            place = (ledger.incarnation, ledger.rank)
            allowed = allowances.get(ledger.incarnation, allowance)
            total.require(place in streams, f"the server knows nothing of {place}")
            if place in streams:
                _judge_stream(total, ledger, streams[place], allowed, self._left_out)
            _judge_process(total, ledger)
        known = {(ledger.incarnation, ledger.rank) for ledger in ledgers}
        total.require(set(streams) <= known, f"the server invented streams: {set(streams) - known}")
        self._judge_values(total, ledgers)
        self._judge_controls(total, ledgers)
        total.hold()
        return total

    def has_report(self, run_id: str, step: int) -> bool:
        """Whether a person can read the report of a step now."""
        try:
            return self._api.get(f"/runs/{run_id}/steps/{step}").is_success
        except httpx.HTTPError:
            return False

    def _left_out(self, run_id: str, offer: Offer) -> bool:
        """Whether the stored report is marked as incomplete, and the rest is what was offered."""
        message = offer.message
        if not isinstance(message, StepReport):
            return False
        answer = self._api.get(f"/runs/{run_id}/steps/{message.step}")
        if not answer.is_success:
            return False
        stored = answer.json()
        return "report/dropped_parts" in stored["labels"] and _same_numbers(
            message.scalars, stored["scalars"]
        )

    def _judge_values(self, total: Verdict, ledgers: Sequence[Ledger]) -> None:
        """The API answers with what was offered, for some steps: the first, the last, and some
        between."""
        for step, report in _counting_reports(ledgers):
            answer = self._api.get(f"/runs/{ledgers[0].run_id}/steps/{step}")
            if answer.status_code == 404:
                # Whether it may be missing has been judged by its number.
                continue
            stored = answer.json()
            total.require(
                _same_numbers(report.scalars, stored["scalars"]),
                f"step {step} was stored with other values",
            )
            counts = [list(histogram.counts) for histogram in report.histograms]
            found = [histogram["counts"] for histogram in stored["histograms"]]
            shed = "report/dropped_parts" in stored["labels"]
            total.require(
                shed or sorted(found) == sorted(counts),
                f"step {step} was stored with other histograms",
            )

    def _judge_controls(self, total: Verdict, ledgers: Sequence[Ledger]) -> None:
        run_id = ledgers[0].run_id
        controls = self.truth.controls(run_id)
        ended = any(ledger.closed is not None for ledger in ledgers)
        for control in controls:
            total.require(
                control.ends <= 1 or control.version == 0,
                f"control {control.version} ended {control.ends}×",
            )
            total.require(
                not ended or control.state in FINAL_STATES,
                f"control {control.version} is still {control.state}",
            )
        applied = [
            c.applied_step for c in controls if c.state == "APPLIED" and c.applied_step is not None
        ]
        total.require(
            applied == sorted(applied), f"applied steps do not rise with their versions: {applied}"
        )
        for ledger in ledgers:
            _judge_decisions(total, ledger, controls)


def _judge_stream(
    total: Verdict,
    ledger: Ledger,
    stream: StoredStream,
    allowance: Allowance,
    left_out: Callable[[str, Offer], bool],
) -> None:
    by_seq = stream.by_seq
    last_seq = max(by_seq, default=0)
    last_line_at = ledger.offers[-1].at if ledger.offers else 0.0
    for seq, offer in enumerate(ledger.offers, start=FIRST_SEQ):
        total.offered += 1
        record, gap = by_seq.get(seq), stream.covering(seq)
        if record is not None and record.kind != "gap":
            total.stored += 1
            total.require(
                offer.accepted is not False, f"seq {seq} was refused and is stored nevertheless"
            )
            if record.payload_hash == offer.hash:
                total.require(gap is None, f"seq {seq} is stored and covered by a gap ({gap})")
            elif allowance.left_out and left_out(ledger.run_id, offer):
                total.left_out += 1
            else:
                total.broken.append(f"seq {seq} ({record.kind}) is stored with another payload")
        elif gap is not None:
            total.in_gaps += 1
            allowed = any(reason in gap.reason for reason in allowance.gap_reasons)
            total.require(allowed, f"seq {seq} is missing: {gap}")
        elif seq > last_seq and last_line_at - offer.at <= allowance.unwritten_seconds:
            total.unwritten += 1
        elif offer is ledger.offers[-1] and offer.accepted is None:
            # The process was killed in the middle of handing it over.
            total.unwritten += 1
        else:
            total.broken.append(
                f"seq {seq} is neither stored nor covered by a gap (accepted: {offer.accepted})"
            )
    _judge_inventions(total, ledger, stream, allowance)


def _judge_inventions(
    total: Verdict, ledger: Ledger, stream: StoredStream, allowance: Allowance
) -> None:
    beyond = [
        record.seq for record in stream.records if record.seq >= FIRST_SEQ + len(ledger.offers)
    ]
    # The process may have been killed between its last put and the line about it; a gap may end the
    # spool.
    kinds = [stream.by_seq[seq].kind for seq in beyond]
    total.require(kinds in ([], ["gap"]), f"the records {beyond} were never offered ({kinds})")
    seqs = Counter(record.seq for record in stream.records)
    total.require(max(seqs.values(), default=1) == 1, "a number is stored both packed and unpacked")
    reports = [
        record.payload_hash
        for record in stream.records
        if record.kind in ("step_report", "run_finished")
    ]
    twice = [count for count in Counter(reports).values() if count > 1]
    total.require(not twice, f"{len(twice)} reports are stored more than once")
    strange = [(seq, code) for seq, code in stream.quarantined if code not in allowance.quarantined]
    total.require(not strange, f"kept aside: {strange[:5]}")
    total.require(all(gap.reason for gap in stream.gaps), "a gap has no reason")


def _judge_process(total: Verdict, ledger: Ledger) -> None:
    longest = ledger.longest_put_seconds
    total.require(longest <= LONGEST_PUT_SECONDS * patience(), f"a put took {longest:.3f} s")
    if ledger.closed is not None:
        seconds = ledger.closed["seconds"]
        total.require(
            seconds <= LONGEST_CLOSE_SECONDS * patience(), f"closing took {seconds:.3f} s"
        )


def _judge_decisions(total: Verdict, ledger: Ledger, controls: Sequence[StoredControl]) -> None:
    applied = [decision.version for decision in ledger.decisions if decision.state == "APPLIED"]
    total.require(applied == sorted(set(applied)), f"the process applied the versions {applied}")
    decided = [decision.version for decision in ledger.decisions]
    total.require(
        len(decided) == len(set(decided)), f"the process decided twice about a version: {decided}"
    )
    known = {control.version: control for control in controls}
    for decision in ledger.decisions:
        control = known.get(decision.version)
        total.require(
            control is not None,
            f"the process received control {decision.version}, which was never pushed",
        )
        if control is not None and ledger.closed is not None and decision.state == "APPLIED":
            reported = (control.state, control.applied_step)
            total.require(
                control.state == "PARTIAL" or reported == ("APPLIED", decision.step),
                f"control {decision.version} was applied at step {decision.step}; the server"
                f" reports {reported}",
            )


def _counting_reports(ledgers: Sequence[Ledger], sample: int = 12) -> list[tuple[int, StepReport]]:
    """Some of the steps with the report that should count for each: of the newest attempt, of rank
    0."""
    counting: dict[int, StepReport] = {}
    for ledger in ledgers:
        if ledger.rank != 0:
            continue
        reports = [
            m
            for offer in ledger.offers
            if offer.accepted and isinstance(m := offer.message, StepReport)
        ]
        if reports:
            first = min(report.step for report in reports)
            counting = {step: report for step, report in counting.items() if step < first}
            counting |= {report.step: report for report in reports}
    steps = sorted(counting)
    chosen = (
        sorted({steps[round(i * (len(steps) - 1) / (sample - 1))] for i in range(sample)})
        if steps
        else []
    )
    return [(step, counting[step]) for step in chosen]


def _same_numbers(offered: Any, stored: dict[str, Any]) -> bool:
    return all(
        name in stored
        and (stored[name] == value or (isinstance(stored[name], str) and not math.isfinite(value)))
        for name, value in offered.items()
    ) and set(offered) <= set(stored)
