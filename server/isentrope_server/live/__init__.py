"""Fan-out of committed events to listeners: live streams and Watch.

- `hub`: one bounded queue per listener
- `notifications`: events between servers that share a PostgreSQL
"""
