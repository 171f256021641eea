"""What other tools wrote down, as reports of a run: `isentrope import FILE`.

- `history`: a TRL log history or a W&B history, as CSV, JSON lines or `trainer_state.json`
- `prime_rl`: prime-rl's token export, summed up by step
- `delivery`: to the server, as a probe would report it; `errors`: what is refused
"""
