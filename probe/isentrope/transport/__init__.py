"""How reports leave the training process: a bounded queue, a spool on disk, a side process that
ships it. No torch here.

Public are `Transport` and `InMemoryTransport`, for `Probe(transport=...)`, and `open_transport`,
which reports a run without a probe.

- `transport`: what a probe needs of a transport (the protocol), and the one that keeps messages in
    a list
- `spool`: what happens inside the training process: reports to disk, and the transport for a mode
- `spool_writer`: its queue and its thread; `spool_disk`: the disk under it and how it fails
- `spool_folder`: the files through which the training process and the shipper communicate
- `segments`: the file format of the spool; `spool_reader`: its records in order, with the gaps
- `shipper`: the side process, `python -m isentrope.transport.shipper DIR`; `spool` starts it
- `connection`: the gRPC calls that it makes
- `sync`: delivers spools that were left behind
- `files`: the lock of a process, and files written whole
"""

from isentrope.transport.spool import open_transport
from isentrope.transport.transport import InMemoryTransport, MakeMessage, ReadyMessage, Transport

__all__ = ["InMemoryTransport", "MakeMessage", "ReadyMessage", "Transport", "open_transport"]
