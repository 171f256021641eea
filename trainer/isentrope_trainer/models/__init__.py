"""The policy: how it is built, and how it learns enough to be worth reinforcing.

policy      a causal language model with its tokenizer: sampled from and scored; how a group's
            completions are read together
local       any model of `transformers` in a folder, with its tokenizer
sampling    rollouts: completions drawn with the weights as they are or as they were, in the one
            shape that all trains on
warm_start  small models of one form and the tokenizer of the tasks' own words; supervised learning
            on demonstrations, cached in the home folder
"""
