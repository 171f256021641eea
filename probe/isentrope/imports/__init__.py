"""Runs that other tools recorded, as reports of a run: `isentrope import FILE`.

- `history`: a TRL log history or a W&B history, as CSV, JSON lines or `trainer_state.json`
- `prime_rl`: prime-rl's token export, summed up by step
- `delivery`: sends them to the server as a probe does, and `ImportRefused`
"""
