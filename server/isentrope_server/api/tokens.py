"""Tokens: the top contributing ones of a step, rollouts in running text, and which tokens recur
over steps."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated

from fastapi import APIRouter, Query, Response
from sqlalchemy import Connection

from isentrope_server.api.dependencies import BackendDep, RunDep, StepParam, read_of
from isentrope_server.api.responses import json_answer
from isentrope_server.errors import NotFound
from isentrope_server.store.reports import attachments, steps
from isentrope_server.store.runs import Run
from isentrope_wire.answers import RecurringToken, RecurringTokens, Rollouts, TopTokens
from isentrope_wire.reports import DrivingToken

router = APIRouter(tags=["tokens"])

MOST_STEPS = 100
MOST_ITEMS = 200


@router.get("/runs/{run_id}/tokens")
async def get_tokens(run: RunDep, backend: BackendDep, step: StepParam = None) -> TopTokens:
    """At most 16 tokens of a step by |u S_c|; by default of the newest step that has any."""
    return await read_of(backend, run, lambda connection: _top_tokens(connection, run, step))


@router.get("/runs/{run_id}/rollouts", response_model=Rollouts)
async def get_rollouts(
    run: RunDep,
    backend: BackendDep,
    step: StepParam = None,
    also_in: Annotated[
        bool, Query(description="Look for the prompts in other steps, too.")
    ] = False,
) -> Response:
    """At most 6 rollouts of a step, those with the largest sum of |u S_c|, each at most 160 tokens
    around the one that contributes most; by default of the newest step that has any. None where the
    probe has no tokenizer."""
    # Not validated: it is some thousand numbers.
    return await read_of(
        backend, run, lambda connection: json_answer(_rollouts(connection, run, step, also_in))
    )


@router.get("/runs/{run_id}/tokens/recurring")
async def get_recurring_tokens(
    run: RunDep,
    backend: BackendDep,
    steps: Annotated[int, Query(ge=1, le=MOST_STEPS, description="Of how many steps.")] = 10,
    step: Annotated[
        int | None, Query(ge=0, le=2**63 - 1, description="The last of them; default: the newest.")
    ] = None,
    mu: Annotated[
        float | None,
        Query(ge=0, le=1000, description="In standard deviations of S_c, on both sides."),
    ] = None,
) -> RecurringTokens:
    """The top contributing tokens of several steps by their text: how often, in how many steps,
    their share of the pull.

    Only what is among the 16 top contributing tokens of its step counts.
    """
    return await read_of(
        backend, run, lambda connection: _recurring(connection, run, steps, step, mu)
    )


def _top_tokens(connection: Connection, run: Run, step: int | None) -> TopTokens:
    for found in attachments.top_tokens(connection, run.key, step=step):
        return found
    check_reported(connection, run, step)
    return TopTokens(step=step, items=[])


def _rollouts(connection: Connection, run: Run, step: int | None, also_in: bool) -> Rollouts:
    found = attachments.rollouts_of(connection, run.key, step)
    if found is None:
        check_reported(connection, run, step)
        return Rollouts(step=step, items=[], score_std=None, lowering=None, raising=None)
    if also_in:
        return replace(found, also_in=attachments.steps_with_prompts(connection, run.key, found))
    return found


def check_reported(connection: Connection, run: Run, step: int | None) -> None:
    """Raise NotFound where there is no report of the step."""
    if step is not None and steps.find(connection, run.key, step) is None:
        raise NotFound(f"Run {run.id} has no report of step {step}.", step=step)


Occurrence = tuple[TopTokens, DrivingToken]
"""A token, and the step that it is of."""


def _recurring(
    connection: Connection, run: Run, steps: int, last: int | None, mu: float | None
) -> RecurringTokens:
    of_steps = attachments.top_tokens(connection, run.key, last=last, steps=steps)
    pull = _pull(of_steps)
    occurrences = defaultdict[tuple[str | None, int | None], list[Occurrence]](list)
    for of_step in of_steps:
        for token in of_step.items:
            token_id = token.token_id
            # A part of a character has the text of any other.
            if token.text is not None and "\ufffd" not in token.text:
                token_id = None
            occurrences[token.text, token_id].append((of_step, token))
    items = [_recurring_token(of_text, pull, mu) for of_text in occurrences.values()]
    net = sum((of_step.lowering or 0) + (of_step.raising or 0) for of_step in of_steps)
    items.sort(key=lambda item: (item.contribution * net < 0, -abs(item.contribution)))
    return RecurringTokens(
        steps=[of_step.step for of_step in of_steps if of_step.step is not None],
        pull=pull,
        items=items[:MOST_ITEMS],
    )


def _pull(of_steps: Sequence[TopTokens]) -> float | None:
    lowering = [of_step.lowering for of_step in of_steps if of_step.lowering is not None]
    raising = [of_step.raising for of_step in of_steps if of_step.raising is not None]
    if not of_steps or min(len(lowering), len(raising)) < len(of_steps):
        return None
    return max(-sum(lowering), sum(raising))


def _recurring_token(
    occurrences: Sequence[Occurrence], pull: float | None, mu: float | None
) -> RecurringToken:
    tokens = [token for _, token in occurrences]
    contribution = sum(token.contribution for token in tokens)
    scores = [
        token.vocab_centered_score / of_step.score_std
        for of_step, token in occurrences
        if of_step.score_std is not None
    ]
    share = mean_score = beyond_share = None
    if pull:
        share = contribution / pull
    if scores:
        mean_score = sum(scores) / len(scores)
    if scores and mu is not None:
        beyond_share = sum(abs(score) > mu for score in scores) / len(scores)
    return RecurringToken(
        text=tokens[0].text,
        token_id=tokens[0].token_id,
        times=len(tokens),
        steps=len({of_step.step for of_step, _ in occurrences}),
        contribution=contribution,
        share=share,
        mean_probability=sum(math.exp(min(token.logprob, 0.0)) for token in tokens) / len(tokens),
        mean_score=mean_score,
        kept_share=sum(token.kept for token in tokens) / len(tokens),
        beyond_share=beyond_share,
    )
