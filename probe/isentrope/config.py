"""The settings of a probe, checked once, when it is built."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, cast, get_args

from isentrope.run_config import jsonable
from isentrope.trackers import Tracker, requested_trackers
from isentrope_wire import environment
from isentrope_wire.control import CAPABILITIES, Control, Hold
from isentrope_wire.errors import ConfigurationError
from isentrope_wire.reports import (
    DEFAULT_NAME,
    DEFAULT_PROJECT,
    NAME_CHARACTERS,
    TAG_CHARACTERS,
    TAGS,
    is_visible,
)

Mode = Literal["online", "offline", "disabled"]
Coupling = Literal["last_block", "model"]
"""Whose weights the entropy's gradient is of: those of the last of the model's repeated blocks,
whose backward pass is a small part of the model's; or all."""
ThresholdSource = Literal["auto", "first_pass", "previous_step", "micro_batch"]

_ON, _OFF = ("1", "true", "yes", "on"), ("0", "false", "no", "off")
_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


@dataclass(frozen=True, kw_only=True, slots=True)
class ProbeConfig:
    """Settings of one probe. `read_environment` fills in what the caller did not pass.

    Raises:
        ConfigurationError: naming the setting, what was expected and what came.
    """

    name: str
    project: str = DEFAULT_PROJECT
    run_id: str = ""
    """Empty: made from the name. All ranks and attempts of one run share it."""
    wanted_run_id: str = ""
    """The run id as it was asked for; empty: any will do."""
    rank: int = 0
    world_size: int = 1
    mode: Mode = "online"
    """online: spool and ship. offline: spool only, `isentrope sync` ships later. disabled:
    neither."""
    home: Path = field(default_factory=environment.home)
    grpc_target: str = environment.DEFAULT_GRPC
    planned_steps: int | None = None
    threshold_source: ThresholdSource = "auto"
    """Which tokens thresholds take their sigma from. first_pass: those last given to
    `Probe.first_pass`, this step's whole batch. previous_step: all tokens of the step before.
    micro_batch: the tokens of the same `gate` call, on this rank.
    auto: the first of these that is known; so a loop without a first pass uses the step before, and
    micro_batch in its first step."""
    coupling: Coupling | None = None
    """What a coupled prediction is made by, see `isentrope.statistics.coupling`. None: there is
    none."""
    coupling_samples: int | None = None
    """Completions that the entropy's gradient is taken from, where an adapter draws or chooses
    them. None: the adapter's own share."""
    coupling_every: int = 1
    influence_every: int = 0
    texts: bool = True
    """Whether texts of tokens, prompts and answers may be reported."""
    trackers: tuple[Tracker, ...] = ()
    control: Control = field(default_factory=Control)
    """What the run starts with."""
    counts: bool = True
    """Whether this rank's tokens count. False: another rank has them, too."""
    shown_config: Mapping[str, Any] = field(default_factory=dict)
    """The run's hyper-parameters as JSON."""
    tags: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("name", "project", "run_id"):
            if not isinstance(getattr(self, name), str):
                raise ConfigurationError(f"{name} must be text, got {getattr(self, name)!r}.")
        if len(self.project) > NAME_CHARACTERS:
            raise ConfigurationError(
                f"project must be a name of at most {NAME_CHARACTERS} characters, got"
                f" {len(self.project)} of them."
            )
        if not self.name or len(self.name) > 200:
            raise ConfigurationError(f"name must have 1 to 200 characters, got {len(self.name)}.")
        if not is_visible(self.name):
            raise ConfigurationError(f"name must have a visible character, got {self.name!r}.")
        object.__setattr__(self, "run_id", self.run_id or _new_run_id(self.name))
        if not _RUN_ID.fullmatch(self.run_id):
            raise ConfigurationError(
                "run_id may hold letters, digits, '.', '_' and '-' (at most 100), got"
                f" {self.run_id!r}."
            )
        if not 0 <= self.rank < self.world_size:
            raise ConfigurationError(
                f"rank must lie in [0, world_size), got {self.rank} of {self.world_size}."
            )
        words_of = {
            "mode": get_args(Mode),
            "threshold_source": get_args(ThresholdSource),
            "coupling": (*get_args(Coupling), None),
        }
        for name, words in words_of.items():
            if (value := getattr(self, name)) not in words:
                raise ConfigurationError(
                    f"{name} must be one of {', '.join(map(str, words))}; got {value!r}."
                )
        for name in ("coupling_every", "coupling_samples", "planned_steps"):
            if (number := getattr(self, name)) is not None and number < 1:
                raise ConfigurationError(f"{name} must be at least 1, got {number}.")
        if self.coupling_samples is not None and self.coupling is None:
            raise ConfigurationError(
                "coupling_samples says what a coupled prediction is made from: give coupling= "
                f'"last_block" or "model" with it; got coupling_samples={self.coupling_samples}.'
            )
        if self.influence_every < 0 or (self.influence_every and self.coupling != "model"):
            got = f"got {self.influence_every} with coupling={self.coupling!r}"
            raise ConfigurationError(
                f'influence_every must be 0, or a number of steps with coupling="model"; {got}.'
            )
        if self.control.capability not in CAPABILITIES:
            raise ConfigurationError(
                f"This probe can apply {', '.join(CAPABILITIES)}; the control needs"
                f" {self.control.capability}."
            )
        if self.mode == "disabled" and self.control.hold is not None:
            raise ConfigurationError(
                "hold is decided from the numbers of the reports, and mode disabled builds none."
                " Use mode offline or online, or leave hold out."
            )
        _check_tags(self.tags)

    @classmethod
    def read_environment(
        cls,
        *,
        name: str | None,
        project: str | None,
        run_id: str | None,
        mode: str | None,
        coupling: Coupling | None = None,
        rank_and_world_size: tuple[int, int] | None = None,
        trackers: object = None,
        control: Control | None = None,
        hold: Mapping[str, object] | float | str | None = None,
        counts: bool = True,
        config: object = None,
        tags: Sequence[str] = (),
        **others: Any,
    ) -> ProbeConfig:
        """Read the settings, named as the arguments of `Probe`: arguments win over ISENTROPE_*
        variables, these over defaults. Rank and size are those of the process group whose ranks
        share the settings; None: there is none, and RANK and WORLD_SIZE count as torchrun sets
        them."""
        if not counts and (rank_and_world_size is None or rank_and_world_size[0] == 0):
            raise ConfigurationError(
                "counts=False is for a rank whose tokens another rank counts, got it on rank 0,"
                " which reports the steps. Pass it on the other ranks that hold the same tokens."
            )
        run_id = run_id or os.environ.get("ISENTROPE_RUN_ID") or ""
        rank, world_size = rank_and_world_size or (
            _integer_from_environment("RANK", 0),
            _integer_from_environment("WORLD_SIZE", 1),
        )
        if world_size > 1 and not run_id and rank_and_world_size is None:
            raise ConfigurationError(
                f"All {world_size} ranks must report under one run id. Call"
                " torch.distributed.init_process_group before building the probe; or set"
                " ISENTROPE_RUN_ID for the whole job, or pass run_id=."
            )
        return cls(
            name=name or os.environ.get("ISENTROPE_NAME") or DEFAULT_NAME,
            project=project or os.environ.get("ISENTROPE_PROJECT") or DEFAULT_PROJECT,
            run_id=run_id,
            wanted_run_id=run_id,
            rank=rank,
            world_size=world_size,
            mode=cast(Mode, mode or os.environ.get("ISENTROPE_MODE") or "online"),
            grpc_target=environment.grpc_target(),
            coupling=coupling
            or cast("Coupling | None", os.environ.get("ISENTROPE_COUPLING") or None),
            texts=switched_on("ISENTROPE_TEXTS", by_default=True),
            trackers=requested_trackers(trackers),
            control=_read_control(control, hold),
            counts=counts,
            shown_config=jsonable(
                config or {}, hides_secrets=switched_on("ISENTROPE_REDACT", by_default=True)
            ),
            tags=_read_tags(tags),
            **others,
        )


