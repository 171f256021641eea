"""How much a Hello may hold. What no probe sends is cut before anything reads it; no run is lost for what it says of itself."""

from __future__ import annotations

import json

from isentrope_wire.errors import CodecError
from isentrope_wire.run_limits import CONFIG_CHARACTERS, TAG_CHARACTERS, TAGS, cut
from isentrope_wire.v1 import telemetry_pb2 as pb

CAPABILITIES = 200
CAPABILITY_CHARACTERS = 200
VERSION_CHARACTERS = 100
CONTROL_CHARACTERS = 64 * 1024
"""Of the parameters and of the hold of the control a run starts with, as JSON."""
REASON_CHARACTERS = 10_000


def cut_to_size(run: pb.RunStarted) -> None:
    """Cut in place what is too long.

    Raises:
        CodecError: a control with parameters of a size that no method has.
    """
    if len(run.config_json) > CONFIG_CHARACTERS:
        # The first half of a JSON document is none.
        left_out = f"{len(run.config_json)} characters of JSON, at most {CONFIG_CHARACTERS} are kept"
        run.config_json = json.dumps({"left_out": left_out})
    tags = [cut(tag, TAG_CHARACTERS) for tag in run.tags[:TAGS]]
    capabilities = [name for name in run.capabilities[:CAPABILITIES] if len(name) <= CAPABILITY_CHARACTERS]
    del run.tags[:], run.capabilities[:]
    run.tags.extend(tags)
    run.capabilities.extend(capabilities)
    run.probe_version = cut(run.probe_version, VERSION_CHARACTERS)
    if run.HasField("initial_control"):
        _cut_control(run.initial_control)


def _cut_control(control: pb.ControlSnapshot) -> None:
    size = max(len(control.parameters_json), len(control.hold_json))
    if size > CONTROL_CHARACTERS:
        raise CodecError(
            f"parameters_json and hold_json have at most {CONTROL_CHARACTERS} characters each, got {size}."
        )
    control.reason = cut(control.reason, REASON_CHARACTERS)
    control.author = cut(control.author, VERSION_CHARACTERS)
