"""The heads people have: real models', tied, adapted, cast, sharded. Each is scored as the model
itself would."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed
from torch import Tensor, nn

from isentrope.scores import head_tiles, token_scores
from isentrope.scores.linear_heads import linear_head_parts
from isentrope.scores.linear_token_scores import linear_token_scores
from isentrope_wire.errors import InputError
from tests.probe.ranks.gang import one_after_another, run_ranks
from tests.probe.scores.exact_heads import FIELDS, Head, NewTensors

SIZES: dict[str, Any] = {
    "vocab_size": 300,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


@pytest.fixture(autouse=True)
def _small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(head_tiles.ROWS_AT_A_TIME, "cpu", 8)
    monkeypatch.setitem(head_tiles.FORWARD_BYTES, "cpu", 1)


def tiny_model(kind: str) -> Any:
    import transformers

    torch.manual_seed(0)
    if kind == "qwen2":
        return transformers.Qwen2ForCausalLM(
            transformers.Qwen2Config(**SIZES, tie_word_embeddings=False)
        )
    if kind == "qwen2 tied":
        return transformers.Qwen2ForCausalLM(
            transformers.Qwen2Config(**SIZES, tie_word_embeddings=True)
        )
    if kind == "gemma2":
        config = transformers.Gemma2Config(
            **SIZES, head_dim=8, final_logit_softcapping=2.0, query_pre_attn_scalar=8
        )
        return transformers.Gemma2ForCausalLM(config)
    if kind == "cohere":
        return transformers.CohereForCausalLM(transformers.CohereConfig(**SIZES, logit_scale=0.3))
    return transformers.GraniteForCausalLM(transformers.GraniteConfig(**SIZES, logits_scaling=4.0))


def spread_out(model: Any) -> Any:
    """Weights large enough for distributions that are not all but uniform."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(
                    0, 0.3, generator=torch.Generator().manual_seed(parameter.numel())
                )
    return model


def rule_of(model: Any) -> dict[str, Any]:
    scale = getattr(model.config, "logit_scale", None) or 1 / getattr(
        model.config, "logits_scaling", 1.0
    )
    softcap = getattr(model.config, "final_logit_softcapping", None)
    return {"scale": scale} | ({} if softcap is None else {"softcap": softcap})


def gradients(model: Any, logprobs: Tensor, entropies: Tensor) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(3)
    upstream = [torch.randn(logprobs.shape, generator=generator) for _ in range(2)]
    model.zero_grad()
    ((logprobs * upstream[0]).sum() + (entropies * upstream[1]).sum()).backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def assert_scores_as_the_model_does(
    model: Any, token_ids: Tensor, temperature: float = 0.8, seed: int = 0
) -> None:
    """Scores and all parameters' gradients, through `model(...).logits` and through hidden states
    and head."""
    torch.manual_seed(seed)
    logits = model(input_ids=token_ids, use_cache=False).logits[:, :-1]
    plain = token_scores(logits, token_ids[:, 1:], temperature, entropy_gradient=True)
    expected = gradients(model, plain.logprobs, plain.entropies)
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    torch.manual_seed(seed)
    hidden = inner.model(input_ids=token_ids, use_cache=False).last_hidden_state
    weight, bias = linear_head_parts(inner.get_output_embeddings())
    scores = linear_token_scores(
        hidden[:, :-1],
        weight,
        token_ids[:, 1:],
        bias,
        temperature,
        **rule_of(inner),
        entropy_gradient=True,
    )
    for field in FIELDS:
        torch.testing.assert_close(
            getattr(scores, field), getattr(plain, field), rtol=1e-5, atol=1e-5
        )
    got = gradients(model, scores.logprobs, scores.entropies)
    assert_gradients_equal(got, expected)


