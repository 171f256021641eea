"""Who may do what.

- `tokens`: scopes, and the book of tokens in force; `owner`: the first token; `token_names`: what others are called
- `permissions`: which scope a request needs, deny by default
- `gate`: the one door in front of every HTTP route and WebSocket; `browsers`: what browsers need besides;
  `sessions`: what their cookies hold
- `grpc_gate`: the same in front of every gRPC method
- `refusals`: who was not let in, counted and logged
- `open_streams`: what ends when a token is revoked; `bookkeeping`: what other servers revoked, and when tokens were used
- `transport_security`: TLS, and where a server without it may listen; `certificates`: its files; `certificate_renewal`:
  new ones count without a restart
- `request_limits`: how large a body may be
"""
