"""Fan-out of committed events to whoever listens in this process: SSE, Watch.

- `hub`: one bounded queue per listener; a slow one loses the oldest, never slows the writer
"""
