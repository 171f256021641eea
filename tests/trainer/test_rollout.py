import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedModel

from isentrope_trainer.models.policy import Policy, padded_reading, prefix_tree, tree_reading
from isentrope_trainer.models.sampling import Rollouts, StaleSampler, left_padded
from isentrope_trainer.models.warm_start import EOS_ID, PAD_ID, WordTokenizer, build_policy
from isentrope_trainer.settings import PolicyConfig
from isentrope_trainer.tasks.countdown import Countdown

PROMPTS = ["3 5 7 -> 26 :", "1 2 15 -> 14 :"]
UNEQUAL_PROMPTS = ["3 5 7 -> 26 :", "9 :", "1 2 -> 14 :"]
GROUP_SIZE = 64
TOKENIZER, LONGEST = WordTokenizer(Countdown.words), Countdown.longest_answer


def sampled(
    model: PreTrainedModel, prompts: list[str] = PROMPTS, temperature: float = 1.0
) -> Rollouts:
    """Rollouts of an untrained model: with 61 words, one token in 61 ends a completion."""
    policy, generator = Policy(model, TOKENIZER), torch.Generator().manual_seed(0)
    return policy.sample(
        prompts, GROUP_SIZE, generator, temperature=temperature, max_tokens=LONGEST
    )


@pytest.fixture
def model(tiny_policy_config: PolicyConfig) -> PreTrainedModel:
    return build_policy(tiny_policy_config, TOKENIZER, seed=1)


