"""Texts of a step's tokens: the top contributing ones by themselves, rollouts in running text. Made
off the training thread, from what `contributions.py` measured."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import groupby
from typing import Protocol, TypeVar

from isentrope.guard import Guard, LimitedWork, OutOfTime, SafeLog
from isentrope.statistics.contributions import WINDOW, Row, id_and_kept
from isentrope_wire.errors import ConfigurationError
from isentrope_wire.reports import DrivingToken, Rollout

logger = SafeLog(__name__)

_T = TypeVar("_T")

TEXTS_SECONDS = 0.5
"""The longest a report waits for its texts."""

TEXT_CHARACTERS = 40
"""Longest text of a token; 16 tokens then stay below 4 KiB in any script."""

ROLLOUT_TEXT_BYTES = 2048
"""Largest text of a rollout, some three times what most languages need; 6 rollouts then stay below
24 KiB."""

PROMPT_TEXT_BYTES = 1024
"""Largest text of a prompt: its end."""

LONGEST_TEXT_CHARACTERS = 1000
"""What is kept of a token's text at most: 16 384 texts are remembered."""

_TEXTS_REMEMBERED = 16_384
_LONGEST_CHARACTER = 4
"""Bytes, and so tokens."""
_NO_CHARACTER = "\ufffd"
"""What bytes that are no character are decoded to."""


class Tokenizer(Protocol):
    """The part of a tokenizer that is used."""

    def decode(self, token_ids: Sequence[int]) -> str: ...


Decode = Callable[[Sequence[int]], str]


class TokenTexts:
    """Text of token ids; None without a tokenizer, or where it fails."""

    def __init__(self, tokenizer: Tokenizer | Decode | None) -> None:
        """Of a tokenizer, or its function of ids -> text. None: no texts."""
        # A tokenizer of transformers is callable, too, but encodes.
        decode = getattr(tokenizer, "decode", tokenizer)
        if decode is not None and not callable(decode):
            raise ConfigurationError(
                "tokenizer must have decode([id]) -> str, or be such a function, got"
                f" {type(tokenizer).__name__}. Pass none to see ids only."
            )
        self._read: Decode | None = decode
        self._guard = Guard()
        self._work = LimitedWork("texts", TEXTS_SECONDS)
        self._has_cut = False
        self._alone = lru_cache(_TEXTS_REMEMBERED)(lambda token_id: self._decode([token_id]))
        self._behind = lru_cache(_TEXTS_REMEMBERED)(self._decode_behind_another)
        self._another: int | None = None

    @property
    def known(self) -> bool:
        """Whether there is a tokenizer, and it never failed."""
        return self._read is not None and not self._guard.failures

    def make(self, make: Callable[[], _T]) -> _T | None:
        """What `make` gives, which asks for texts; None where the tokenizer takes too long."""
        if not self.known:
            return make()
        return self._work.do(make)

    def __call__(self, token_id: int) -> str | None:
        """The text of one token by itself."""
        if not self.known:
            return None
        with self._guard.protect("naming tokens", passes=OutOfTime):
            return self._alone(token_id)
        return None

    def running(self, token_ids: Sequence[int]) -> list[str] | None:
        """The texts of tokens that follow each other, which join to the text of all.

        A token that ends inside a character has none: the next one has the whole character.
        """
        if not self.known:
            return None
        with self._guard.protect("naming tokens", passes=OutOfTime):
            alone = [*map(self._alone, token_ids)]
            # Of texts that are cut the tokens' own can't join to the whole.
            if any(self._fills_limit([0], text) for text in alone):
                return alone
            whole = self._decode(token_ids)
            if self._fills_limit(token_ids, whole):
                return alone
            for text in (self._alone, self._behind):
                texts = [*map(self._alone, token_ids[:1]), *map(text, token_ids[1:])]
                texts = self._complete_characters(token_ids, texts)
                if "".join(texts) == whole:
                    return texts
            return self._decode_in_context(token_ids)
        return None

    def _decode_behind_another(self, token_id: int) -> str:
        """What a token adds behind another, always the same one: some tokenizers drop the space
        that begins a text."""
        if self._another is None:
            self._another = token_id
        return self._decode([self._another, token_id])[len(self._alone(self._another)) :]

    def _complete_characters(self, token_ids: Sequence[int], texts: list[str]) -> list[str]:
        """Texts of tokens; neighbours that are parts of characters are decoded together."""
        complete: list[str] = []
        for is_part, run in groupby(
            zip(token_ids, texts, strict=True), lambda one: _NO_CHARACTER in one[1]
        ):
            ids, own = zip(*run, strict=True)
            if is_part:
                complete += self._decode_in_context(ids)
            else:
                complete += own
        return complete

    def _decode_in_context(self, token_ids: Sequence[int]) -> list[str]:
        """Each token as what it adds to the one before, for two decodings each."""
        texts: list[str] = []
        before, first, last = "", 0, 0
        for end in range(1, len(token_ids) + 1):
            text = self._decode(token_ids[first:end])
            if (
                text.endswith(_NO_CHARACTER)
                and end < len(token_ids)
                and end - last < _LONGEST_CHARACTER
            ):
                texts.append("")
                continue
            texts.append(text[len(before) :])
            first, last = last, end
            before = self._decode(token_ids[first:last])
        return texts

    def _decode(self, token_ids: Sequence[int]) -> str:
        assert self._read is not None
        self._work.check_time()
        text = self._read(token_ids)
        if not isinstance(text, str):
            raise TypeError(f"The tokenizer must return a str, got {type(text).__name__}.")
        limit = LONGEST_TEXT_CHARACTERS * len(token_ids)
        if len(text) > limit and not self._has_cut:
            self._has_cut = True
            logger.warning(
                "The tokenizer gave a text of %d characters for %d tokens: the text of a token is "
                "cut at %d. Further ones are cut without a word.",
                len(text),
                len(token_ids),
                LONGEST_TEXT_CHARACTERS,
            )
        return text[:limit]

    @staticmethod
    def _fills_limit(token_ids: Sequence[int], text: str) -> bool:
        return 0 < LONGEST_TEXT_CHARACTERS * len(token_ids) <= len(text)


