import pytest
import torch

from isentrope_trainer.models.policy import PolicyConfig, build_policy, completion_logits
from isentrope_trainer.models.prefix_tree import prefix_tree, tree_logits
from isentrope_trainer.rollout import Rollouts, sample_rollouts
from isentrope_trainer.tasks.vocabulary import EOS_ID, MAX_COMPLETION_LENGTH, PAD_ID, encode_prompt

PROMPTS = torch.tensor([encode_prompt([3, 5, 7], 26), encode_prompt([1, 2, 15], 14)])
GROUP_SIZE = 64


def sampled(config: PolicyConfig, temperature: float = 1.0) -> Rollouts:
    """Rollouts of an untrained policy: with 61 words, one token in 61 ends a completion."""
    generator = torch.Generator().manual_seed(0)
    return sample_rollouts(build_policy(config, seed=1), PROMPTS, GROUP_SIZE, generator, temperature)


def test_the_mask_ends_with_the_end_marker_and_padding_follows(tiny_policy_config: PolicyConfig) -> None:
    rollouts = sampled(tiny_policy_config)
    lengths = []
    for token_ids, mask in zip(rollouts.completions.tolist(), rollouts.mask.tolist(), strict=True):
        length = token_ids.index(EOS_ID) + 1 if EOS_ID in token_ids else len(token_ids)
        assert mask == [True] * length + [False] * (len(token_ids) - length)
        assert token_ids[length:] == [PAD_ID] * (len(token_ids) - length)
        lengths.append(length)
    assert min(lengths) < MAX_COMPLETION_LENGTH == max(lengths)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_rescored_logprobs_are_those_the_tokens_were_drawn_with(
    tiny_policy_config: PolicyConfig, temperature: float
) -> None:
    rollouts = sampled(tiny_policy_config, temperature)
    logits = completion_logits(build_policy(tiny_policy_config, seed=1), rollouts.prompts, rollouts.completions)
    rescored = torch.log_softmax(logits / temperature, dim=-1).gather(-1, rollouts.completions[..., None])[..., 0]
    torch.testing.assert_close(rescored[rollouts.mask], rollouts.sampler_logprobs[rollouts.mask], atol=2e-5, rtol=0)


def test_reading_what_completions_share_once_changes_neither_logits_nor_gradients(
    tiny_policy_config: PolicyConfig,
) -> None:
    rollouts = sampled(tiny_policy_config)
    whole = torch.cat([rollouts.prompts.repeat_interleave(GROUP_SIZE, dim=0), rollouts.completions], dim=1)
    tree = prefix_tree(rollouts.prompts, rollouts.completions, rollouts.mask)
    beginnings = {
        tuple(row[: PROMPTS.shape[1] + length])
        for row, mask in zip(whole.tolist(), rollouts.mask.tolist(), strict=True)
        for length in range(sum(mask))
    }
    assert len(tree.tokens) == len(beginnings) < rollouts.mask.sum()
    plain = build_policy(tiny_policy_config, seed=1)
    # Position i of a plain forward pass holds the distribution of token i + 1.
    reference = plain(input_ids=whole).logits[:, PROMPTS.shape[1] - 1 : -1]
    weights = torch.linspace(-1, 1, reference.numel()).reshape(reference.shape) * rollouts.mask[..., None]
    (reference * weights).sum().backward()
    for shared in (True, False):
        policy = build_policy(tiny_policy_config, seed=1)
        if shared:
            logits = tree_logits(policy, rollouts.prompts, tree)
        else:
            logits = completion_logits(policy, rollouts.prompts, rollouts.completions)
        torch.testing.assert_close(logits[rollouts.mask], reference[rollouts.mask], atol=1e-5, rtol=1e-4)
        (logits * weights).sum().backward()
        for left, right in zip(policy.parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(left.grad, right.grad, atol=1e-3, rtol=1e-3)


def test_the_same_generator_seed_draws_the_same_tokens(tiny_policy_config: PolicyConfig) -> None:
    assert torch.equal(sampled(tiny_policy_config).completions, sampled(tiny_policy_config).completions)
