"""Reinforcement learning as pure tensor functions.

advantages        how much better each token did than expected; the table of names
losses            clipped surrogate, divergence from a reference, aggregation over tokens, an
                  entropy bonus that follows the entropy
"""