def add_texts(
    tokens: Sequence[DrivingToken], scale: float, texts: TokenTexts
) -> tuple[DrivingToken, ...]:
    """Scale the contributions (`StepSums.scale`), and add the texts of the ids."""

    def text(token_id: int | None) -> str | None:
        if token_id is None:
            text_of_id = None
        else:
            text_of_id = texts(token_id)
        if text_of_id is None:
            return None
        return _cut(text_of_id)

    return tuple(
        replace(token, contribution=scale * token.contribution, text=text(token.token_id))
        for token in tokens
    )


def rollouts_of(
    rows: Sequence[Row],
    scale: float,
    texts: TokenTexts,
    reward_parts: Sequence[str] = (),
    influence: float | None = None,
) -> tuple[Rollout, ...]:
    """The rows in running text; without those whose texts are not known. `influence` scales the
    influences; None: without."""
    found = (_rollout(row, scale, texts, reward_parts, influence) for row in rows if texts.known)
    return tuple(rollout for rollout in found if rollout is not None)


def _prompt(row: Row, texts: TokenTexts) -> str | None:
    """What is kept of the prompt, with "… " in the place of its beginning."""
    ids = [int(number) - 1 for number in row.sample.prompt if number > 0]
    running = None
    if ids:
        running = texts.running(ids)
    if running is None:
        return None
    whole = "".join(running).encode(errors="replace")
    text = whole[-PROMPT_TEXT_BYTES:].decode(errors="ignore")
    if row.sample.prompt_tokens > len(ids) or len(whole) > PROMPT_TEXT_BYTES:
        return f"… {text}"
    return text


def _rollout(
    row: Row, scale: float, texts: TokenTexts, reward_parts: Sequence[str], influence: float | None
) -> Rollout | None:
    ids, kept = zip(*map(id_and_kept, row.codes), strict=True)
    counted = [place for place, state in enumerate(kept) if state is not None]
    begin, end = counted[0], counted[-1] + 1
    known = [place for place in range(begin, end) if ids[place] >= 0]
    running = texts.running([ids[place] for place in known])
    if running is None or not set(counted) <= set(known):
        return None
    cut = [""] * end
    for place, text in zip(known, running, strict=True):
        cut[place] = _cut(text)
    peak = row.largest.position - row.first
    size = sum(len(text.encode()) for text in cut)
    cut_before, cut_after = begin == 0 and row.first > 0, end == WINDOW and row.left > WINDOW
    while size > ROLLOUT_TEXT_BYTES:
        if peak - begin >= end - 1 - peak:
            size, begin, cut_before = size - len(cut[begin].encode()), begin + 1, True
        else:
            size, end, cut_after = size - len(cut[end - 1].encode()), end - 1, True

    def shown(numbers: Sequence[float], factor: float = 1.0) -> tuple[float | None, ...]:
        return tuple(
            None if state is None else factor * number
            for number, state in zip(numbers[begin:end], kept[begin:end], strict=True)
        )

    return Rollout(
        rank=row.rank,
        sequence=row.largest.sequence,
        first_position=row.first + begin,
        cut_before=cut_before,
        cut_after=cut_after,
        advantage=row.largest.advantage,
        reward=row.reward if math.isfinite(row.reward) else None,
        absolute_contribution=scale * row.absolute_effect,
        texts=tuple(cut[begin:end]),
        logprobs=shown(row.logprobs),
        vocab_centered_scores=shown(row.vocab_centered_scores),
        contributions=shown(row.effects, -scale),
        influences=() if influence is None else shown(row.influences, influence),
        kept=kept[begin:end],
        prompt=_prompt(row, texts),
        rewards={
            name.partition("/")[2]: part
            for name, part in zip(reward_parts, row.sample.parts, strict=False)
            if not math.isinf(part)
        },
        answer=bytes(map(int, row.sample.answer)).rstrip(b"\0").decode(errors="ignore") or None,
    )


def _cut(text: str) -> str:
    text = text[:TEXT_CHARACTERS]
    # Half a character can't be written to the spool.
    if text.isascii():
        return text
    return text.encode(errors="replace").decode()
