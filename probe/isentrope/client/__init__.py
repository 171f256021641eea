"""The server's REST API from Python.

- `client`: `Client`, every call typed and documented
- `calls`: the table of calls: address, what is sent, the answer's dataclass
- `connection`: sends calls: token, TLS, pages of a list, failures as `ApiError`; `AsyncClient`
- `inline`: a run as a picture in a notebook
- `credentials`: which TLS certificates are trusted
"""
