import pytest

from isentrope_trainer.tasks.vocabulary import BOS_ID, EOS_ID, VocabularyError, WordTokenizer

TOKENIZER = WordTokenizer(["+", "*", "(", ")", "15", "49"])


def test_a_text_survives_encoding_and_decoding() -> None:
    text = "15 * ( 49 + 15 )"
    assert TOKENIZER.decode(TOKENIZER.encode_words(text)) == text


def test_a_prompt_begins_and_an_answer_ends_with_its_marker() -> None:
    assert TOKENIZER.encode("15") == [BOS_ID, *TOKENIZER.encode_words("15")]
    assert TOKENIZER.encode_answer("15") == [*TOKENIZER.encode_words("15"), EOS_ID]
    assert TOKENIZER.decode([BOS_ID, EOS_ID]) == "<bos> <eos>"


def test_an_unknown_word_is_named() -> None:
    with pytest.raises(VocabularyError, match="'50'"):
        TOKENIZER.encode("15 + 50")
