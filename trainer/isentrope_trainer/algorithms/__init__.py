"""Reinforcement learning as pure tensor functions, and the models it needs beside the policy.

advantages        how much better each token did than expected; the table of names
losses            clipped surrogate, divergence from a reference, aggregation over tokens, an entropy bonus that follows the entropy
prime             the implicit process reward: a second language model, trained online by outcomes
"""
