"""What the server keeps. Plain SQLAlchemy, no web.

- `tables`: the schema; `migrations`: how a database gets there; `migrate`: does it at start
- `database`: engines and read-only connections; `writer`: the one thread that writes, with group commit
- `events`: what a transaction announces once it is committed
- `runs`, `streams`, `records`, `layouts`, `quarantine`: what comes in
- `timeline`: which report speaks for a step; `series`, `steps`, `histograms`, `what_if_sums`, `driving_tokens`, `alerts`: what is read back
- `compacting`, `blocks`, `packed_arrays`, `packed_reports`, `series_parts`: older reports packed, and read all the same
- `report_pieces`: all reports of a run, a piece at a time
- `removal`, `retention`, `space`: what is kept no longer, and its space
- `controls`, `audit`, `tokens`: what people did
"""