@pytest.fixture
def other_model() -> PreTrainedModel:
    """Of another architecture, with positions that are learned; no dropout."""
    config = GPT2Config(
        vocab_size=len(TOKENIZER.words),
        n_positions=32,
        n_embd=16,
        n_layer=1,
        n_head=2,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return GPT2LMHeadModel(config)


def test_the_mask_ends_with_the_end_marker_and_padding_follows(model: PreTrainedModel) -> None:
    rollouts = sampled(model)
    lengths = []
    for token_ids, mask in zip(rollouts.completions.tolist(), rollouts.mask.tolist(), strict=True):
        length = token_ids.index(EOS_ID) + 1 if EOS_ID in token_ids else len(token_ids)
        assert mask == [True] * length + [False] * (len(token_ids) - length)
        assert token_ids[length:] == [PAD_ID] * (len(token_ids) - length)
        lengths.append(length)
    assert min(lengths) < LONGEST == max(lengths)


def test_texts_end_before_the_end_marker_and_unended_ones_are_none(model: PreTrainedModel) -> None:
    rollouts = sampled(model)
    texts = Policy(model, TOKENIZER).texts(rollouts)
    for text, token_ids in zip(texts, rollouts.completions.tolist(), strict=True):
        words = [TOKENIZER.words[token_id] for token_id in token_ids]
        assert text == (" ".join(words[: words.index("<eos>")]) if "<eos>" in words else None)
    assert {text is None for text in texts} == {True, False}


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("prompts", [PROMPTS, UNEQUAL_PROMPTS])
@pytest.mark.parametrize("architecture", ["model", "other_model"])
def test_rescored_logprobs_are_those_the_tokens_were_drawn_with(
    architecture: str, prompts: list[str], temperature: float, request: pytest.FixtureRequest
) -> None:
    model = request.getfixturevalue(architecture)
    rollouts = sampled(model, prompts, temperature)
    logits = Policy(model, TOKENIZER).read(rollouts).logits
    rescored = torch.log_softmax(logits / temperature, dim=-1).gather(
        -1, rollouts.completions[..., None]
    )[..., 0]
    torch.testing.assert_close(
        rescored[rollouts.mask], rollouts.sampler_logprobs[rollouts.mask], atol=2e-5, rtol=0
    )


def test_padding_changes_nothing(model: PreTrainedModel) -> None:
    whole, alone = sampled(model, UNEQUAL_PROMPTS), sampled(model, UNEQUAL_PROMPTS[:1])
    # The first prompt's first tokens are drawn first from the generator, with or without others
    # after it.
    assert torch.equal(whole.completions[:GROUP_SIZE, 0], alone.completions[:, 0])
    padded = Policy(model, TOKENIZER).read(whole).logits[:GROUP_SIZE, 0]
    torch.testing.assert_close(
        padded, Policy(model, TOKENIZER).read(alone).logits[:, 0], atol=1e-5, rtol=1e-4
    )


@pytest.mark.parametrize("prompts", [PROMPTS, UNEQUAL_PROMPTS])
def test_reading_what_completions_share_once_changes_neither_logits_nor_gradients(
    tiny_policy_config: PolicyConfig, prompts: list[str]
) -> None:
    plain = build_policy(tiny_policy_config, TOKENIZER, seed=1)
    rollouts = sampled(plain, prompts)
    tree = prefix_tree(rollouts, len(TOKENIZER.words))
    beginnings = {
        (row // GROUP_SIZE, *token_ids[:length])
        for row, (token_ids, mask) in enumerate(
            zip(rollouts.completions.tolist(), rollouts.mask.tolist(), strict=True)
        )
        for length in range(sum(mask))
    }
    assert len(tree.tokens) == len(beginnings) < rollouts.mask.sum()
    reference = padded_reading(plain, rollouts).logits
    weights = (
        torch.linspace(-1, 1, reference.numel()).reshape(reference.shape) * rollouts.mask[..., None]
    )
    (reference * weights).sum().backward()
    policy = build_policy(tiny_policy_config, TOKENIZER, seed=1)
    logits = tree_reading(policy, rollouts).logits
    torch.testing.assert_close(
        logits[rollouts.mask], reference[rollouts.mask], atol=1e-5, rtol=1e-4
    )
    (logits * weights).sum().backward()
    for left, right in zip(policy.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(left.grad, right.grad, atol=1e-3, rtol=1e-3)


def test_prompts_are_padded_on_the_left() -> None:
    token_ids, mask = left_padded([[7, 8, 9], [5]], pad_id=0)
    assert token_ids.tolist() == [[7, 8, 9], [0, 0, 5]]
    assert mask.tolist() == [[True, True, True], [False, False, True]]


def test_rollouts_of_some_prompts_keep_their_groups_together(model: PreTrainedModel) -> None:
    rollouts = sampled(model, UNEQUAL_PROMPTS)
    part = rollouts.select_prompts(torch.tensor([2, 0]))
    assert torch.equal(part.prompts, rollouts.prompts[[2, 0]])
    assert torch.equal(part.prompt_mask, rollouts.prompt_mask[[2, 0]])
    rows = [*range(2 * GROUP_SIZE, 3 * GROUP_SIZE), *range(GROUP_SIZE)]
    for name in ("completions", "mask", "sampler_logprobs"):
        assert torch.equal(getattr(part, name), getattr(rollouts, name)[rows]), name


@pytest.mark.parametrize("architecture", ["model", "other_model"])
def test_hidden_states_are_those_that_the_head_makes_logits_of(
    architecture: str, request: pytest.FixtureRequest
) -> None:
    model = request.getfixturevalue(architecture)
    reading = Policy(model, TOKENIZER).read(sampled(model, UNEQUAL_PROMPTS), hidden=True)
    assert reading.hidden is not None
    torch.testing.assert_close(
        model.get_output_embeddings()(reading.hidden), reading.logits, atol=1e-5, rtol=1e-4
    )


def test_a_stale_sampler_follows_some_updates_behind(model: PreTrainedModel) -> None:
    sampler, seen = StaleSampler(model, lag=2), []
    bias = next(model.parameters())
    for update in range(4):
        seen.append(next(sampler.model.parameters())[0, 0].item())
        with torch.no_grad():
            bias.fill_(update + 1)
        sampler.follow(model)
    # Until there are weights of two updates ago the first ones serve.
    assert seen[0] == seen[1] == seen[2]
    assert seen[3] == 1.0
