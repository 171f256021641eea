"""What the policy is asked to do, and how an answer is judged. Problems and verifiers are those of
`reasoning-gym`.

base        problems in two splits, rewards, and what each task has to add
countdown   an expression that reaches a target; the default
chain_sum   sums of up to eight digits, by a chain of totals
jugs        water jugs, by a chain of moves; the longest answers
questions   several kinds in plain English, for `isentrope demo --llm`; no `Task`, because TRL
            asks for rewards alone
"""
