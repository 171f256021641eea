"""Completions of one prompt begin alike: every distinct beginning is read once, all of a prompt's in one sequence.

The completions of a group form a tree whose nodes are tokens, each read after its ancestors. The nodes of a prompt follow
it in one row of the batch; a position says how deep a node lies, and an attention mask lets it see the prompt, its
ancestors and itself. Logits and gradients are those of reading every completion by itself, for less than half the work.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor
from transformers import LlamaForCausalLM

from isentrope_trainer.models.sampling import positions
from isentrope_trainer.rollout import Rollouts


@dataclass(frozen=True, slots=True)
class PrefixTree:
    """The distinct beginnings of a batch of completions, [nodes] each; a node's parents come before it."""

    tokens: Tensor
    """int64: the last token of the beginning; of a prompt's first node, the prompt's own last token."""
    prompts: Tensor
    """int64: which prompt it continues."""
    ancestors: Tensor
    """int64 [nodes, depth + 1]: the nodes on the way to it and itself, filled up with itself."""
    depths: Tensor
    """int64: tokens of the completion up to here."""
    node_before_token: Tensor
    """int64 [rollouts, completion length]: the node after which this token was drawn; 0 where the mask is False."""

    def of_tokens(self, of_nodes: Tensor) -> Tensor:
        """What belongs to the nodes, [nodes, n], where tokens were drawn after them: [rollouts, completion length, n]."""
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
        ancestors.append(torch.cat([ancestors[-1][parents, :depth], own[:, None].expand(-1, length - depth)], dim=1))
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
    # Padding sees itself and what comes before it, and is seen by no node: no row of the mask is empty.
    visible = torch.ones(size, size, dtype=torch.bool, device=prompts.device).tril().repeat(len(prompts), 1, 1)
    visible[tree.prompts, places, read:] = False
    visible[tree.prompts[:, None], places[:, None], places[tree.ancestors]] = True
    # Padding before a prompt is seen by itself alone.
    visible[:, :, : read + 1] &= rollouts.prompt_mask[:, None, :]
    visible.diagonal(dim1=1, dim2=2).fill_(True)
    hidden = policy.model(input_ids=token_ids, position_ids=own_positions, attention_mask=visible[:, None])
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
