"""How values travel in JSON, which has no NaN: checked, written and read; numbers in sentences, and text of others in one line.

In JSON numbers that are not finite are the texts "NaN", "Infinity" and "-Infinity". A value that was not measured is absent
or null.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping
from dataclasses import fields, is_dataclass
from enum import StrEnum
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, ClassVar, TypeGuard, TypeVar, Union, cast, get_args, get_origin, get_type_hints

_T = TypeVar("_T")


def is_finite_number(value: object) -> TypeGuard[float]:
    """Whether it is a number that a float holds: neither true nor text, not NaN, and no integer beyond a float's range."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def shown(value: object) -> str:
    """For an error's sentence: no longer than it can be read."""
    try:
        return f"{value!r:.80}"
    except ValueError:  # an integer of more digits than Python writes out
        return "an integer of thousands of digits"


def printable(text: str) -> str:
    """The text in one line; what is not printable, or turns the reading direction, by its number."""
    return text if text.isprintable() else "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in text)


MINUS = "−"


def fixed(value: float, decimals: int) -> str:
    """A number in a sentence: `−0.0008`. What rounds to nothing has no sign; NaN and ∞ by their names."""
    if math.isnan(value):
        return "NaN"
    text = "∞" if math.isinf(value) else f"{abs(value):.{decimals}f}"
    negative = value < 0 and any(sign in text for sign in "123456789∞")
    return f"{MINUS}{text}" if negative else text


def decimals_of(value: float, significant: int) -> int:
    """The decimals that show so many significant digits of a number, at least 0; 0 has as many as 0.1."""
    size = math.floor(math.log10(abs(value))) if value and math.isfinite(value) else -1
    return max(0, significant - 1 - size)


def percent(share: float, decimals: int = 0) -> str:
    """A share of a whole in a sentence: `12.9 %`."""
    return f"{fixed(100 * share, decimals)} %"


class _TextIfNotFinite:
    """Describes a number of an answer in OpenAPI; the server's JSON library looks for this method."""

    def __get_pydantic_json_schema__(self, _schema: object, _handler: object) -> dict[str, object]:
        return {"anyOf": [{"type": "number"}, {"type": "string", "enum": ["NaN", "Infinity", "-Infinity"]}]}


Number = Annotated[float, _TextIfNotFinite()]
"""A float that may be NaN or infinite, and is a text then in JSON."""


class Answer:
    """Base of the REST API's answers. Their fields are documented by the text below each."""

    __slots__ = ()
    __pydantic_config__: ClassVar[Mapping[str, Any]] = {
        "use_attribute_docstrings": True,
        "ser_json_inf_nan": "strings",
    }


def read(kind: type[_T], document: object) -> _T:
    """An answer from its JSON document. Fields that `kind` does not have are ignored.

    Raises:
        KeyError, TypeError, ValueError: the document is not of this kind.
    """
    answer: _T = _reader(cast(Hashable, kind))(document)
    return answer


@cache
def _reader(kind: Hashable) -> Callable[[Any], Any]:
    """What makes a value of type `kind` from JSON."""
    origin, arguments = get_origin(kind), get_args(kind)
    if kind is float:
        return float  # reads "NaN" and "Infinity", too
    if is_dataclass(origin or kind):
        return _dataclass_reader(origin or kind, arguments)
    if origin is list:
        item = _reader(arguments[0])
        return lambda values: [item(value) for value in values]
    if origin is tuple:
        item = _reader(arguments[0])
        return lambda values: tuple(map(item, values))
    if origin is dict:
        inner = _reader(arguments[1])
        return lambda values: {name: inner(value) for name, value in values.items()}
    if origin in (Union, UnionType):
        choices = [choice for choice in arguments if choice is not NoneType]
        some = _reader(choices[0]) if len(choices) == 1 else _unchanged
        return lambda value: None if value is None else some(value)
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return kind
    return _unchanged


def _dataclass_reader(kind: Any, arguments: tuple[Any, ...]) -> Callable[[Any], Any]:
    hints = get_type_hints(kind)
    generic = dict(zip(getattr(kind, "__parameters__", ()), arguments, strict=True))
    readers = {field.name: _reader(_filled_in(hints[field.name], generic)) for field in fields(kind)}
    return lambda document: kind(**{name: value(document[name]) for name, value in readers.items()})


def _filled_in(hint: Any, generic: Mapping[Any, Any]) -> Any:
    """`list[T]` with the type that T stands for."""
    parameters = getattr(hint, "__parameters__", ())
    return hint[tuple(generic[parameter] for parameter in parameters)] if parameters else hint


def _unchanged(value: Any) -> Any:
    return value


def number(value: float) -> float | str:
    """As JSON holds it."""
    if math.isfinite(value):
        return value
    if math.isnan(value):
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"


def plain_json(value: object) -> object:
    """The same JSON value with its floats spelled as above, however deep, and half characters replaced.

    A run's configuration is whatever its trainer sent; no value of it may make the answer unreadable.
    """
    if isinstance(value, float):
        return number(value)
    if isinstance(value, Mapping):
        return {str(plain_json(name)): plain_json(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain_json(inner) for inner in value]
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode("utf-8")
    return value