def assert_gradients_equal(got: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    """To float32's round-off, counted from each parameter's largest entry."""
    assert got.keys() == expected.keys()
    for name, gradient in got.items():
        largest = float(expected[name].abs().max())
        assert float((gradient - expected[name]).abs().max()) <= 1e-5 * largest + 1e-9, name


@pytest.mark.parametrize("kind", ["qwen2", "qwen2 tied", "gemma2", "cohere", "granite"])
def test_real_models_are_scored_as_through_their_logits(kind: str) -> None:
    token_ids = torch.randint(3, 300, (3, 11), generator=torch.Generator().manual_seed(5))
    assert_scores_as_the_model_does(spread_out(tiny_model(kind)), token_ids)


def adapted_model(
    kind: str = "qwen2", names: tuple[str, ...] = ("default",), **options: Any
) -> Any:
    import peft

    model = tiny_model(kind)
    if options.get("lora_bias"):
        model.lm_head = nn.Linear(16, 300)
    spread_out(model)
    options = {"r": 4, "lora_alpha": 6, "target_modules": ["lm_head", "q_proj"]} | options
    adapted = peft.get_peft_model(model, peft.LoraConfig(**options), adapter_name=names[0])
    for index, name in enumerate(names[1:]):
        adapted.add_adapter(name, peft.LoraConfig(**options | {"r": 3 + index}))
    adapted.base_model.set_adapter(list(names))
    generator = torch.Generator().manual_seed(9)
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_" in name:
                parameter.normal_(0, 0.3, generator=generator)
    return adapted


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"lora_bias": True},
        {"use_rslora": True},
        {"lora_dropout": 0.5},
        {"names": ("one", "two")},
    ],
    ids=str,
)
def test_adapted_heads_train_their_adapters_as_the_model_does(options: dict[str, Any]) -> None:
    token_ids = torch.randint(3, 300, (3, 11), generator=torch.Generator().manual_seed(5))
    if options.get("lora_bias"):
        options = options | {"target_modules": ["lm_head"]}
    model = adapted_model(**options)
    if "lora_dropout" in options:
        model.eval()
    assert_scores_as_the_model_does(model, token_ids)
    names = [
        name for name, p in model.named_parameters() if p.grad is not None and "lm_head" in name
    ]
    assert any("lora_A" in name for name in names)
    assert any("lora_B" in name for name in names)
    assert not any("base_layer" in name for name in names)


def test_dropout_of_an_adapter_is_that_of_the_heads_own_forward() -> None:
    head = adapted_model(lora_dropout=0.5).get_base_model().lm_head.train()
    hidden, token_ids = torch.randn(20, 16), torch.arange(20)
    torch.manual_seed(4)
    plain = token_scores(head(hidden), token_ids)
    torch.manual_seed(4)
    scores = linear_token_scores(hidden, *weight_ids_bias(head, token_ids))
    torch.testing.assert_close(scores.logprobs, plain.logprobs, rtol=1e-5, atol=1e-5)
    torch.manual_seed(5)
    other = linear_token_scores(hidden, *weight_ids_bias(head, token_ids))
    assert not torch.allclose(other.logprobs, plain.logprobs, atol=1e-2)


def weight_ids_bias(head: Any, token_ids: Tensor) -> tuple[Any, Tensor, Any]:
    weight, bias = linear_head_parts(head)
    return weight, token_ids, bias


def test_merged_and_disabled_adapters_leave_the_weight_alone() -> None:
    model = adapted_model()
    head = model.get_base_model().lm_head
    assert_head_scores_alike(head)
    with model.disable_adapter():
        assert linear_head_parts(head)[0] is head.base_layer.weight
        assert_head_scores_alike(head)
    model.merge_adapter()
    assert linear_head_parts(head)[0] is head.base_layer.weight
    assert_head_scores_alike(head)
    with model.disable_adapter(), pytest.raises(InputError, match="'default'"):
        linear_head_parts(head)


def assert_head_scores_alike(head: Any) -> None:
    hidden, token_ids = torch.randn(20, 16), torch.arange(20)
    plain = token_scores(head(hidden), token_ids)
    scores = linear_token_scores(hidden, *weight_ids_bias(head, token_ids))
    for field in FIELDS:
        torch.testing.assert_close(
            getattr(scores, field), getattr(plain, field), rtol=1e-5, atol=1e-5
        )


