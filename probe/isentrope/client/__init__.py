"""The server's REST API from Python.

- `client`: every call, typed
- `connection`: the HTTP connection: the token, pages of a list, failures as exceptions
- `credentials`: which TLS certificates are trusted
"""
