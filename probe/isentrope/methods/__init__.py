"""Which tokens' gradients take part, and with what weight.

- `gradient_factors`: the one door to every method, and how a factor reaches the gradient; `gated_tokens`: what a method
  is given and gives back
- `clip_b`, `clip_v`, `clip_cov`, `kl_cov`, `score_sign`, `top_entropy`, `unlikely`, `ratio_clip`: one method a file, the
  paper's equation in its docstring. Their parts: `threshold_clip`, `covariance_scores`, `top_share`, `token_draw`
- `scope`: on which tokens a method acts
- `selection_basis`: what is counted from which tokens; `threshold_source`, `threshold_statistics`: the sigmas
- `dead_knobs`: what can't act in the present set-up, and why
"""
