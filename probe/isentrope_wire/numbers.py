"""Dataclasses as JSON and back, which has no NaN; which numbers can be learnt from; numbers in
sentences, and text of others in one line.

In JSON numbers that are not finite are the texts "NaN", "Infinity" and "-Infinity". A value that
was not measured is absent or null.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Annotated, Any, ClassVar, TypeGuard, TypeVar, get_args, get_origin

import msgspec

_T = TypeVar("_T")


def is_finite_number(value: object) -> TypeGuard[float]:
    """Whether it is a number that a float holds: neither true nor text, not NaN, and no integer
    beyond a float's range."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


LARGEST_USABLE = 1e100
"""Numbers beyond it are no measurements, and their squares, or sums of these, no numbers."""


def is_usable(value: float) -> bool:
    """Whether a reported number can be calculated with; NaN can't."""
    return -LARGEST_USABLE <= value <= LARGEST_USABLE


FIRST_UPDATES = 5
"""While Adam's averages are as young as this, each weight moves by about the whole learning rate:
what a coupled prediction learns from these updates is wrong for dozens of steps."""

WILD_FIRST = 3.0
"""How many times the largest of the four changes behind it the first change must be to teach
nothing. Adam's first update moves every weight by the whole learning rate, whatever its gradient:
with few tokens and a low rate that is mostly noise, and a gain learnt from it had the wrong sign
for twenty steps."""


def is_first_wild(changes: Sequence[float]) -> bool:
    """Whether the first of these changes of the entropy, in nats, says nothing of the others."""
    return 0 < WILD_FIRST * max(abs(change) for change in changes[1:]) < abs(changes[0])


def shown(value: object) -> str:
    """For an error's sentence: no longer than it can be read."""
    try:
        return f"{value!r:.80}"
    except ValueError:  # an integer of more digits than Python writes out
        return "an integer of thousands of digits"


def printable(text: str) -> str:
    """The text in one line; what is not printable, or turns the reading direction, by its
    number."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in text)


def no_formula(cell: object) -> object:
    """A cell that a spreadsheet does not run as a formula: an apostrophe is added, also to one that
    begins with one."""
    is_risky = isinstance(cell, str) and cell.lstrip("'").startswith(
        ("=", "+", "-", "@", "\t", "\r")
    )
    if is_risky:
        return f"'{cell}"
    return cell


MINUS = "−"


def round_to_step(value: float) -> float:
    """The nearest of 24 numbers a decade, in two digits (1.0, 1.1, 1.2, 1.3, 1.5, 1.6, 1.8 ...).

    What scatters by a few percent is mostly rounded to the same one. `value` is above 0."""
    return float(f"{10 ** (round(24 * math.log10(value)) / 24):.2g}")


def fixed(value: float, decimals: int) -> str:
    """A number in a sentence: `−0.0008`. What rounds to nothing has no sign; NaN and ∞ by their
    names."""
    if math.isnan(value):
        return "NaN"
    text = "∞" if math.isinf(value) else f"{abs(value):.{decimals}f}"
    negative = value < 0 and any(sign in text for sign in "123456789∞")
    if negative:
        return f"{MINUS}{text}"
    return text


def decimals_of(value: float, significant: int) -> int:
    """The decimals that show so many significant digits of a number, at least 0; 0 has as many as
    0.1."""
    size = -1
    if value and math.isfinite(value):
        size = math.floor(math.log10(abs(value)))
    return max(0, significant - 1 - size)


def nats(entropy: float) -> str:
    """An entropy in a sentence: `0.281`, `0.0043`, `12.3`."""
    return fixed(entropy, max(3, min(decimals_of(entropy, 2), 5)) if abs(entropy) < 10 else 1)


def percent(share: float, decimals: int = 0) -> str:
    """A share of a whole in a sentence: `12.9 %`."""
    return f"{fixed(100 * share, decimals)} %"


class _TextIfNotFinite:
    """Describes a number of an answer in OpenAPI; the server's JSON library looks for this
    method."""

    def __get_pydantic_json_schema__(self, _schema: object, _handler: object) -> dict[str, object]:
        return {
            "anyOf": [
                {"type": "number"},
                {"type": "string", "enum": ["NaN", "Infinity", "-Infinity"]},
            ]
        }


Number = Annotated[float, _TextIfNotFinite()]
"""A float that may be NaN or infinite, and is a text then in JSON."""
Count = Annotated[int, msgspec.Meta(ge=0)]
Index = Annotated[int, msgspec.Meta(ge=0, lt=2**32)]
"""Of ranks, rows and positions."""


class Answer:
    """Base of the REST API's answers. Their fields are documented by the text below each."""

    __slots__ = ()
    __pydantic_config__: ClassVar[Mapping[str, Any]] = {"ser_json_inf_nan": "strings"}


def read(kind: type[_T], document: object) -> _T:
    """A dataclass, or a value of dataclasses, from JSON values, such as `document_of` gives: fields
    that `kind` does not have are ignored, and defaults stand for missing ones. ValueError: naming
    the place, what was expected and what came."""
    return msgspec.convert(document, kind, strict=False, dec_hook=_read_document)


def part_of(kind: type[_T], value: object, **others: object) -> _T:
    """The dataclass `kind` with the fields of `value`, and `others` in their place where given."""
    names = (field.name for field in fields(kind) if field.name not in others)  # type: ignore[arg-type]  # a dataclass
    return kind(**{name: getattr(value, name) for name in names}, **others)


def read_exactly(kind: type[_T], document: object) -> _T:
    """As `read`; ValueError also where the document is not what `document_of` gives for a value of
    this kind."""
    found = read(kind, document)
    if document_of(found) != document:
        names = ", ".join(field.name for field in fields(kind))  # type: ignore[arg-type]  # a dataclass
        raise ValueError(
            f"Expected all the fields of `{kind.__name__}` ({names}) and no others, got"
            f" {document!r:.200}"
        )
    return found


def document_of(value: object) -> Any:
    """A dataclass, however deep, as JSON values: each becomes an object of its fields."""
    return plain_json(msgspec.to_builtins(value, enc_hook=_write_document))


def _write_document(value: object) -> object:
    if isinstance(value, deque):
        return {"at_most": value.maxlen, "values": list(value)}
    if isinstance(value, str):  # a class of its own, such as a Method
        return str(value)
    raise NotImplementedError(f"{type(value).__name__} has no JSON form")


def _read_document(kind: Any, document: Any) -> Any:
    if get_origin(kind) is not deque:
        raise NotImplementedError(f"{kind} has no JSON form")
    items: Any = list[get_args(kind)[0]]  # type: ignore[misc]
    try:
        return deque(read(items, document["values"]), document["at_most"])
    except (KeyError, TypeError) as error:
        raise ValueError(f"Expected a list and how much it holds, got {document!r:.200}") from error


def number(value: float) -> float | str:
    """As JSON holds it."""
    if math.isfinite(value):
        return value
    if math.isnan(value):
        return "NaN"
    if value > 0:
        return "Infinity"
    return "-Infinity"


def plain_json(value: object) -> object:
    """The same JSON value with its floats spelled as above, however deep, and half characters
    replaced.

    A run's configuration is untrusted: no value of it may make the answer unreadable.
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
