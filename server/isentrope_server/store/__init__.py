"""What the server stores. Plain SQLAlchemy, no web.

- `tables`: the schema; `migrations`: how a database gets it
- `database`: engines, locks, SQLite's file; `writer`: the one thread that writes, with group commit
- `runs`, `streams`, `reports`: what probes report, and which report is shown
- `controls`, `access`: control versions; tokens and the audit trail
- `removal`: deletion and retention of runs

In all of it `now` is the server's time in seconds since the epoch, `limit` the most to return, and
`before` or `after` the place of the last item on the previous page.
"""
