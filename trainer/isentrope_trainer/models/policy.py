"""The policy: a causal language model with its tokenizer, behind the three calls that training
makes of it.

rollouts = policy.sample(prompts, group_size, generator, temperature=1.0, max_tokens=8)
texts = policy.texts(rollouts)
logprobs = policy.logprobs(rollouts)
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import torch
from torch import Tensor, nn
from transformers import LlamaForCausalLM, PreTrainedModel

from isentrope_trainer.models.sampling import Rollouts, left_padded, positions, sample_rollouts


@dataclass(frozen=True, slots=True)
class PrefixTree:
    """The distinct beginnings of a batch of completions, [nodes] each; a node's parents come before
    it. Every one is read once, all of a prompt's in one row behind it: a position says how deep a
    node lies, and an attention mask lets it see the prompt, its ancestors and itself. Logits and
    gradients are those of reading every completion by itself, for less than half the work."""

    tokens: Tensor
    """int64: the last token of the beginning; of a prompt's first node, the prompt's own last
    token."""
    prompts: Tensor
    """int64: which prompt it continues."""
    ancestors: Tensor
    """int64 [nodes, depth + 1]: the nodes on the way to it and itself, filled up with itself."""
    depths: Tensor
    """int64: tokens of the completion up to here."""
    node_before_token: Tensor
    """int64 [rollouts, completion length]: the node after which this token was drawn; 0 where the
    mask is False."""

    def select_tokens(self, of_nodes: Tensor) -> Tensor:
        """What belongs to the nodes, [nodes, n], where tokens were drawn after them: [rollouts,
        completion length, n]."""
        chosen = of_nodes.index_select(0, self.node_before_token.flatten())
        return chosen.reshape(*self.node_before_token.shape, -1)


# The same rollouts are read again to see what an update did.
@lru_cache(maxsize=2)
def prefix_tree(rollouts: Rollouts, vocabulary: int) -> PrefixTree:
    prompts, completions, mask = rollouts.prompts, rollouts.completions, rollouts.mask
    first_nodes = torch.arange(len(prompts), device=prompts.device)
    length = completions.shape[1]
    node_of_row = first_nodes.repeat_interleave(rollouts.group_size)
    tokens, owners = [prompts[:, -1]], [first_nodes]
    ancestors = [first_nodes[:, None].expand(-1, length)]
    nodes_before = [node_of_row]
    first, nodes = 0, len(prompts)
    for depth in range(1, length):
        unfinished = mask[:, depth]
        # A beginning is what its parent is, and one token more.
        beginnings = node_of_row[unfinished] * vocabulary + completions[unfinished, depth - 1]
        distinct, place = beginnings.unique(return_inverse=True)
        parents = distinct // vocabulary - first
        own = nodes + torch.arange(len(distinct), device=prompts.device)
        tokens.append(distinct % vocabulary)
        owners.append(owners[-1][parents])
        ancestors.append(
            torch.cat(
                [ancestors[-1][parents, :depth], own[:, None].expand(-1, length - depth)], dim=1
            )
        )
        node_of_row = torch.zeros_like(node_of_row).masked_scatter(unfinished, nodes + place)
        nodes_before.append(node_of_row)
        first, nodes = nodes, nodes + len(distinct)
    return PrefixTree(
        tokens=torch.cat(tokens),
        prompts=torch.cat(owners),
        ancestors=torch.cat(ancestors),
        depths=torch.cat([torch.full_like(level, depth) for depth, level in enumerate(tokens)]),
        node_before_token=torch.stack(nodes_before, dim=1),
    )


def tree_hidden(policy: LlamaForCausalLM, rollouts: Rollouts, tree: PrefixTree) -> Tensor:
    """The last hidden state at each node of the rollouts' tree, [nodes, width]."""
    prompts = rollouts.prompts
    read = prompts.shape[1] - 1
    places = read + _rank_within(tree.prompts, len(prompts))
    size = int(places.max()) + 1
    token_ids = prompts.new_zeros(len(prompts), size)
    token_ids[:, :read] = prompts[:, :-1]
    token_ids[tree.prompts, places] = tree.tokens
    own_positions = torch.arange(size, device=prompts.device).expand(len(prompts), size).clone()
    own_positions[:, : read + 1] = positions(rollouts.prompt_mask)
    own_positions[tree.prompts, places] = own_positions[tree.prompts, read] + tree.depths
    # Padding sees itself and what comes before it, and is seen by no node: no row of the mask is
    # empty.
    visible = (
        torch.ones(size, size, dtype=torch.bool, device=prompts.device)
        .tril()
        .repeat(len(prompts), 1, 1)
    )
    visible[tree.prompts, places, read:] = False
    visible[tree.prompts[:, None], places[:, None], places[tree.ancestors]] = True
    # Padding before a prompt is seen by itself alone.
    visible[:, :, : read + 1] &= rollouts.prompt_mask[:, None, :]
    visible.diagonal(dim1=1, dim2=2).fill_(True)
    hidden = policy.model(
        input_ids=token_ids, position_ids=own_positions, attention_mask=visible[:, None]
    )
    of_nodes: Tensor = hidden.last_hidden_state[tree.prompts, places]
    return of_nodes


def _rank_within(groups: Tensor, count: int) -> Tensor:
    """How many of the same group come before each."""
    sizes = groups.bincount(minlength=count)
    order = groups.argsort(stable=True)
    starts = sizes.cumsum(0) - sizes
    ranks = torch.empty_like(groups)
    ranks[order] = torch.arange(len(groups), device=groups.device) - starts[groups[order]]
    return ranks


