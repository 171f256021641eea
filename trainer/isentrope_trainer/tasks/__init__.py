"""What the policy is asked to do, and how an answer is judged.

countdown       problems and verifier of the `reasoning-gym` package
vocabulary      the small tokenizer of the countdown task
demonstrations  solutions and near-solutions for the supervised warm start
"""