def _read_control(control: object, hold: Mapping[str, object] | float | str | None) -> Control:
    """The control that a run starts with, with `hold` in the place of its own."""
    control = Control() if control is None else control
    if not isinstance(control, Control):
        raise ConfigurationError(
            "control must be an isentrope.Control, such as Control(method='clip_v', mu_low=1), got"
            f" {control!r}."
        )
    if hold is None:
        return control
    return replace(control, hold=Hold.from_document(hold).to_document())


def _read_tags(tags: Sequence[str]) -> tuple[str, ...]:
    if isinstance(tags, str) or not all(isinstance(tag, str) for tag in tags):
        raise ConfigurationError(
            f"tags must be a list of words, such as ['baseline'], got {tags!r:.100}."
        )
    return tuple(tags)


def _check_tags(tags: tuple[str, ...]) -> None:
    """ConfigurationError: too many, or too long, for a server to show."""
    longest = max(map(len, tags), default=0)
    if len(tags) > TAGS or longest > TAG_CHARACTERS:
        raise ConfigurationError(
            f"tags may be {TAGS} words of {TAG_CHARACTERS} characters each, got {len(tags)}, the"
            f" longest of {longest}. What is longer belongs into config."
        )


def _new_run_id(name: str) -> str:
    slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:40].strip("-")
    return f"{slug or 'run'}-{secrets.token_hex(3)}"


def switched_on(variable: str, *, by_default: bool = False) -> bool:
    """Whether an environment variable says yes."""
    text = os.environ.get(variable, "").strip().lower()
    if not text:
        return by_default
    if text not in _ON + _OFF:
        raise ConfigurationError(f"{variable} must be 1 or 0, got {text!r}.")
    return text in _ON


def _integer_from_environment(name: str, default: int) -> int:
    text = os.environ.get(name)
    if not text:
        return default
    try:
        return int(text)
    except ValueError:
        raise ConfigurationError(f"{name} must be a whole number, got {text!r}.") from None
