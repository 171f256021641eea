"""The root of every error Isentrope raises on purpose, and what an error about a missing package
advises."""

from __future__ import annotations

import json
import shlex
from urllib.parse import unquote, urlsplit


class IsentropeError(Exception):
    """What was expected, what came, what to do: one sentence each, in the message."""


class ConfigurationError(IsentropeError, ValueError):
    """A setting or a control that cannot work, found where it is built."""


class CodecError(IsentropeError, ValueError):
    """Bytes or messages that are not what the wire's version promises."""


class InputError(IsentropeError, ValueError):
    """Tensors the equations can't be applied to: shapes, types, token ids or values."""


class CheckpointError(IsentropeError, ValueError):
    """A state that `Probe.load_state_dict` can't continue from."""


def install_command(extra: str = "") -> str:
    """The command that installs Isentrope, with an extra, again from where it came, such as a
    clone."""
    # Imported here: no command should wait for it.
    from importlib.metadata import PackageNotFoundError, distribution  # noqa: PLC0415

    source, editable = "isentrope", ""
    try:
        # pip and uv note it there (PEP 610).
        noted = json.loads(distribution("isentrope").read_text("direct_url.json") or "{}")
    except (PackageNotFoundError, ValueError):
        noted = {}
    origin = urlsplit(noted.get("url", ""))
    if origin.scheme == "file":
        source = unquote(origin.path)
        editable = ""
        if noted.get("dir_info", {}).get("editable"):
            editable = "--editable "
    return f"pip install {editable}{shlex.quote(source + (f'[{extra}]' if extra else ''))}"
