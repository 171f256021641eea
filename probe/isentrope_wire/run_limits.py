"""How much a run may say of itself. The probe checks it where it is built; the server cuts what comes beyond all the same."""

from __future__ import annotations

CONFIG_CHARACTERS = 256 * 1024
"""Of the configuration as compact JSON."""
TAGS = 50
TAG_CHARACTERS = 100
NAME_CHARACTERS = 500
"""Of a run's, a project's, a metric's or a label's name: an index entry of PostgreSQL holds 2 700 bytes."""
ERROR_CHARACTERS = 10_000
"""Of why a run failed."""

_CUT = " ... cut"


def cut(text: str, characters: int) -> str:
    """The text, or its beginning and the word that it was cut."""
    return text if len(text) <= characters else text[: characters - len(_CUT)] + _CUT
