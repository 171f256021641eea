"""What adapters to other training frameworks share: one probe inside a training worker, and its
three places there.

    # In the worker, once its process group exists:
    attachment = Attachment(in_worker(config={...}, group=group))
    # Where the head's logits are:
    attachment.hold(lambda: attachment.probe.score(logits, ids))
    # Where the loss reads its log-probs:
    logprobs = attachment.gate(own, advantages, mask, attachment.take())
    # After the optimiser's update:
    attachment.close(optimizer)

The framework keeps the log-probs that it computed: they are gated, not replaced, so that a run
without a control stays bit-identical. What fails here is counted in `probe/attachment_failures`,
and the framework goes on with its own numbers. This file needs none of the frameworks' libraries.
"""

from __future__ import annotations

import functools
import inspect
import json
import os
import re
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from isentrope.config import switched_on
from isentrope.guard import Guard, SafeLog
from isentrope.inputs import clip_factor_of
from isentrope.probe import Probe
from isentrope.scores import TokenScores
from isentrope.scores.token_scores import wants_entropy_gradient
from isentrope.statistics.tokens import detached
from isentrope.transport.files import write_atomically
from isentrope_wire.errors import CheckpointError, ConfigurationError
from isentrope_wire.metrics import COMPLETION_LENGTH_MEAN, PROBE_ATTACHMENT_FAILURES, REWARD_MEAN

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup
    from torch.optim import Optimizer

logger = SafeLog(__name__)

STATE_FILE = "isentrope_probe.json"


@dataclass(frozen=True, slots=True)
class Versions:
    """Versions of a framework that an adapter was tried with."""

    framework: str
    """As it calls itself."""
    distribution: str
    """What pip calls it."""
    at_least: str
    below: str

    def check(self) -> str:
        """The installed version; ConfigurationError: none, or one outside of this range."""
        try:
            installed = version(self.distribution)
        except PackageNotFoundError:
            raise ConfigurationError(
                f"{self.framework} is not installed. Install"
                f" {self.distribution}>={self.at_least},<{self.below}."
            ) from None
        if not _numbers(self.at_least) <= _numbers(installed) < _numbers(self.below):
            raise ConfigurationError(
                f"The adapter was tried with {self.framework} {self.at_least} up to, not including,"
                f" {self.below}; installed is {installed}. Install such a version, or use"
                " isentrope.Probe in the loop itself."
            )
        return installed


def _numbers(text: str) -> tuple[int, ...]:
    """Numbers of the release, without its suffix: 0.9.1.dev3+cpu -> (0, 9, 1)."""
    release = re.match(r"\d+(\.\d+)*", text)
    if release:
        return tuple(map(int, release[0].split(".")))
    return ()


def refuse(framework: str, reasons: Iterable[str]) -> None:
    """Refuse a set-up that can't be observed."""
    if (reason := next(iter(reasons), None)) is not None:
        raise ConfigurationError(f"Can't attach to {framework}: {reason}")


def check_parameters(owner: object, name: str, expected: Iterable[str], framework: str) -> None:
    """Check that a method of an object, class or module takes the parameters it is known to take.
    ConfigurationError: it or a parameter is missing."""
    method = getattr(owner, name, None)
    lacking = "the method itself"
    if callable(method):
        parameters = inspect.signature(method).parameters
        # A wrapper that passes all arguments on is fine.
        if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
            return
        missing = [parameter for parameter in expected if parameter not in parameters]
        if not missing:
            return
        lacking = f"its parameter {missing[0]}"
    if inspect.isclass(owner) or inspect.ismodule(owner):
        about = owner.__name__
    else:
        about = type(owner).__name__
    raise ConfigurationError(
        f"{framework} is not laid out as expected: {about}.{name} lacks {lacking}. Install a"
        " version that the adapter supports, or use isentrope.Probe in the loop itself."
    )


