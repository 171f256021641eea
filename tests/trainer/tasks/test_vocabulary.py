import pytest

from isentrope_trainer.tasks.vocabulary import (
    EOS_ID,
    PROMPT_LENGTH,
    WORDS,
    VocabularyError,
    WordTokenizer,
    encode_prompt,
    encode_words,
)


def test_an_expression_survives_encoding_and_decoding() -> None:
    words = ["15", "*", "(", "0", "-", "49", ")"]
    assert WordTokenizer().decode(encode_words(words)) == "15 * ( 0 - 49 )"


def test_a_tokenizer_names_any_tokens() -> None:
    assert WordTokenizer().decode([EOS_ID]) == "<eos>"
    assert WordTokenizer().decode(encode_words(["3", "*"])) == "3 *"


def test_a_prompt_names_the_numbers_and_then_the_target() -> None:
    token_ids = encode_prompt([3, 5, 7], 26)
    assert [WORDS[token_id] for token_id in token_ids] == ["<bos>", "3", "5", "7", "->", "26", ":"]
    assert len(token_ids) == PROMPT_LENGTH


def test_a_number_outside_the_vocabulary_is_refused() -> None:
    with pytest.raises(VocabularyError, match="'50'"):
        encode_prompt([3, 5, 7], 50)


def test_a_wrong_count_of_numbers_is_refused() -> None:
    with pytest.raises(VocabularyError, match=r"3 .*2"):
        encode_prompt([3, 5], 8)
