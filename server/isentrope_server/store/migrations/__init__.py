"""One file per step of the schema's history, in `versions`; run at every start by `store.migrate`."""
