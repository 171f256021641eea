"""Figures of arXiv 2602.03392, On the Entropy Dynamics in Reinforcement Fine-Tuning."""
