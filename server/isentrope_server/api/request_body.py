"""What every request's body keeps to."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Body(BaseModel):
    """A request's body: a field nobody knows is an error, not a field ignored."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)
