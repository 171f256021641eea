"""What probes send: gRPC, then domain message, then store.

- `servicer`: the gRPC methods and their port
- `opening`: Hello, and which incarnation is the newest; `intake`: Push; each in one transaction of
    the store's writer
- `limits`: one table of what a client may send
"""
