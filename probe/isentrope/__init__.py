"""What the trainer carries: the probe and the pure functions behind it.

Read `probe.py` first. Then:

- `scores/`: the equations, one small function each
- `kernels/`: how the token scores are computed in one pass
- `statistics/`: mergeable sums of a step
- `methods/`: which tokens' gradients take part
- `control.py`: the active control; `hold/`: thresholds moved from step to step to hold an entropy
- `config.py`: the options of a probe; `lifecycle.py`: start and end of a run
- `steps/`: what a step collects, how it is closed, its report
- `distributed.py`: what the ranks exchange
- `transport/`: reports to the server and controls back, through a folder on disk
- `trackers`: the scalars in W&B, Trackio, MLflow, TensorBoard
- `integrations/`: `attach(trainer)` for TRL, `IsentropeCallback` for transformers
- `cli/`, `client/`: the command line and the REST client

Importing this package imports neither torch nor any network library; the names below load what they
need when used."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from isentrope_wire import __version__

if TYPE_CHECKING:
    from isentrope import scores
    from isentrope.client.client import Client
    from isentrope.client.connection import ApiError, ControlConflict
    from isentrope.integrations.transformers import IsentropeCallback
    from isentrope.integrations.trl import attach, detach
    from isentrope.probe import Probe
    from isentrope.scores import TokenScores
    from isentrope_wire.control import Control
    from isentrope_wire.errors import (
        CheckpointError,
        ConfigurationError,
        InputError,
        IsentropeError,
    )

__all__ = [
    "ApiError",
    "CheckpointError",
    "Client",
    "ConfigurationError",
    "Control",
    "ControlConflict",
    "InputError",
    "IsentropeCallback",
    "IsentropeError",
    "Probe",
    "TokenScores",
    "__version__",
    "attach",
    "detach",
    "scores",
]

_HOME_OF = {
    "ApiError": "isentrope.client.connection",
    "CheckpointError": "isentrope_wire.errors",
    "Client": "isentrope.client.client",
    "ConfigurationError": "isentrope_wire.errors",
    "Control": "isentrope_wire.control",
    "ControlConflict": "isentrope.client.connection",
    "InputError": "isentrope_wire.errors",
    "IsentropeCallback": "isentrope.integrations.transformers",
    "IsentropeError": "isentrope_wire.errors",
    "Probe": "isentrope.probe",
    "TokenScores": "isentrope.scores",
    "attach": "isentrope.integrations.trl",
    "detach": "isentrope.integrations.trl",
}


def __getattr__(name: str) -> object:
    if name == "scores":
        return importlib.import_module("isentrope.scores")
    if name in _HOME_OF:
        return getattr(importlib.import_module(_HOME_OF[name]), name)
    raise AttributeError(f"module 'isentrope' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
