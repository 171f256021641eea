"""RULES: what tells each known way in which a run does not learn, one pure function each.

A function reads the course of what the run measures, and answers what it found or None. It compares
the run with its own early level, its own noise and its own age; shares of groups, tokens and
completions are also judged as they are, for a half of them is a half in every run.

- `groups.py`: groups with one reward; `completions.py`: cut, long or repeated completions
- `held_out.py`: the reward against the held-out score; `rewards.py`: its parts, decline, plateau
- `divergence.py`: KL; `updates.py`: clip, gradient, NaN, value function, time
- `finding.py`: what a rule answers, and what several of them ask"""
