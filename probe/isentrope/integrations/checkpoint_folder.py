"""The probe's state in a transformers checkpoint: a file of its own, beside the trainer's.

It is looked for in the folder that `train(resume_from_checkpoint=PATH)` was given, and nowhere else. Where that is not
known, or was no path, it is looked for where the training arguments say to resume from, else where the trainer of this
run keeps its checkpoints (`output_dir/checkpoint-STEP`). A checkpoint without it, or with one that can't be read, is resumed all the same:
the calibration then begins anew.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from transformers import TrainerState, TrainingArguments

from isentrope.atomic_file import write_atomically
from isentrope.errors import CheckpointError
from isentrope.probe import Probe

logger = logging.getLogger(__name__)

STATE_FILE = "isentrope_probe.json"


def folder_of(args: TrainingArguments, state: TrainerState) -> Path:
    """Of the checkpoint that the trainer writes at this step."""
    return Path(args.output_dir or ".") / f"checkpoint-{state.global_step}"


def save_probe(probe: Probe, folder: Path) -> None:
    """Write the state beside the trainer's, on rank 0, whose state counts for all. A disk that refuses is told of."""
    if probe.config.rank or not folder.is_dir():
        return
    try:
        write_atomically(folder / STATE_FILE, json.dumps(probe.state_dict()).encode())
    except OSError as error:
        logger.warning("The probe's state is not in %s: %s.", folder, error)


def path_given(arguments: Sequence[object], named: Mapping[str, object]) -> Path | None:
    """The folder among the arguments of a trainer's `train`, of which it is the first; None: none, or True for the last."""
    given = arguments[0] if arguments else named.get("resume_from_checkpoint")
    return Path(given) if isinstance(given, str | PathLike) else None


def resume_probe(probe: Probe, args: TrainingArguments, state: TrainerState, given: Path | None) -> None:
    """Where training goes on from a checkpoint, so does the probe. Every rank comes here.

    Args:
        given: see `path_given`.
    """
    if not state.global_step:
        return
    try:
        probe.load_state_dict(_read([given] if given else _likely(args, state)))
    except CheckpointError as error:
        logger.warning("The probe begins anew: %s", error)


def _likely(args: TrainingArguments, state: TrainerState) -> list[Path]:
    return [*([Path(args.resume_from_checkpoint)] if args.resume_from_checkpoint else []), folder_of(args, state)]


def _read(folders: Sequence[Path]) -> dict[str, Any] | None:
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
