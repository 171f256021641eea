"""Models in a folder: tiny ones of two architectures, with a tokenizer and a chat template of their
own."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import (
    GenerationConfig,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

import isentrope
from isentrope.transport.transport import InMemoryTransport
from isentrope_trainer import commands
from isentrope_trainer.loop import train
from isentrope_trainer.models.local import local_policy
from isentrope_trainer.settings import LocalModelConfig, TaskConfig, TrainingConfig
from isentrope_trainer.tasks.base import make_task
from isentrope_wire.errors import ConfigurationError
from isentrope_wire.reports import StepReport

WORDS = ["<pad>", "<eos>", "<turn>", "<user>", "<answer>", "</answer>", *map(str, range(58))]
SHAPE: dict[str, Any] = {
    "vocab_size": len(WORDS),
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "eos_token_id": 1,
}
TEMPLATE = (
    "{% for m in messages %}<user> {{ m.content }} <turn>{% endfor %}{% if add_generation_prompt %}"
    " <answer>{% endif %}"
)
TASK = TaskConfig(name="chain_sum", wording="question", max_tokens=12)


def save(folder: Path, architecture: str, chat_template: str | None = TEMPLATE) -> LocalModelConfig:
    torch.manual_seed(0)
    architectures: dict[str, Any] = {
        "llama": (LlamaForCausalLM, LlamaConfig),
        "gpt_neox": (GPTNeoXForCausalLM, GPTNeoXConfig),
    }
    of_model, of_config = architectures[architecture]
    model: PreTrainedModel = of_model(of_config(**SHAPE))
    # What a model's folder may ask of `generate`, and training must not follow.
    model.generation_config = GenerationConfig(
        eos_token_id=[1, 2], do_sample=True, top_k=2, temperature=0.1
    )
    model.save_pretrained(folder)
    words = Tokenizer(
        WordLevel({word: index for index, word in enumerate(WORDS)}, unk_token="<pad>")
    )
    words.pre_tokenizer = WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<eos>")
    tokenizer.chat_template = chat_template
    tokenizer.save_pretrained(folder)
    return LocalModelConfig(path=str(folder), device="cpu")


@pytest.fixture(params=["llama", "gpt_neox"])
def config(request: pytest.FixtureRequest, tmp_path: Path) -> LocalModelConfig:
    return save(tmp_path, request.param)


def test_a_local_model_trains_and_scores_what_it_samples(config: LocalModelConfig) -> None:
    policy, transport = local_policy(config), InMemoryTransport()
    training = TrainingConfig(steps=2, prompts=6, group_size=4, task=TASK, learning_rate=1e-3)
    with isentrope.Probe(name="local", transport=transport) as probe:
        train(policy, make_task(0, TASK), probe, training)
    reports = [message.scalars for message in transport.messages if isinstance(message, StepReport)]
    assert len(reports) == 2
    for scalars in reports:
        assert scalars["sampler/logprob_difference_max"] < 1e-4
        assert abs(scalars["score/self_check_z"]) < 4.5


def test_completions_end_at_each_end_marker_and_come_from_the_whole_vocabulary(
    config: LocalModelConfig,
) -> None:
    policy = local_policy(config)
    rollouts = policy.sample(["1 2", "3"], 200, torch.Generator().manual_seed(0), max_tokens=12)
    last = rollouts.completions.gather(1, rollouts.mask.sum(dim=1, keepdim=True) - 1)[:, 0]
    assert {1, 2} < set(last.tolist())
    assert len(rollouts.completions[rollouts.mask].unique()) == len(WORDS)
    for text, token_id in zip(policy.texts(rollouts), last.tolist(), strict=True):
        assert (text is None) == (token_id not in (1, 2))


def test_a_prompt_is_a_message_where_there_is_a_chat_template(tmp_path: Path) -> None:
    chat, plain = (
        save(tmp_path / name, "gpt_neox", template)
        for name, template in (("a", TEMPLATE), ("b", None))
    )
    assert local_policy(chat).tokenizer.encode("7 8") == [
        WORDS.index(w) for w in ["<user>", "7", "8", "<turn>", "<answer>"]
    ]
    assert local_policy(plain).tokenizer.encode("7 8") == [WORDS.index("7"), WORDS.index("8")]


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"path": "nowhere"}, "nowhere"),
        ({"device": "cuda:99"}, "cuda:99"),
        ({"dtype": "int8"}, "int8"),
        ({}, "{folder}"),
    ],
)
def test_what_can_not_be_loaded_is_refused(
    tmp_path: Path, settings: dict[str, Any], named: str
) -> None:
    with pytest.raises(ConfigurationError, match=named.format(folder=tmp_path)):
        local_policy(LocalModelConfig(**{"path": str(tmp_path), "device": "cpu", **settings}))


def test_the_command_trains_the_model_of_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ISENTROPE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("ISENTROPE_MODE", "offline")
    saved = save(tmp_path / "model", "llama")
    options = (
        "--device cpu --dtype bfloat16 --max-tokens 6 --task chain_sum --steps 1 --prompts 2"
        " --group-size 2 --json"
    )
    result = CliRunner().invoke(commands.train, ["--model", saved.path, *options.split()])
    assert result.exit_code == 0, result.output
    events = [json.loads(line) for line in result.stdout.splitlines() if line.startswith("{")]
    assert [event["event"] for event in events] == ["run", "step", "end"]
    assert events[0]["config"]["model"]["dtype"] == "bfloat16"
