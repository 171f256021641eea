"""What `import verl` loads in the driver and in every worker: an entry point of the group
`verl.plugins`.

Loading it adds the logger `isentrope` to verl's tracking, and with `ISENTROPE_VERL=1` a probe to
every actor that trains. verl swallows what fails while a plugin is loaded, and shows it at DEBUG
level alone: so it is logged here."""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from verl.utils.tracking import Tracking

from isentrope.config import switched_on
from isentrope.integrations.attachment import wrap
from isentrope.probe import Probe
from isentrope_wire.metrics import COMPLETION_LENGTH_MEAN, REWARD_MEAN

logger = logging.getLogger("isentrope")

BACKEND = "isentrope"
SWITCH = "ISENTROPE_VERL"
PROMISED = {"critic/rewards/mean": REWARD_MEAN, "response_length/mean": COMPLETION_LENGTH_MEAN}
"""verl's names of metrics that all loops share -> their shared names."""


def activate() -> None:
    """Do what this module is loaded for; safe to repeat. ConfigurationError: another version of
    verl, or the switch is neither yes nor no."""
    if BACKEND not in Tracking.supported_backend:
        _add_backend(Tracking)
    if switched_on(SWITCH):
        _attach_new_engines()


def _attach_new_engines() -> None:
    """Attach to every engine that trains a language model, once it is initialised."""
    # Here, for each of them takes seconds to import.
    registry = import_module("verl.workers.engine.base").EngineRegistry
    adapter = import_module("isentrope.integrations.verl")
    adapter.VERSIONS.check()
    if hasattr(registry.new, "__wrapped__"):
        return
    theirs = registry.new

    @functools.wraps(theirs)
    def new(model_type: str, backend: str, *args: Any, **kwargs: Any) -> Any:
        engine = theirs(model_type, backend, *args, **kwargs)
        if model_type != "language_model" or getattr(engine.engine_config, "forward_only", False):
            return engine
        adapter.check_supported(engine)  # before the model is loaded

        def initialize_and_attach(initialize: Callable[[], Any]) -> Any:
            result = initialize()
            if not hasattr(engine, adapter.ATTRIBUTE):  # a worker may initialise its engine again
                adapter.attach(engine)
            return result

        wrap(engine, "initialize", initialize_and_attach)
        return engine

    registry.new = new


def _add_backend(tracking: Any) -> None:
    """Make `trainer.logger=['console','isentrope']` known."""
    init = tracking.__init__
    # Without it, as in verl 0.8, the run ends with the process.
    finish = getattr(tracking, "finish", lambda self, exit_code=0: None)

    @functools.wraps(init)
    def initialise(
        self: Any, project_name: str, experiment_name: str, *args: Any, **kwargs: Any
    ) -> None:
        init(self, project_name, experiment_name, *args, **kwargs)
        if args:
            wanted = args[0]
        else:
            wanted = kwargs.get("default_backend", ())
        if BACKEND in ([wanted] if isinstance(wanted, str) else wanted):
            if len(args) > 1:
                config = args[1]
            else:
                config = kwargs.get("config")
            self.logger[BACKEND] = ScalarsOfVerl(project_name, experiment_name, config or {})

    @functools.wraps(finish)
    def finish_all(self: Any, exit_code: int = 0) -> None:
        ended = getattr(self, "_finished", False)
        finish(self, exit_code)
        found = getattr(self, "logger", {}).get(BACKEND)
        if found is not None and not ended:
            found.finish(exit_code)

    tracking.__init__, tracking.finish = initialise, finish_all
    tracking.supported_backend = [*tracking.supported_backend, BACKEND]


class ScalarsOfVerl:
    """What verl's driver logs, as a run of its own: the driver is another process than the workers,
    and counts other steps."""

    def __init__(self, project: str, experiment: str, config: Mapping[str, object]) -> None:
        """`ISENTROPE_PROJECT` and `ISENTROPE_NAME` go before verl's `project_name` and
        `experiment_name`."""
        name, run_id = (
            os.environ.get(f"ISENTROPE_{of_workers}") for of_workers in ("NAME", "RUN_ID")
        )
        self._probe = Probe(
            f"{name}-driver" if name else experiment,
            os.environ.get("ISENTROPE_PROJECT") or project,
            {"framework": "verl", **config},
            run_id=f"{run_id}-driver" if run_id else None,
            tags=["verl", "driver"],
        )

    def log(self, data: Mapping[str, Any], step: int) -> None:
        numbers = {
            name: float(value)
            for name, value in data.items()
            if isinstance(value, int | float) or hasattr(value, "item")
        }
        self._probe.log(
            numbers | {PROMISED[name]: numbers[name] for name in PROMISED.keys() & numbers.keys()}
        )
        self._probe.step(step)

    def finish(self, exit_code: int = 0) -> None:
        self._probe.finish(
            "failed" if exit_code else "finished", f"exit code {exit_code}" if exit_code else ""
        )


try:
    activate()
except Exception:  # verl hides it
    logger.exception("Isentrope is not attached to verl: loading its plugin failed.")
    raise
