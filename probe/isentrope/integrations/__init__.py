"""What connects the probe to other libraries. Nothing else in this package imports from here.

- `trl.py`: `attach` and `detach` for TRL's GRPOTrainer and RLOOTrainer; read it first. `trl_head.py`: our head inside
  TRL's forward; `trl_gate.py`: what TRL's loss is handed; `trl_weights.py`: what a token weighs in its gradient;
  `trl_rescoring.py`: a step's tokens after its update; `trl_support.py`: what is refused, and the self-check
- `transformers.py`: `IsentropeCallback`, scalars of any `transformers.Trainer`
"""
