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
from isentrope_wire.errors import install_command

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
_EXTRA_OF = {
    "IsentropeCallback": "trl",
    "Probe": "probe",
    "TokenScores": "probe",
    "attach": "trl",
    "detach": "trl",
    "scores": "probe",
}


def __getattr__(name: str) -> object:
    if name != "scores" and name not in _HOME_OF:
        raise AttributeError(f"module 'isentrope' has no attribute {name!r}")
    try:
        if name == "scores":
            return importlib.import_module("isentrope.scores")
        return getattr(importlib.import_module(_HOME_OF[name]), name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if name not in _EXTRA_OF or missing.startswith("isentrope"):
            raise
        extra = _EXTRA_OF[name]
        raise ModuleNotFoundError(
            f"isentrope.{name} needs the extra {extra}: {install_command(extra)} (there is no"
            f" {missing}).",
            name=missing,
        ) from error


def __dir__() -> list[str]:
    return sorted(__all__)
