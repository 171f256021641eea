"""Reinforcement learning as pure tensor functions.

grpo  group-normalised advantages and the on-policy policy-gradient loss
"""
