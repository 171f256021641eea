"""The policy: how it is built, and how it learns enough to be worth reinforcing.

policy       a small causal language model of the `transformers` library
prefix_tree  how a group's completions are read together
warm_start   supervised learning on demonstrations, cached in the home folder
"""