def test_float32_adapters_of_a_bfloat16_head_are_not_rounded() -> None:
    head = adapted_model().get_base_model().lm_head
    head.base_layer.bfloat16()
    hidden, token_ids = torch.randn(20, 16).bfloat16(), torch.arange(20)
    adapter = head.lora_B["default"].weight @ head.lora_A["default"].weight * 1.5
    base = nn.functional.linear(hidden, head.base_layer.weight)
    expected = token_scores(base.double() + hidden.double() @ adapter.double().T, token_ids)
    scores = linear_token_scores(hidden, *weight_ids_bias(head, token_ids))
    torch.testing.assert_close(scores.logprobs.double(), expected.logprobs, rtol=1e-6, atol=5e-6)
    scores.logprobs.sum().backward()
    assert head.lora_B["default"].weight.grad.dtype == torch.float32


def test_a_head_trained_whole_beside_adapters_is_its_copy() -> None:
    token_ids = torch.randint(3, 300, (3, 11), generator=torch.Generator().manual_seed(5))
    model = adapted_model(target_modules=["q_proj"], modules_to_save=["lm_head"])
    wrapper = model.get_base_model().lm_head
    with torch.no_grad():
        wrapper.modules_to_save["default"].weight.mul_(1.1)
    assert_scores_as_the_model_does(model, token_ids)
    assert wrapper.modules_to_save["default"].weight.grad is not None
    with model.disable_adapter():
        assert linear_head_parts(wrapper)[0] is wrapper.original_module.weight


def test_heads_that_are_not_a_weight_and_its_adapters_are_refused() -> None:
    class Normalised(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:
            return nn.functional.linear(input, nn.functional.normalize(self.weight))

    for head, message in (
        (Normalised(3, 5), "Normalised"),
        (nn.Sequential(nn.Linear(3, 5)), "Sequential"),
        (adapted_model(use_dora=True).get_base_model().lm_head, "'default'.*DoRA"),
    ):
        with pytest.raises(InputError, match=message):
            linear_head_parts(head)


def test_no_weight_of_the_heads_size_is_made_for_an_adapter() -> None:
    head = adapted_model().get_base_model().lm_head
    with NewTensors() as made:  # type: ignore[no-untyped-call]
        linear_token_scores(
            torch.randn(8, 16), *weight_ids_bias(head, torch.arange(8))
        ).logprobs.sum().backward()
    assert 0 < made.largest < head.weight.nbytes / 2
    assert head.lora_A["default"].weight.grad is not None


def sharded_head(rank: int, zero_rows_on: int | None, by_tiles: bool) -> list[Tensor]:
    """Log-probs and gradients of one rank's tokens through a head that FSDP shards: by its own
    forward, or by our tiles."""
    from torch.distributed.fsdp import fully_shard

    own = Head.random((10,), 131)
    rows = slice(0, 0) if rank == zero_rows_on else slice(0, 4) if rank == 0 else slice(4, 10)
    head, hidden, token_ids = (
        nn.Linear(24, 131),
        own.hidden[rows].clone().requires_grad_(),
        own.token_ids[rows],
    )
    head.load_state_dict({"weight": own.weight, "bias": own.bias})
    fully_shard(head)
    if by_tiles:
        logprobs = linear_token_scores(hidden, *weight_ids_bias(head, token_ids)).logprobs
    else:
        logprobs = token_scores(head(hidden), token_ids).logprobs
    logprobs.sum().backward()
    parameters: Any = [head.weight.grad, head.bias.grad]
    assert hidden.grad is not None
    return [logprobs.detach(), hidden.grad, *(gradient.full_tensor() for gradient in parameters)]


def test_a_sharded_head_is_gathered_and_gets_the_mean_gradient_as_fsdp_would_give_it() -> None:
    calls = [(zero_rows_on, by_tiles) for zero_rows_on in (None, 1) for by_tiles in (True, False)]
    for ours, theirs, *without_tokens in run_ranks(2, one_after_another, sharded_head, calls):
        assert theirs[2].abs().max() > 1e-3
        for found, expected in ((ours, theirs), without_tokens):
            torch.testing.assert_close(found, expected, rtol=1e-5, atol=5e-6)
