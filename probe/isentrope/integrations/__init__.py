"""What connects the probe to other libraries. Nothing else in this package imports from here.

- `trl.py`: `attach` and `detach` for TRL's GRPOTrainer and RLOOTrainer, and what is refused; read
  it first. `trl_head.py`: our head inside TRL's forward, and the self-check, and what TRL's loss is
  handed
- `verl.py`: `attach(engine)` for verl's FSDP engines; `verl_plugin.py`: what `import verl` loads
- `openrlhf.py`: the command that puts a probe into OpenRLHF's actor, and `attach(trainer)` for its
    trainer
- `slime.py`: the loss and the hook that slime's flags name; `prime_rl.py`: the loss that prime-rl's
    configuration names
- `deepspeed.py`: `engine_step(engine, probe)` for a loop of one's own around a DeepSpeed engine
- `transformers.py`: `IsentropeCallback`, scalars of any `transformers.Trainer`; a report per
    optimiser step, which `trl.py` uses
- `attachment.py`: what adapters to other frameworks are made of, and the probe's state in a
  checkpoint; it needs none of their libraries
"""
