"""Who may do what.

- `tokens`: the active tokens and their names; the owner's token
- `permissions`: which scope a request needs, deny by default
- `gate`: checks every HTTP request, the size of its body, and every gRPC call
- `sessions`: the signed cookie of browsers, and protection from other sites' pages
"""
