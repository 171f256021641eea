"""What `mirror=` may be, checked where the probe is built."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Sequence

from isentrope.errors import ConfigurationError
from isentrope.mirrors.destination import Destination
from isentrope.mirrors.mlflow_run import MlflowRun
from isentrope.mirrors.own_function import OwnFunction
from isentrope.mirrors.tensorboard_writer import TensorBoardWriter
from isentrope.mirrors.trackio_run import TrackioRun
from isentrope.mirrors.wandb_run import WandbRun

BY_NAME: dict[str, Callable[[], Destination]] = {
    "wandb": WandbRun,
    "trackio": TrackioRun,
    "mlflow": MlflowRun,
    "tensorboard": TensorBoardWriter,
}
_EXPECTED = (
    f"mirror takes {', '.join(BY_NAME)} or tensorboard:FOLDER, a run of one of them, a SummaryWriter, a function "
    "of (step, scalars), or several of these in a list"
)


def wanted_mirrors(mirror: object) -> tuple[Destination, ...]:
    """Where the scalars of each report go as well.

    Args:
        mirror: names, split by commas; objects; or a sequence of both. None: what ISENTROPE_MIRROR names, or nothing.

    Raises:
        ConfigurationError: a name that is unknown or not installed, or an object that nothing can be written to.
    """
    if mirror is None:
        mirror = os.environ.get("ISENTROPE_MIRROR") or ()
    if isinstance(mirror, str):
        mirror = [name.strip() for name in mirror.split(",") if name.strip()]
    if not isinstance(mirror, Sequence):
        return (_of_object(mirror),)
    named = dict.fromkeys(item for item in mirror if isinstance(item, str))
    objects = [item for item in mirror if not isinstance(item, str)]
    return (*(_of_name(name) for name in named), *(_of_object(item) for item in objects))


def _of_name(name: str) -> Destination:
    tool, _, folder = name.partition(":")
    if tool not in BY_NAME or (folder and tool != "tensorboard"):
        raise ConfigurationError(f"{_EXPECTED}; got {name!r}.")
    if importlib.util.find_spec(tool) is None:
        raise ConfigurationError(
            f"mirror={name!r} needs the package {tool}, which is not installed: pip install {tool}."
        )
    return TensorBoardWriter(folder=folder) if folder else BY_NAME[tool]()


def _of_object(item: object) -> Destination:
    home = type(item).__module__.partition(".")[0]
    if hasattr(item, "add_scalar"):
        return TensorBoardWriter(item)
    if home == "wandb" and hasattr(item, "define_metric"):
        return WandbRun(item)
    if home == "trackio" and hasattr(item, "log"):
        return TrackioRun(item)
    if home == "mlflow" and hasattr(item, "info"):
        return MlflowRun(item)
    if callable(item):
        return OwnFunction(item)
    raise ConfigurationError(f"{_EXPECTED}; got {item!r}.")
