"""Dataclasses as plain values, and back: numbers, text, lists and dicts, as JSON and torch.save take them.

A dataclass becomes a dict of its fields, without the underscore of private ones. What is read is checked against the
fields' types, so that a state which this version did not write is refused, and not restored in part.
"""

from __future__ import annotations

import math
import types
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from isentrope.errors import CheckpointError
from isentrope_wire.methods import METHODS, Method

_T = TypeVar("_T")

Plain = None | bool | int | float | str | list[Any] | dict[str, Any]


def plain(value: object) -> Plain:
    """The value as JSON has it. Floats keep every bit; those that JSON lacks become "nan", "inf", "-inf"."""
    if isinstance(value, Enum):
        return plain(value.value)
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, str):
        return str(value)  # a Method is a row of its own class
    if value is None or isinstance(value, bool | int | float):
        return value
    if is_dataclass(value):
        return {field.name.lstrip("_"): plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}
    assert isinstance(value, Sequence | deque), f"{type(value).__name__} has no plain form"
    return [plain(inner) for inner in value]


def rebuilt(kind: type[_T], state: object, where: str) -> _T:
    """Build the object from which `plain` made `state`.

    Args:
        kind: a dataclass that can be built without arguments, or from its fields.
        state: plain values.
        where: the name of the state, for the error.

    Raises:
        CheckpointError: a field that is missing, unknown or of another type.
    """
    if not isinstance(state, Mapping):
        raise _unreadable(where, f"an object of {kind.__name__}", state)
    hints = get_type_hints(kind)
    names = {field.name.lstrip("_"): field.name for field in fields(kind)}  # type: ignore[arg-type]
    if set(names) != set(state):
        raise _unreadable(where, f"the fields {', '.join(sorted(names))}", ", ".join(sorted(map(str, state))))
    made = {name: _value(hints[name], state[key], f"{where}.{key}") for key, name in names.items()}
    for field in fields(kind):  # type: ignore[arg-type]
        if isinstance(made[field.name], deque) and callable(field.default_factory):
            # How much it keeps is the class's own business, and not part of what it remembers.
            made[field.name] = deque(made[field.name], field.default_factory().maxlen)
    return kind(**made)


def _value(hint: Any, value: object, where: str) -> Any:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return _one_of(arguments, value, where)
    if origin in (list, deque, tuple):
        return _sequence(origin, arguments, value, where)
    if origin in (dict, Mapping):
        if not isinstance(value, Mapping):
            raise _unreadable(where, "an object", value)
        return {key: _value(arguments[1], inner, f"{where}.{key}") for key, inner in value.items()}
    if is_dataclass(hint):
        return rebuilt(cast("type[Any]", hint), value, where)
    if isinstance(hint, type) and issubclass(hint, Enum):
        try:
            return hint(value)
        except ValueError:
            raise _unreadable(where, f"one of {', '.join(str(one.value) for one in hint)}", value) from None
    if hint is Method:
        if value not in METHODS:
            raise _unreadable(where, f"one of {', '.join(METHODS)}", value)
        return METHODS[str(value)]
    if hint is float and value in ("nan", "inf", "-inf"):
        return float(str(value))
    accepted = (int, float) if hint is float else hint
    if not isinstance(value, accepted) or (isinstance(value, bool) and hint is not bool):
        raise _unreadable(where, getattr(hint, "__name__", str(hint)), value)
    return float(value) if hint is float and isinstance(value, int) else value


def _one_of(hints: tuple[Any, ...], value: object, where: str) -> Any:
    if value is None and type(None) in hints:
        return None
    # One kind beside None is all that our states have.
    (hint,) = (one for one in hints if one is not type(None))
    return _value(hint, value, where)


def _sequence(origin: type, arguments: tuple[Any, ...], value: object, where: str) -> Any:
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise _unreadable(where, "a list", value)
    if origin is not tuple or arguments[-1] is Ellipsis:
        arguments = (arguments[0],) * len(value)
    if len(arguments) != len(value):
        raise _unreadable(where, f"{len(arguments)} values", value)
    return origin(
        _value(hint, inner, f"{where}[{index}]")
        for index, (hint, inner) in enumerate(zip(arguments, value, strict=True))
    )


def _unreadable(where: str, expected: str, got: object) -> CheckpointError:
    return CheckpointError(
        f"{where} of the probe's state must hold {expected}, got {got!r:.200}. The checkpoint was written by another "
        "version of isentrope, or changed since: load it with the version that wrote it, or leave the state out and let "
        "the calibration start afresh."
    )