class TextTokenizer(Protocol):
    """What a policy needs of its tokenizer; named as `transformers` names it."""

    pad_token_id: int

    @property
    def eos_token_ids(self) -> Collection[int]:
        """Each ends a completion."""

    def encode(self, text: str) -> list[int]: ...

    def decode(self, token_ids: Sequence[int]) -> str: ...


@dataclass(frozen=True, slots=True, eq=False)
class Reading:
    """What a model makes of completions; row t of both belongs to the place that token t was drawn
    at."""

    logits: Tensor
    """[rollouts, completion length, vocabulary]."""
    hidden: Tensor | None = None
    """[rollouts, completion length, width], the last hidden states, where they were asked for."""


class Policy:
    """A language model that is sampled from and scored."""

    def __init__(
        self, model: PreTrainedModel, tokenizer: TextTokenizer, *, shared_beginnings: bool = True
    ) -> None:
        """`shared_beginnings`: read what a prompt's completions share once, where the model's form
        allows it. Worth it for short completions of few words."""
        self.model = model
        self.tokenizer = tokenizer
        self._shared_beginnings = shared_beginnings

    def sample(
        self,
        prompts: Sequence[str],
        group_size: int,
        generator: torch.Generator,
        *,
        temperature: float = 1.0,
        max_tokens: int,
        model: PreTrainedModel | None = None,
    ) -> Rollouts:
        """Sample `group_size` completions for each prompt, at most `max_tokens` long with their end
        marker, with the policy's weights or the model's. The logits are divided by the temperature,
        with which scores must be taken, too. The generator is on the model's device."""
        model = self.model if model is None else model
        token_ids, mask = left_padded(
            [self.tokenizer.encode(prompt) for prompt in prompts], self.tokenizer.pad_token_id
        )
        return sample_rollouts(
            model,
            token_ids.to(model.device),
            mask.to(model.device),
            group_size,
            generator,
            temperature=temperature,
            max_tokens=max_tokens,
            pad_id=self.tokenizer.pad_token_id,
            eos_ids=self.tokenizer.eos_token_ids,
        )

    def texts(self, rollouts: Rollouts) -> list[str | None]:
        """The completions' texts without their end markers; None for one that the length limit
        ended."""
        texts: list[str | None] = []
        for token_ids, mask in zip(
            rollouts.completions.tolist(), rollouts.mask.tolist(), strict=True
        ):
            *content, last = token_ids[: sum(mask)]
            texts.append(
                self.tokenizer.decode(content) if last in self.tokenizer.eos_token_ids else None
            )
        return texts

    def read(
        self, rollouts: Rollouts, *, model: PreTrainedModel | None = None, hidden: bool = False
    ) -> Reading:
        """The distributions that the completions' tokens were drawn from, read with the policy's
        weights or those of a model such as a frozen reference."""
        model = self.model if model is None else model
        if self._shared_beginnings and isinstance(model, LlamaForCausalLM):
            return tree_reading(model, rollouts, hidden=hidden)
        return padded_reading(model, rollouts, hidden=hidden)

    def logprobs(
        self, rollouts: Rollouts, *, temperature: float = 1.0, model: PreTrainedModel | None = None
    ) -> Tensor:
        """Log-probs of the sampled tokens, differentiable, in nats: [rollouts, completion length];
        any number on padding. The logits are divided by the temperature."""
        logits = self.read(rollouts, model=model).logits.float() / temperature
        return torch.log_softmax(logits, dim=-1).gather(-1, rollouts.completions[..., None])[..., 0]


def tree_reading(model: LlamaForCausalLM, rollouts: Rollouts, *, hidden: bool = False) -> Reading:
    """As `Policy.read`, every distinct beginning of a prompt's completions read once."""
    tree = prefix_tree(rollouts, model.config.vocab_size)
    of_nodes = tree_hidden(model, rollouts, tree)
    logits = tree.select_tokens(model.lm_head(of_nodes))
    return Reading(logits, tree.select_tokens(of_nodes) if hidden else None)


def padded_reading(model: PreTrainedModel, rollouts: Rollouts, *, hidden: bool = False) -> Reading:
    """As `Policy.read`, each completion read by itself after its prompt: for any causal language
    model."""
    prompts, prompt_mask = (
        part.repeat_interleave(rollouts.group_size, dim=0)
        for part in (rollouts.prompts, rollouts.prompt_mask)
    )
    seen = torch.cat([prompt_mask, rollouts.mask], dim=1)
    kept = rollouts.completions.shape[1] + 1
    output = model(
        input_ids=torch.cat([prompts, rollouts.completions], dim=1),
        attention_mask=seen,
        position_ids=positions(seen),
        use_cache=False,
        logits_to_keep=kept,
        output_hidden_states=hidden,
    )
    # Offset by one: reading a token gives the distribution of the next, and nothing follows the
    # last.
    return Reading(output.logits[:, :-1], output.hidden_states[-1][:, -kept:-1] if hidden else None)


class ValueHead(nn.Linear):
    """Estimates the reward to come from the policy's last hidden states: [..., width] -> [...]. It
    begins at 0."""

    def __init__(self, width: int) -> None:
        super().__init__(width, 1)
        nn.init.zeros_(self.weight)
        nn.init.zeros_(self.bias)

    def forward(self, hidden: Tensor) -> Tensor:
        return super().forward(hidden).squeeze(-1)
