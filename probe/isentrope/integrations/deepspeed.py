"""DeepSpeed engines in a loop of one's own: `engine_step(engine, probe)` in place of
`engine.step()`.

`score` and `gate` are called as in any loop. What DeepSpeed does differently is the update:
`engine.step()` is called after each micro-batch and updates at the accumulation boundary only, it
moves the learning rate by itself, and it clips. Read at 0.19.8: deepspeed/runtime/engine.py
(`step`, `_take_model_step`, `get_global_grad_norm`) and `unscale_and_clip_grads` of
deepspeed/runtime/zero/stage_1_and_2.py and stage3.py. This file does not import deepspeed."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from isentrope.inputs import clip_factor_of, learning_rates_of
from isentrope.integrations.attachment import Versions, check_parameters, refuse
from isentrope.probe import Probe
from isentrope.scores import TokenScores

VERSIONS = Versions("DeepSpeed", "deepspeed", at_least="0.19", below="0.20")


def engine_step(
    engine: Any,
    probe: Probe,
    rescore: Callable[[], TokenScores | Sequence[TokenScores]] | None = None,
) -> bool:
    """Call `engine.step()`, and where that was an update close the probe's step, numbered by
    `engine.global_steps`.

    Args:
        engine: what `deepspeed.initialize` returned first. Every rank must call.
        rescore: as for `Probe.step`: scores the micro-batches of the step again, in the order of
            their `gate` calls.

    Returns:
        Whether an update was made: False between two accumulation boundaries.

    Raises:
        ConfigurationError: at the first call: another version of DeepSpeed, or an engine without a
            step of its own.
    """
    check(engine.__class__)
    read_update = watch_update(engine)
    engine.step()
    if (about := read_update()) is None:
        return False
    probe.step(engine.global_steps, engine.optimizer, rescore, **about)
    return True


def watch_update(engine: Any) -> Callable[[], dict[str, Any] | None]:
    """Read what `engine.step()` will change. Called after that step, what is returned gives what
    `Probe.step` is to know about the update; None where none was made.
    """
    # Asked for a boundary, an engine whose caller manages accumulation answers during its step
    # alone.
    updates, rates = engine.global_steps, learning_rates_of(engine.optimizer)
    loss_scale = getattr(engine.optimizer, "loss_scale", 1.0)  # of float16; the others have none

    def read_update() -> dict[str, Any] | None:
        if engine.global_steps == updates:
            return None
        clipped = clip_factor_of(engine.get_global_grad_norm(), engine.gradient_clipping())
        return {"learning_rates": rates, "loss_scale": loss_scale, "clip_factor": clipped}

    return read_update


@functools.cache
def check(kind: type) -> None:
    """Refuse what can't be followed, once for each class of engines."""
    about = f"DeepSpeed {VERSIONS.check()}"
    if any(base.__name__ == "PipelineEngine" for base in kind.__mro__):
        refuse(
            "DeepSpeed",
            [
                (
                    "a pipeline engine makes its updates inside train_batch(), where no log-probs"
                    " are gated."
                )
            ],
        )
    for name in ("step", "get_global_grad_norm", "gradient_clipping"):
        check_parameters(kind, name, (), about)
