"""A run's configuration as it is reported: plain JSON, the same text in every process, and without
what looks like a secret."""

from __future__ import annotations

import datetime
import json
import math
import os
import re
from argparse import Namespace
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import fields, is_dataclass
from enum import Enum
from types import SimpleNamespace
from typing import Any, cast

from isentrope_wire.codec import JSON_NESTING, is_deeper
from isentrope_wire.errors import ConfigurationError
from isentrope_wire.reports import CONFIG_CHARACTERS

HIDDEN = "***"
"""In the place of a secret."""
_MOST_ELEMENTS = 1000
"""Of an array that is shown as a list; of a larger one the shape is shown."""
_MOST_BITS = 10_000
"""Python refuses to write longer integers as text."""
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_TOO_DEEP = (
    f"config may nest objects and lists {JSON_NESTING} deep, got more. Leave out what is no"
    " setting."
)

_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_SECRET = re.compile(
    "password|passwords|passwd|pwd|passphrase|secret|secrets|credential|credentials|authorization|"
    "apikey|apitoken"
)
_KEY_OF_ACCESS = re.compile(
    "access|account|anthropic|api|auth|aws|azure|encryption|gcp|hf|hub|license|openai|private|"
    "secret|service|signing|ssh|wandb"
)
"""Before `key`: others name a column, or the keys of an attention."""
_TOKEN_OF_TEXT = re.compile(
    "added|answer|assistant|audio|begin|bos|class|cls|completion|content|control|decoder|end|eos|"
    "eot|extra|fim|first|generation|image|img|last|mask|pad|placeholder|pre|prompt|query|reward|"
    "role|sep|separator|special|start|stop|system|think|thinking|tool|unk|video|vision"
)
"""Before `token`: one of a vocabulary."""
_ACCESS_TOKENS = re.compile("access|api|auth|bearer|refresh")
"""Before `tokens`: others are counted."""
_SPECIAL_TOKEN = re.compile(r"<.*>|\[.*\]|\s*", re.DOTALL)
_PASSWORD_IN_URL = re.compile(r"(\b[A-Za-z][A-Za-z0-9+.-]*://[^\s/:@]*):[^\s/@]+@")
_TOKEN_TEXT = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{20,}|sk-[A-Za-z0-9_-]{20,}|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|glpat-[\w-]{20,}"
    r"|xox[abprs]-[A-Za-z0-9-]{10,}|AKIA[0-9A-Z]{16})"
)


def jsonable(config: object, *, hides_secrets: bool = True) -> dict[str, object]:
    """A run's configuration, a mapping or an object with fields, as plain JSON: numbers of numpy
    and torch are numbers, sets are sorted, what JSON lacks becomes a text without addresses.

    Raises:
        ConfigurationError: it has no fields, is larger, or nests deeper, than a server shows.
    """
    try:
        result = _plain(config)
    except RecursionError:
        raise ConfigurationError(_TOO_DEEP) from None
    if not isinstance(result, dict):
        raise ConfigurationError(
            f"config must be a mapping, or an object with fields, got {type(config).__name__}. "
            "Pass names and values, such as config={'learning_rate': 1e-5}."
        )
    if is_deeper(result, JSON_NESTING):
        raise ConfigurationError(_TOO_DEEP)
    text = _compact(result)
    if len(text) > CONFIG_CHARACTERS:
        largest = max(result, key=lambda name: len(_compact(result[name])))
        raise ConfigurationError(
            f"config may have {CONFIG_CHARACTERS} characters as JSON, got {len(text)}, most of them"
            f" in {largest!r}. Leave out what is no setting, such as data."
        )
    return cast("dict[str, object]", _drop_secrets(result) if hides_secrets else result)


def _compact(value: object) -> str:
    """As it goes over the wire."""
    return json.dumps(value, separators=(",", ":"))


