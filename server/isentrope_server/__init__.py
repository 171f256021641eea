"""The server: takes in reports over gRPC, keeps them, answers REST, streams controls to probes. Knows no torch.

- `app`: the composition root, `create_app(settings)`; `serving`: the process around it; `commands`: `isentrope up`, `token`
- `settings`, `errors`, `home`, `ports`: what it is told, what it says when that can't work, the folder it owns, its ports
- `ingest`: gRPC servicer -> domain message -> store
- `store`: tables, one file per noun, migrations; no web here
- `housekeeping`: packing, removing and giving space back in the background; `setbacks`: what fails there is tried rarely;
  `export_formats`: Parquet, CSV, JSON lines
- `control`: deciding, recording and streaming controls
- `performance_law`: the fit of reward against entropy
- `live`: fan-out of committed events to listeners
- `security`: tokens, and the one gate in front of every route
- `api`: one router per noun under /api/v1
"""
