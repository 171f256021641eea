"""Names of tokens: the ids a loop scored, and the text a tokenizer has for them."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from isentrope.errors import ConfigurationError
from isentrope.guard import Guard

logger = logging.getLogger(__name__)


class Tokenizer(Protocol):
    """What is asked of a tokenizer."""

    def decode(self, token_ids: Sequence[int]) -> str: ...


class TokenTexts:
    """Text of token ids; None without a tokenizer, or where it fails."""

    def __init__(self, tokenizer: Tokenizer | None) -> None:
        """
        Raises:
            ConfigurationError: the tokenizer has no `decode`.
        """
        if tokenizer is not None and not callable(getattr(tokenizer, "decode", None)):
            raise ConfigurationError(
                f"tokenizer must have decode([id]) -> str, got {type(tokenizer).__name__}. Leave it out to see ids only."
            )
        self._tokenizer = tokenizer
        self._guard = Guard()

    def __call__(self, token_id: int) -> str | None:
        if self._tokenizer is None or self._guard.failures:
            return None
        with self._guard.protect("naming tokens"):
            text = self._tokenizer.decode([token_id])
            return text if isinstance(text, str) else None
        return None


class ScoredTokens:
    """Which ids a loop's scores are of, without a field in the scores that every user of them would have to carry."""

    def __init__(self) -> None:
        self._known: list[tuple[weakref.ref[Tensor], Tensor]] = []

    def remember(self, logprobs: Tensor, token_ids: Tensor) -> None:
        """Keep the ids for as long as their log-probs live."""
        self._known = [pair for pair in self._known if pair[0]() is not None]
        self._known.append((weakref.ref(logprobs), token_ids.detach()))

    def ids_of(self, logprobs: Tensor) -> Tensor | None:
        """The ids that these very log-probs were scored for; None: others."""
        return next((token_ids for known, token_ids in self._known if known() is logprobs), None)
