"""Reinforcement learning as pure tensor functions.

grpo              group-normalised advantages and the on-policy policy-gradient loss
prompt_filter     which prompts a batch is made of: by pass rate, with dynamic sampling
adaptive_entropy  an entropy bonus whose coefficient follows the entropy, to compare a held entropy with
"""
