"""Vocabularies of words: one token a word, and the same three markers in each.

The words of a task are those of its problems and answers. A text is its words apart by one space; before a prompt stands
the marker `<bos>`, after an answer `<eos>`.
"""

from __future__ import annotations

from collections.abc import Sequence

from isentrope_wire.errors import IsentropeError

MARKERS = PAD, BOS, EOS = "<pad>", "<bos>", "<eos>"
PAD_ID, BOS_ID, EOS_ID = range(len(MARKERS))


class VocabularyError(IsentropeError, ValueError):
    """A word that the vocabulary does not have."""


class WordTokenizer:
    """Between texts and token ids."""

    pad_token_id = PAD_ID
    bos_token_id = BOS_ID
    eos_token_ids = (EOS_ID,)

    def __init__(self, words: Sequence[str]) -> None:
        """
        Args:
            words: those of the task; the markers come before them.
        """
        self.words = (*MARKERS, *words)
        self._ids = {word: token_id for token_id, word in enumerate(self.words)}

    def encode(self, text: str) -> list[int]:
        """The token ids of a prompt, after the marker that begins every text.

        Raises:
            VocabularyError: for a word the vocabulary doesn't have.
        """
        return [BOS_ID, *self.encode_words(text)]

    def encode_answer(self, text: str) -> list[int]:
        """The token ids of an answer, with the marker that ends it.

        Raises:
            VocabularyError: for a word the vocabulary doesn't have.
        """
        return [*self.encode_words(text), EOS_ID]

    def encode_words(self, text: str) -> list[int]:
        """The token ids of a text's words.

        Raises:
            VocabularyError: for a word the vocabulary doesn't have.
        """
        try:
            return [self._ids[word] for word in text.split()]
        except KeyError as missing:
            raise VocabularyError(
                f"The vocabulary has {len(self.words)} words, {missing.args[0]!r} is not one of them."
            ) from None

    def decode(self, token_ids: Sequence[int]) -> str:
        """The words of any token ids, apart by one space."""
        return " ".join(self.words[token_id] for token_id in token_ids)
