"""Fan-out of committed events to whoever listens: SSE, Watch.

- `hub`: one bounded queue per listener; a slow one loses the oldest, never slows the writer
- `notifications`: between servers that share a PostgreSQL; `news`: what is said there
- `own_events`: what this server committed, until the news of it arrives
"""
