"""The tokens that counted most for the change of entropy in a step."""

from __future__ import annotations

from typing import Self

from fastapi import APIRouter
from pydantic import BaseModel, Field
from sqlalchemy import Connection

from isentrope_server.api.dependencies import BackendDep, RunDep, StepParam, read_of
from isentrope_server.api.numbers import Number, number
from isentrope_server.errors import NotFound
from isentrope_server.store import driving_tokens, steps
from isentrope_server.store.driving_tokens import StoredTokens
from isentrope_server.store.runs import Run
from isentrope_wire.messages import DrivingToken

router = APIRouter(tags=["steps"])


class TokenOut(BaseModel):
    """One token. Its text is whatever a model or a user wrote: show it as text, never as markup."""

    rank: int
    sequence: int | None = Field(description="Row among the rank's rows of the step; null where there are no rows.")
    position: int
    token_id: int | None
    text: str | None = Field(description="At most 40 characters; null without a tokenizer.")
    logprob: Number
    entropy: Number
    vocab_centered_score: Number
    advantage: Number
    contribution: Number = Field(description="-r A S_c, nats per unit gain; what it would be where it was left out.")
    kept: bool

    @classmethod
    def of(cls, token: DrivingToken) -> Self:
        return cls(
            rank=token.rank,
            sequence=token.sequence,
            position=token.position,
            token_id=token.token_id,
            text=token.text,
            logprob=number(token.logprob),
            entropy=number(token.entropy),
            vocab_centered_score=number(token.vocab_centered_score),
            advantage=number(token.advantage),
            contribution=number(token.contribution),
            kept=token.kept,
        )


class TokensOut(BaseModel):
    """Largest first; none where the step names no token."""

    step: int | None
    items: list[TokenOut]
    next_cursor: None = None


@router.get("/runs/{run_id}/tokens")
async def get_tokens(run: RunDep, backend: BackendDep, step: StepParam = None) -> TokensOut:
    """At most 16 tokens of a step by |r A S_c|; by default of the newest step that names any."""
    found = await read_of(backend, run, lambda connection: _read(connection, run, step))
    if found is None:
        return TokensOut(step=step, items=[])
    return TokensOut(step=found.step, items=[TokenOut.of(token) for token in found.tokens])


def _read(connection: Connection, run: Run, step: int | None) -> StoredTokens | None:
    found = driving_tokens.find(connection, run.key, step)
    if found is None and step is not None and steps.find(connection, run.key, step) is None:
        raise NotFound(f"Run {run.id} has no report of step {step}.", step=step)
    return found
