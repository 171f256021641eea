"""Rule `kl`: how far the policy is from its reference, the old policy and the sampler."""

from __future__ import annotations

from isentrope_wire import metrics
from isentrope_wire.diagnosis.measures import Measures
from isentrope_wire.diagnosis.rules.finding import LEAST, Finding, alert_level
from isentrope_wire.diagnosis.traces import Trace
from isentrope_wire.numbers import percent

_FAR = 0.08
"""KL to what drew the tokens, in nats a token, from which on they are another policy's: of a run
with several updates a batch it is a tenth of that."""
_FAR_APART = 0.3
"""Mean difference of log-probs, in nats, of about that KL."""


def kl(measures: Measures) -> Finding | None:
    """The KL grows faster than linearly, sits on the first tokens, or is large to what drew the
    tokens."""
    difference = measures.trace(metrics.SAMPLER_LOGPROB_DIFFERENCE_MEAN, 2 * LEAST)
    if difference is not None and difference.level - 2 * difference.level_error > _FAR_APART:
        return Finding(
            message=(
                f"The log-probs of trainer and sampler are {difference.level:.2g} nats apart, a "
                "token: what the update learns from was drawn by another policy."
            ),
            cause="sampler",
            evidence={"difference": difference.level, "early_difference": difference.start},
            sigmas=(difference.level - _FAR_APART) / (difference.level_error or 1e-9),
        )
    names = (metrics.KL_REFERENCE, metrics.KL_OLD, metrics.SAMPLER_KL_K3)
    words = ("the reference", "the old policy", "the sampler")
    for name, where in zip(names, words, strict=True):
        trace = measures.trace(name, 2 * LEAST)
        if trace is None:
            continue
        finding = _is_negative(trace, where) or _grows_faster(measures, trace, where)
        if finding is None and name != metrics.KL_REFERENCE:
            finding = _is_far(trace, where)
        if finding is None and name == metrics.KL_REFERENCE:
            finding = _is_of_another(trace)
        if finding is not None:
            return finding
    positions = measures.positions
    if len(positions) < 3 or positions[0].count < LEAST:
        return None
    total = sum(max(trace.level, 0.0) for trace in positions)
    early = sum(max(trace.start, 0.0) for trace in positions)
    if total <= 0 or early <= 0:
        return None
    share, early_share = positions[0].level / total, positions[0].start / early
    if share < max(1 / 3, 2 * early_share):
        return None
    return Finding(
        message=(
            f"{percent(share)} of the KL sits on the first of {len(positions)} positions, "
            f"{percent(early_share)} at first."
        ),
        cause="positions",
        evidence={"share": share, "early_share": early_share},
        sigmas=positions[0].sigmas,
    )


def _is_negative(trace: Trace, where: str) -> Finding | None:
    """A KL is never negative but by scatter."""
    if not trace.level + 4 * trace.level_error < -_FAR:
        return None
    return Finding(
        message=(
            f"The KL to {where} is {trace.level:.3g} nats, which it can't be: the tokens were not "
            "drawn from the policy that is scored."
        ),
        cause="negative",
        evidence={"kl": trace.level},
        sigmas=-trace.level / (trace.level_error or 1e-9),
    )


def _is_of_another(trace: Trace) -> Finding | None:
    """A run begins at its reference, and its KL at 0; where the first one is no smaller than those
    after it, the policy began elsewhere."""
    is_flat = trace.early[0] > 0.3 * trace.start
    if not is_flat or min(trace.early[0], trace.start, trace.level) < _FAR / 2:
        return None
    return Finding(
        message=(
            f"The KL to the reference was {trace.first:.3g} nats at the first steps: the reference "
            "is not the policy that the run began with."
        ),
        cause="stale_reference",
        evidence={"kl": trace.level, "early_kl": trace.first},
        sigmas=trace.start / (trace.level_error or 1e-9),
    )


def _is_far(trace: Trace, where: str) -> Finding | None:
    """The KL to what drew the tokens does not add up over a run: it is small, or they are stale."""
    if not trace.level - 2 * trace.level_error > _FAR:
        return None
    return Finding(
        message=(
            f"The KL to {where} is {trace.level:.3g} nats a token: what the update learns from "
            "was drawn by another policy."
        ),
        cause=where.removeprefix("the ").replace(" ", "_"),
        evidence={"kl": trace.level, "early_kl": trace.start},
        sigmas=(trace.level - _FAR) / (trace.level_error or 1e-9),
    )


def _grows_faster(measures: Measures, trace: Trace, where: str) -> Finding | None:
    level = trace.level
    if level < max(0.1, 3 * trace.start) or trace.level < trace.start + 6 * trace.level_error:
        return None
    third = measures.age // 3
    last, before = trace.change(measures.age - third), trace.change(0, measures.age - third)
    if last is None or before is None:
        return None
    # A power t^a has 2.5 times the pace in its last third that it had before where a = 2.
    pace, was = last.value / third, before.value / (measures.age - third)
    if not last.rises or last.low / third < 2.2 * max(was, 0.0):
        return None
    return Finding(
        message=(
            f"The KL to {where} is {level:.3g} nats and grows faster and faster: by {pace:.2g} "
            f"nats a step now, {max(was, 0.0):.2g} before."
        ),
        level=alert_level(level > 1),
        cause=where.removeprefix("the ").replace(" ", "_"),
        evidence={"kl": level, "early_kl": trace.start, "pace": pace, "pace_before": was},
        sigmas=last.value / (last.error or 1e-9),
    )