def _plain(value: object) -> object:
    if isinstance(value, Enum):
        is_shown = isinstance(value.value, str | int | float)
        if is_shown:
            return _plain(value.value)
        return value.name
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, int):
        is_short = value.bit_length() <= _MOST_BITS
        if is_short:
            return int(value)
        return f"an integer of {value.bit_length()} bits"
    if isinstance(value, float):
        if math.isfinite(value):
            return float(value)
        return str(float(value))
    members = _members(value)
    if members is not None:
        return {_text(str(name)): _plain(member) for name, member in members.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, AbstractSet):
        return sorted((_plain(item) for item in value), key=_compact)
    if isinstance(value, os.PathLike):
        return _text(os.fsdecode(value))
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    return _number_or_text(value)


def _members(value: Any) -> Mapping[Any, object] | None:
    """Names and values of an object that has fields; None: it is none."""
    if isinstance(value, Mapping):
        return value
    if isinstance(value, type):
        return None
    if isinstance(value, Namespace | SimpleNamespace):
        return vars(value)
    if is_dataclass(value):
        names = [field.name for field in fields(value)]
    elif hasattr(type(value), "__attrs_attrs__"):
        names = [field.name for field in type(value).__attrs_attrs__]
    elif hasattr(type(value), "model_fields"):
        names = list(type(value).model_fields)
    elif isinstance(value, tuple) and hasattr(value, "_fields"):
        names = list(value._fields)
    else:
        return None
    return {name: getattr(value, name) for name in names if hasattr(value, name)}


def _number_or_text(value: Any) -> object:
    """A number, or an array, of numpy or torch; else a text that is the same in every process."""
    shape = getattr(value, "shape", None)
    if isinstance(shape, tuple) and callable(getattr(value, "tolist", None)):
        try:
            if math.prod(shape) <= _MOST_ELEMENTS:
                return _plain(_shortest(value))
        except (RuntimeError, NotImplementedError):  # of a tensor without values
            pass
        return f"{type(value).__name__} of shape {list(shape)}"
    if callable(value) and hasattr(value, "__qualname__"):
        return f"{value.__module__}.{value.__qualname__}"
    name = f"{type(value).__module__}.{type(value).__qualname__}"
    text = str(value)
    if not text or text.startswith(f"<{name} object at 0x"):
        return name
    return _text(_ADDRESS.sub("", text))


def _shortest(value: Any) -> object:
    """What an array or number holds. Of a float32 the shortest decimal, 0.0001 instead of
    9.999999747378752e-05, for that is what was written."""
    detached = value
    if hasattr(value, "detach"):
        detached = value.detach().cpu()
    is_single = str(detached.dtype).removeprefix("torch.") == "float32"
    if math.prod(detached.shape) == 1 and is_single:
        return float(f"{detached.item():.7g}")
    if math.prod(detached.shape) == 1:
        return detached.item()
    return detached.tolist()


def _text(text: str) -> str:
    """Without halves of characters, as paths in another encoding hold."""
    return text.encode("utf-8", "backslashreplace").decode()


def _drop_secrets(value: object, name: str = "") -> object:
    if _is_secret(name, value):
        return HIDDEN
    if isinstance(value, dict):
        return {key: _drop_secrets(member, key) for key, member in value.items()}
    if isinstance(value, list):
        return [_drop_secrets(item, name) for item in value]
    if isinstance(value, str):
        return _TOKEN_TEXT.sub(HIDDEN, _PASSWORD_IN_URL.sub(rf"\1:{HIDDEN}@", value))
    return value


def _is_secret(name: str, value: object) -> bool:
    """Whether a value is one that its name calls a secret. Counts and token ids are none."""
    if value is None or isinstance(value, bool) or value in ("", [], {}):
        return False
    words = [word.lower() for word in _WORDS.findall(name)]
    if not words:
        return False
    last, before = words[-1], "".join(words[-2:-1])
    if any(map(_SECRET.fullmatch, words)):
        return isinstance(value, str | list | dict) or bool(_SECRET.fullmatch(last))
    if not isinstance(value, str):
        return False
    if last == "token":
        return not _TOKEN_OF_TEXT.fullmatch(before) and not _SPECIAL_TOKEN.fullmatch(value)
    if last == "tokens":
        return bool(_ACCESS_TOKENS.fullmatch(before))
    return last in ("key", "keys") and bool(_KEY_OF_ACCESS.fullmatch(before))
