"""The policy: how it is built, and how it learns enough to be worth reinforcing.

policy      a small causal language model of the `transformers` library
warm_start  supervised learning on demonstrations, cached in the home folder
"""
