"""Tokens: the top contributing ones of a step, rollouts in running text, and which tokens recur over steps."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Annotated

from fastapi import APIRouter, Query, Response
from sqlalchemy import Connection

from isentrope_server.api.dependencies import BackendDep, RunDep, StepParam, read_of
from isentrope_server.api.responses import json_answer
from isentrope_server.errors import NotFound
from isentrope_server.store.reports import attachments, series, steps
from isentrope_server.store.reports.attachments import StoredTokens
from isentrope_server.store.reports.series import StepRange
from isentrope_server.store.runs import Run
from isentrope_wire.answers import RecurringToken, RecurringTokens, Rollouts, TopTokens
from isentrope_wire.metrics import SCORE_VOCAB_CENTERED_STD
from isentrope_wire.reports import DrivingToken

router = APIRouter(tags=["tokens"])

MOST_STEPS = 100
MOST_ITEMS = 200


@router.get("/runs/{run_id}/tokens")
async def get_tokens(run: RunDep, backend: BackendDep, step: StepParam = None) -> TopTokens:
    """At most 16 tokens of a step by |u S_c|; by default of the newest step that has any."""
    return await read_of(backend, run, lambda connection: _top_tokens(connection, run, step))


@router.get("/runs/{run_id}/rollouts", response_model=Rollouts)
async def get_rollouts(run: RunDep, backend: BackendDep, step: StepParam = None) -> Response:
    """At most 6 rollouts of a step, those with the largest sum of |u S_c|, each at most 160 tokens around the one that
    contributes most; by default of the newest step that has any. None where the probe has no tokenizer.
    """
    # Not validated: it is some thousand numbers.
    return await read_of(backend, run, lambda connection: json_answer(_rollouts(connection, run, step)))


@router.get("/runs/{run_id}/tokens/recurring")
async def get_recurring_tokens(
    run: RunDep,
    backend: BackendDep,
    steps: Annotated[int, Query(ge=1, le=MOST_STEPS, description="Of how many steps.")] = 10,
    step: Annotated[int | None, Query(ge=0, le=2**63 - 1, description="The last of them; default: the newest.")] = None,
) -> RecurringTokens:
    """The top contributing tokens of several steps by their text: how often, in how many steps, their share of the pull.

    Only what is among the 16 top contributing tokens of its step counts.
    """
    return await read_of(backend, run, lambda connection: _recurring(connection, run, steps, step))


def _top_tokens(connection: Connection, run: Run, step: int | None) -> TopTokens:
    found = attachments.find_top_tokens(connection, run.key, step)
    if found is None:
        _check_reported(connection, run, step)
        return TopTokens(step=step, items=[])
    lowering, raising = found.pulls or (None, None)
    return TopTokens(
        step=found.step,
        items=list(found.tokens),
        score_std=_score_stds(connection, run, [found.step]).get(found.step),
        lowering=lowering,
        raising=raising,
    )


def _rollouts(connection: Connection, run: Run, step: int | None) -> Rollouts:
    found = attachments.find_rollouts(connection, run.key, step)
    if found is None:
        _check_reported(connection, run, step)
        return Rollouts(step=step, items=[], score_std=None, lowering=None, raising=None)
    lowering, raising = found.pulls or (None, None)
    return Rollouts(
        step=found.step,
        items=list(found.rollouts),
        score_std=_score_stds(connection, run, [found.step]).get(found.step),
        lowering=lowering,
        raising=raising,
    )


def _check_reported(connection: Connection, run: Run, step: int | None) -> None:
    """
    Raises:
        NotFound: there is no report of the step.
    """
    if step is not None and steps.find(connection, run.key, step) is None:
        raise NotFound(f"Run {run.id} has no report of step {step}.", step=step)


def _score_stds(connection: Connection, run: Run, wanted: Sequence[int]) -> dict[int, float]:
    """Standard deviation of S_c over the tokens of each step; only where it is above 0."""
    if not wanted:
        return {}
    between = StepRange(first=wanted[0], last=wanted[-1])
    found = series.read(connection, run.key, [SCORE_VOCAB_CENTERED_STD], between)[SCORE_VOCAB_CENTERED_STD]
    pairs = zip(found.steps.tolist(), found.values.tolist(), strict=True)
    return {step: value for step, value in pairs if 0 < value < math.inf}


def _recurring(connection: Connection, run: Run, steps: int, last: int | None) -> RecurringTokens:
    found = attachments.recent_top_tokens(connection, run.key, steps=steps, last=last)
    numbers = [stored.step for stored in found]
    pull = _pull(found)
    stds = _score_stds(connection, run, numbers)
    occurrences: dict[tuple[str | None, int | None], list[tuple[int, DrivingToken]]] = defaultdict(list)
    for stored in found:
        for token in stored.tokens:
            named = token.text is None and token.token_id is not None
            occurrences[token.text, token.token_id if named else None].append((stored.step, token))
    items = [_recurring_token(of_text, pull, stds) for of_text in occurrences.values()]
    items.sort(key=lambda item: -abs(item.contribution))
    return RecurringTokens(steps=numbers, pull=pull, items=items[:MOST_ITEMS])


def _pull(found: Sequence[StoredTokens]) -> float | None:
    pulls = [stored.pulls for stored in found if stored.pulls is not None]
    if not pulls or len(pulls) < len(found):
        return None
    return max(-sum(lowering for lowering, _ in pulls), sum(raising for _, raising in pulls))


def _recurring_token(
    found: Sequence[tuple[int, DrivingToken]], pull: float | None, stds: Mapping[int, float]
) -> RecurringToken:
    tokens = [token for _, token in found]
    contribution = sum(token.contribution for token in tokens)
    scores = [token.vocab_centered_score / stds[step] for step, token in found if step in stds]
    return RecurringToken(
        text=tokens[0].text,
        token_id=tokens[0].token_id,
        times=len(found),
        steps=len({step for step, _ in found}),
        contribution=contribution,
        share=contribution / pull if pull else None,
        mean_probability=sum(math.exp(min(token.logprob, 0.0)) for token in tokens) / len(tokens),
        mean_score=sum(scores) / len(scores) if scores else None,
        kept_share=sum(token.kept for token in tokens) / len(tokens),
    )
