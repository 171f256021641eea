"""Figures of arXiv 2505.22617, The Entropy Mechanism of Reinforcement Learning."""
