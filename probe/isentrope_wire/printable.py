"""Text of others in a line of ours: a terminal obeys some characters, and a line break forges a line."""

from __future__ import annotations


def printable(text: str) -> str:
    """The text in one line; what is not printable, or turns the reading direction, by its number."""
    return text if text.isprintable() else "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in text)