def wrap(owner: Any, name: str, ours: Callable[..., Any]) -> None:
    """Put `ours` in the place of a method of an object, or of a module's function. It gets theirs
    as its first argument."""
    theirs = getattr(owner, name)
    setattr(owner, name, functools.wraps(theirs)(functools.partial(ours, theirs)))


def in_worker(
    *,
    config: Mapping[str, object],
    group: ProcessGroup | None = None,
    name: str | None = None,
    **settings: Any,
) -> Probe:
    """Build the probe of one worker process. Name, project, run and server come from the
    environment (ISENTROPE_...).

    Args:
        group: the ranks that gate; every one of them must call. With context or tensor parallelism
            these are also the ranks that hold the same tokens: each needs the gate. Default: all
            ranks.
        name: of the run, where `ISENTROPE_NAME` is not set.
        **settings: others of `Probe`.
    """
    return Probe(os.environ.get("ISENTROPE_NAME") or name, config=config, group=group, **settings)


def prompt_groups(prompts: Iterable[object], device: torch.device) -> Tensor:
    """A number for the prompt of each sequence, [batch], the same on all ranks."""
    return torch.tensor([zlib.crc32(str(prompt).encode()) for prompt in prompts], device=device)


class Attachment:
    """One probe inside one training worker: scores wait between head and loss, the loss's log-probs
    pass the gate, and an update closes the step."""

    def __init__(
        self, probe: Probe, guard: Guard | None = None, *, rescore: bool | None = None
    ) -> None:
        """`guard` counts what fails in the adapter's own code.

        Args:
            rescore: whether `rescore_of_first` gives something. Default: `ISENTROPE_RESCORE`, or
                true.
        """
        self.probe = probe
        self.updates = 0
        """Updates of the optimiser since the run began."""
        self.guard = guard or Guard()
        if rescore is None:
            self._rescores = switched_on("ISENTROPE_RESCORE", by_default=True)
        else:
            self._rescores = rescore
        self._is_first = True
        self._completions: Tensor | None = None
        """Completions of the step: sum of rewards, tokens, and number of completions, float64."""
        self._held: deque[TokenScores] = deque()
        self._shown_step: int | None = None

    def score(self, score: Callable[[], TokenScores]) -> TokenScores | None:
        """Scores of a micro-batch where its logits are, detached but where the entropy's gradient
        is taken; None where scoring failed."""
        is_coupled = wants_entropy_gradient(False)
        with (
            self.guard.protect("scoring beside the head"),
            nullcontext() if is_coupled else torch.no_grad(),
        ):
            scores = score()
            if is_coupled:
                return scores
            return replace(detached(scores), token_ids=scores.token_ids)
        return None

    def hold(self, score: Callable[[], TokenScores]) -> None:
        """Score a micro-batch where its logits are, and keep the scores for its loss."""
        if (scores := self.score(score)) is not None:
            self._held.append(scores)

    def take(self) -> TokenScores | None:
        """The oldest scores that are held, for micro-batches reach their losses in the order of
        their heads; None where scoring failed."""
        if self._held:
            return self._held.popleft()
        return None

    def drop_held(self) -> None:
        """Forget scores that no loss has taken, before the first micro-batch of a step: a step may
        have been broken off."""
        self._held.clear()
        self._completions, self._is_first = None, True

    def discard(self) -> None:
        """Drop a step that the framework makes no update of."""
        self.drop_held()
        self.probe.discard()

    def rescore_of_first(
        self, rescore: Callable[[], TokenScores | None]
    ) -> Callable[[], TokenScores | None] | None:
        """What scores a micro-batch again after the update, for the observed change; None but for
        the first of an update."""
        is_first, self._is_first = self._is_first, False
        if is_first and self._rescores:
            return rescore
        return None

    def gate(
        self,
        own: Tensor,
        advantages: Tensor,
        mask: Tensor | None,
        scores: TokenScores | None,
        **known: Any,
    ) -> Tensor:
        """Record a micro-batch and gate the framework's own log-probs of it.

        Args:
            scores: of the same tokens; None: they were not scored.

        Returns:
            The very tensor `own` where no control is active, or where something failed.
        """
        if scores is None:
            return own
        with self.guard.protect("gating a micro-batch"):
            return self.probe.gate(scores, advantages, mask, logprobs=own, **known)
        return own

    def count_completions(self, rewards: Tensor | None, tokens: Tensor) -> None:
        """Let completions of a micro-batch count in the step's mean reward and length, over all
        ranks.

        `rewards` has one per completion, on the device of the process group; None on all ranks:
        they are not known. `tokens` says how many there are in all of them, or has 1 for each.
        """
        if rewards is not None:
            total = tokens.sum().double()
            sums = torch.stack(
                [rewards.sum().to(total), total, torch.full_like(total, len(rewards))]
            )
            if self._completions is None:
                self._completions = sums
            else:
                self._completions = self._completions + sums

    def close(
        self,
        optimizer: Optimizer | None,
        *,
        step: int | None = None,
        norm: float | Tensor | None = None,
        largest_norm: float | None = None,
        **about: Any,
    ) -> None:
        """Close the step after the optimiser's update.

        Args:
            step: number of the update. Default: one more than the last.
            norm: of the gradient before it was clipped; None: not known.
            largest_norm: that clipping allows; None or 0: nothing is clipped.
        """
        if step is None:
            self.updates = self.updates + 1
        else:
            self.updates = step
        sums = self._completions
        self.drop_held()
        if sums is not None:
            if torch.distributed.is_initialized():
                torch.distributed.all_reduce(sums)
            self.probe.log(
                {REWARD_MEAN: sums[0] / sums[2], COMPLETION_LENGTH_MEAN: sums[1] / sums[2]}
            )
        if self.guard.failures:
            self.probe.log({PROBE_ATTACHMENT_FAILURES: float(self.guard.failures)})
        with self.guard.protect("reading the norm of a gradient"):
            about.setdefault("clip_factor", clip_factor_of(norm, largest_norm))
        self.probe.step(self.updates, optimizer, **about)
        self.guard.settled = True

    def newly_reported(self) -> dict[str, float]:
        """Scalars of the newest complete report, once, for the framework's own loggers.

        A report is built off the training thread: it may be that of the update before.
        """
        latest = self.probe.latest
        if latest.step in (-1, self._shown_step):
            return {}
        self._shown_step = latest.step
        return dict(latest.scalars)

    def save(self, folder: Path) -> None:
        """Write the probe's state into a checkpoint of the framework, on rank 0, whose state counts
        for all."""
        save_probe(self.probe, folder)

    def resume(self, folder: Path) -> None:
        """Continue from the checkpoint that the framework continues from. Every rank must call
        this."""
        resume_probe(self.probe, [folder])
        self.updates = self.probe.last_step or 0


def save_probe(probe: Probe, folder: Path) -> None:
    """Write the state beside the trainer's, on rank 0, whose state counts for all. A failing disk
    is a warning."""
    if probe.config.rank or not folder.is_dir():
        return
    try:
        # Whoever may read the checkpoint continues from it.
        write_atomically(folder / STATE_FILE, json.dumps(probe.state_dict()).encode(), mode=0o666)
    except OSError as error:
        logger.warning("The probe's state was not written to %s: %s.", folder, error)


def resume_probe(probe: Probe, folders: Iterable[Path]) -> None:
    """Continue from the first of these folders that has a state, on every rank. Without one, or
    with one that can't be read, the calibration starts from the beginning."""
    try:
        probe.load_state_dict(_read(folders))
    except CheckpointError as error:
        logger.warning("The probe starts without the checkpoint's state: %s", error)


def _read(folders: Iterable[Path]) -> dict[str, Any] | None:
    """The state in the first of these folders that has one; None where none has, or where it can't
    be read."""
    for path in (folder / STATE_FILE for folder in folders):
        try:
            found: dict[str, Any] = json.loads(path.read_bytes())
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as error:
            logger.warning("%s can't be read: %s.", path, error)
            return None
        return found
    return None
