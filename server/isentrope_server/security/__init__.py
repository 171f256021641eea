"""Who may do what.

- `tokens`: scopes, and the book of tokens in force; `owner`: the first token
- `permissions`: which scope a request needs, deny by default
- `gate`: the one door in front of every HTTP route and WebSocket; `browsers`: what browsers need besides
- `request_limits`: how large a body may be

gRPC methods stand behind `ingest.listener.TokenInterceptor`, with the same book.
"""
