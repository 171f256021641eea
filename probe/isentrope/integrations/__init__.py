"""What connects the probe to other libraries. Nothing else in this package imports from here.

- `trl.py`: `attach` and `detach` for TRL's GRPOTrainer and RLOOTrainer; read it first. `trl_head.py`: our head inside
  TRL's forward; `trl_loss.py`: what TRL's loss is handed, and a step's tokens after its update; `trl_support.py`: what
  is refused, and the self-check
- `verl.py`: `attach(engine)` for verl's FSDP engines; `verl_plugin.py`: what `import verl` loads
- `openrlhf.py`: the command that puts a probe into OpenRLHF's actor, and `attach(trainer)` for its trainer
- `slime.py`: the loss and the hook that slime's flags name; `prime_rl.py`: the loss that prime-rl's configuration names
- `deepspeed.py`: `step(engine, probe)` for a loop of one's own around a DeepSpeed engine
- `transformers.py`: `IsentropeCallback`, scalars of any `transformers.Trainer`
- `attachment.py`: what adapters to other frameworks are made of; it needs none of their libraries
- `reporting.py`: what both share: a report per optimiser step, the probe's state in a checkpoint
"""
