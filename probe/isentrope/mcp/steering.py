"""The tools that change a run: push a control, and go back to an earlier one.

They are offered to tokens of scope control alone. Both name the version that the assistant has read, so that a change which
somebody made meanwhile is never overwritten, and a reason, which the history and the audit trail keep.
"""

from __future__ import annotations

import asyncio
import time
from typing import Annotated, Any

from mcp.server.context import ServerRequestContext
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from pydantic import Field

from isentrope.client import calls
from isentrope.client.connection import ControlConflict
from isentrope.mcp.caller import Caller, Callers, answers_json, assistant_of
from isentrope.mcp.reading import RunId, Threshold, Tool, control_answer
from isentrope_wire.control import Control, Scope
from isentrope_wire.control_answers import ControlVersion, version_before
from isentrope_wire.methods import METHODS

STEERING = frozenset({"push_control", "revert_control"})
"""The names of these tools."""

Reason = Annotated[
    str, Field(min_length=1, max_length=2000, pattern=r"\S", description="Why, for people who read the history.")
]
IfVersion = Annotated[int, Field(ge=0, description="The newest control version that you have read.")]
WaitSeconds = Annotated[float, Field(ge=0, le=60, description="How long to wait for the trainer's answer.")]
_POLL_SECONDS = 0.25
_HISTORY = 500


def steering_tools(callers: Callers) -> list[Tool]:
    """The tools that a token of scope control is offered besides."""

    @answers_json
    async def push_control(
        context: Context,
        run: RunId,
        if_version: IfVersion,
        reason: Reason,
        method: Annotated[str, Field(description=f"One of {', '.join(METHODS)}.")],
        mu_low: Threshold = None,
        mu_high: Threshold = None,
        scope: Scope | None = None,
        parameters: Annotated[
            dict[str, Any] | None, Field(description="Of the method; left out: its defaults.")
        ] = None,
        hold: Annotated[
            dict[str, Any] | None,
            Field(
                description='An entropy to hold: {"target_entropy": nats} or {"target_share": 0.75} of the early level.'
            ),
        ] = None,
        expires_in_seconds: Annotated[int | None, Field(ge=1, le=604800)] = None,
        wait_seconds: WaitSeconds = 5,
    ) -> dict[str, Any]:
        """Change the control of a running training. This replaces the whole control: what is left out is not kept.

        Read get_health first, and try thresholds with what_if. The answer has what was predicted, and the state: APPLIED
        with its step, or PENDING or DELIVERED while the trainer has not reached a step boundary (look at control_history
        later). Refused when the control is no longer if_version: somebody changed it, so read it and decide again.
        """
        document = {"method": method, "mu_low": mu_low, "mu_high": mu_high, "scope": scope}
        wanted = Control.from_document(document | {"parameters": parameters or {}, "hold": hold, "reason": reason})
        return await _push(callers, context, run, wanted, if_version, wait_seconds, expires_in_seconds)

    @answers_json
    async def revert_control(
        context: Context, run: RunId, if_version: IfVersion, reason: Reason, wait_seconds: WaitSeconds = 5
    ) -> dict[str, Any]:
        """Go back to the control that was applied before the newest one, as a new version. Answers and refuses as
        push_control does.
        """
        history = await callers.of(context.request_context).newest(calls.control_history(run), _HISTORY)
        earlier = version_before(history[0], history) if history else None
        if earlier is None:
            raise ToolError(f"Run {run} has no other control to go back to.")
        # Where history[0] is not if_version, the server refuses and names the newest.
        wanted = Control.from_document(earlier.control.to_document() | {"reason": reason})
        return await _push(callers, context, run, wanted, if_version, wait_seconds)

    return [push_control, revert_control]


async def _push(
    callers: Callers,
    context: Context,
    run: str,
    wanted: Control,
    if_version: int,
    wait_seconds: float,
    expires_in_seconds: int | None = None,
) -> dict[str, Any]:
    request: ServerRequestContext[Any, Any] = context.request_context
    client = callers.of(request)
    by = assistant_of(request)
    try:
        pushed = await client.ask(
            calls.set_control(run, wanted, if_version=if_version, expires_in_seconds=expires_in_seconds, assistant=by)
        )
    except ControlConflict as error:
        newest = await client.ask(calls.control(run))
        raise ToolError(
            f"Not pushed: {error} Version {newest.version} is {newest.state}, by {newest.author!r:.80}."
        ) from error
    return {"run": run, **control_answer(await _answered(client, run, pushed, wait_seconds))}


async def _answered(client: Caller, run: str, pushed: ControlVersion, wait_seconds: float) -> ControlVersion:
    """The version in its final state, or as it is after the wait."""
    end = time.monotonic() + wait_seconds
    while not pushed.state.is_final and time.monotonic() < end:
        await asyncio.sleep(_POLL_SECONDS)
        newer = await client.newest(calls.control_history(run), 20)
        pushed = next((item for item in newer if item.version == pushed.version), pushed)
    return pushed
