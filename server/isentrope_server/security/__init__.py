"""Who may do what.

- `tokens`: scopes, names, and the active tokens; the owner's token
- `permissions`: which scope a request needs, deny by default; refusals, counted and logged
- `gate`: checks every HTTP request and the size of bodies; `grpc_gate`: checks every gRPC call
- `sessions`: the signed cookie of browsers, and protection from other sites' pages
"""
