"""The words of the countdown task and their token ids.

A problem reads `<bos> 3 5 7 -> 26 :` and is always PROMPT_LENGTH tokens long, so prompts never need padding. A
completion is an arithmetic expression, one token per number, operator or parenthesis, ended by `<eos>`.
"""

from __future__ import annotations

from collections.abc import Sequence

from isentrope_wire.errors import IsentropeError

MAX_NUMBER = 49
NUMBERS_PER_PROBLEM = 3

PAD, BOS, EOS = "<pad>", "<bos>", "<eos>"
ARROW, COLON = "->", ":"
WORDS: tuple[str, ...] = (
    *(PAD, BOS, EOS, ARROW, COLON, "+", "-", "*", "/", "(", ")"),
    *(str(number) for number in range(MAX_NUMBER + 1)),
)
TOKEN_IDS = {word: token_id for token_id, word in enumerate(WORDS)}
PAD_ID, BOS_ID, EOS_ID = TOKEN_IDS[PAD], TOKEN_IDS[BOS], TOKEN_IDS[EOS]
PROMPT_LENGTH = NUMBERS_PER_PROBLEM + 4
MAX_COMPLETION_LENGTH = 8
"""Tokens of the longest expression the task's generator writes, `a*(b + c)`, and its end."""


class VocabularyError(IsentropeError, ValueError):
    """A word, number or token id the vocabulary doesn't have."""


def encode_words(words: Sequence[str]) -> list[int]:
    """Token ids of `words`.

    Raises:
        VocabularyError: for a word the vocabulary doesn't have.
    """
    try:
        return [TOKEN_IDS[word] for word in words]
    except KeyError as missing:
        raise VocabularyError(
            f"The vocabulary has the numbers 0 to {MAX_NUMBER}, + - * / ( ) and its markers; got {missing.args[0]!r}."
        ) from None


def prompt_text(numbers: Sequence[int], target: int) -> str:
    """The problem "make `target` out of `numbers`" in the vocabulary's words.

    Raises:
        VocabularyError: for a wrong count of numbers.
    """
    if len(numbers) != NUMBERS_PER_PROBLEM:
        raise VocabularyError(f"A prompt holds {NUMBERS_PER_PROBLEM} numbers, got {len(numbers)}: {list(numbers)}.")
    return " ".join([*map(str, numbers), ARROW, str(target), COLON])


def encode_prompt(numbers: Sequence[int], target: int) -> list[int]:
    """`prompt_text` as PROMPT_LENGTH token ids.

    Raises:
        VocabularyError: for a wrong count of numbers, or a number outside the vocabulary.
    """
    return WordTokenizer().encode(prompt_text(numbers, target))


class WordTokenizer:
    """Between texts, whose words are apart by one space, and token ids."""

    pad_token_id = PAD_ID
    eos_token_id = EOS_ID

    def encode(self, text: str) -> list[int]:
        """The token ids of a prompt, after the marker that begins every text.

        Raises:
            VocabularyError: for a word the vocabulary doesn't have.
        """
        return encode_words([BOS, *text.split()])

    def decode(self, token_ids: Sequence[int]) -> str:
        """The words of any token ids, apart by one space."""
        return " ".join(WORDS[token_id] for token_id in token_ids)
