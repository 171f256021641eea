"""The server: receives reports over gRPC, stores them, answers REST, streams controls to probes.
Knows no torch.

- `app`: puts a server together, `create_app(settings)`; `serving`: its process; `commands`:
  `isentrope up`, `token`, `audit`
- `settings`, `home`, `ports`, `errors`: its configuration, folder, sockets and certificates, and
  what it reports when they fail
- `backend`: what routes and gRPC methods share; `housekeeping`: packing, removal and tokens, in the
    background
- `ingest`: gRPC to store; `control`: versions of controls; `live`: committed events to listeners;
  `api`: REST under /api/v1
- `store`: tables and queries, no web; `security`: tokens, and the checks before every route and
gRPC method"""
