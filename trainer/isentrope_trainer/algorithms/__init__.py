"""Reinforcement learning as pure tensor functions, and the models it needs beside the policy.

advantages        how much better each token did than expected; the table of names
losses            clipped surrogate, divergence from a reference, aggregation over tokens
adaptive_entropy  an entropy bonus whose coefficient follows the entropy, to compare a held entropy with
prime             the implicit process reward: a second language model, trained online by outcomes
prompt_filter     which prompts a batch is made of
"""
