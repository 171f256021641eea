"""Reinforcement learning as pure tensor functions.

grpo              group-normalised advantages and the on-policy policy-gradient loss
adaptive_entropy  an entropy bonus whose coefficient follows the entropy, to compare a held entropy with
"""
