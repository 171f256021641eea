"""What a run is when it begins, and that all of its ranks say the same of it."""

from __future__ import annotations

import logging
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import isentrope
from isentrope.config import ProbeConfig, checked_tags, jsonable, wanted_run_id
from isentrope.errors import ConfigurationError
from isentrope.interventions.gradient_factors import CAPABILITIES
from isentrope.ranks import Ranks
from isentrope.transport.open_transport import open_transport
from isentrope.transport.transport import Transport
from isentrope_wire import environment
from isentrope_wire.control import Control
from isentrope_wire.messages import ControlSnapshot, RunStarted

logger = logging.getLogger(__name__)


class RunStart(NamedTuple):
    """A run that all ranks agree on."""

    config: ProbeConfig
    control: ControlSnapshot
    """In force from the first step on: version 0."""
    message: RunStarted
    """What this rank reports first."""


@dataclass(frozen=True, slots=True)
class _Word:
    """What a rank tells the others before the run begins."""

    error: str
    """Why it can't begin; empty when it can."""
    wanted_run_id: str = ""
    """As given; empty: rank 0's will do."""
    run_id: str = ""
    incarnation: str = ""
    """Of rank 0: one life of the run has one, whatever the number of its ranks."""
    control: str = ""
    threshold_source: str = ""


def begin_run(
    ranks: Ranks,
    configure: Callable[[], ProbeConfig],
    run_id: str | None,
    control: Control | None,
    run_config: Mapping[str, object],
    tags: Sequence[str],
) -> RunStart:
    """Agree on the run with the other ranks; a rank that can't begin keeps none of them waiting.

    Args:
        configure: makes this rank's settings.
        run_id: the one asked for, if any.
        control: the intervention the run starts with.
        run_config: the run's hyper-parameters, shown with it.

    Raises:
        ConfigurationError: a setting that can't work here or on another rank, or that differs between them.
    """
    own_error: ConfigurationError | None = None
    try:
        _check_control(control)
        config = configure()
        _check_mode(config, control)
        shown_config, shown_tags = jsonable(run_config), checked_tags(tags)
        mine = _Word(
            error="",
            wanted_run_id=wanted_run_id(run_id),
            run_id=config.run_id,
            incarnation=uuid.uuid4().hex,
            control=str((control or Control()).to_document()),
            threshold_source=config.threshold_source,
        )
    except ConfigurationError as error:
        own_error, mine = error, _Word(error=str(error))
    words = ranks.agree(mine)
    if own_error is not None:
        raise own_error
    _check_agreement(words)
    if config.world_size > ranks.size:
        logger.warning(
            "torch.distributed was not initialised when the probe was built: each of the %d ranks reports its own tokens "
            "only, and takes up a new control by itself.",
            config.world_size,
        )
    config = replace(config, run_id=words[0].run_id)
    initial = ControlSnapshot(version=0, control=control or Control(), author="trainer", requested_at=time.time())
    return RunStart(config, initial, _run_started(config, words[0].incarnation, initial, shown_config, shown_tags))


def transport_of(start: RunStart) -> Transport:
    """What carries this rank's reports."""
    config = start.config
    return open_transport(
        start.message, mode=config.mode, home=config.home, grpc_target=config.grpc_target, token=config.token
    )


def announce(config: ProbeConfig) -> None:
    """One line on stderr, of rank 0 alone, that says which run this is and where to look at it."""
    if config.rank or config.mode == "disabled":
        return
    where = (
        f"{environment.url()}/runs/{config.run_id}"
        if config.mode == "online"
        else f"offline, reports wait in {config.home / 'spool'} (isentrope sync)"
    )
    sys.stderr.write(f"isentrope: run {config.run_id}, {where}\n")


def _check_control(control: Control | None) -> None:
    if control is not None and not isinstance(control, Control):
        raise ConfigurationError(
            f"control must be an isentrope.Control, such as Control(method='clip_v', mu_low=1), got {control!r}."
        )
    wanted = (control or Control()).capability
    if wanted not in CAPABILITIES:
        raise ConfigurationError(f"This probe can carry out {', '.join(CAPABILITIES)}; the control asks for {wanted}.")


def _check_mode(config: ProbeConfig, control: Control | None) -> None:
    if config.mode == "disabled" and control is not None and control.hold is not None:
        raise ConfigurationError(
            "hold steers by the numbers of the reports, and mode disabled builds none. Use mode offline or online, or "
            "leave hold out."
        )


def _check_agreement(words: Sequence[_Word]) -> None:
    for rank, word in enumerate(words):
        if word.error:
            raise ConfigurationError(f"Rank {rank} can't begin: {word.error}")
    first = words[0]
    for rank, word in enumerate(words):
        for name, expected, got in (
            ("run_id", first.run_id, word.wanted_run_id or first.run_id),
            ("control", first.control, word.control),
            ("threshold_source", first.threshold_source, word.threshold_source),
        ):
            if got != expected:
                raise ConfigurationError(
                    f"All ranks must be given the same {name}: rank 0 has {expected}, rank {rank} has {got}."
                )


def _run_started(
    config: ProbeConfig,
    incarnation: str,
    initial: ControlSnapshot,
    run_config: Mapping[str, object],
    tags: tuple[str, ...],
) -> RunStarted:
    return RunStarted(
        run_id=config.run_id,
        incarnation=incarnation,
        rank=config.rank,
        world_size=config.world_size,
        name=config.run,
        project=config.project,
        started_at=time.time(),
        probe_version=isentrope.__version__,
        config=run_config,
        tags=tags,
        capabilities=CAPABILITIES,
        planned_steps=config.planned_steps,
        initial_control=initial,
    )
