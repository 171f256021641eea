"""The control plane: what a run should do from now on, who said so, and what became of it.

- `requesting`: a person or a controller asks for a new version
- `standing`: what a probe that asks now is told; handing it out is recorded before it is sent
- `outcomes`: what probes say became of a version; each version ends in exactly one state
- `beginning`: a version that nobody pushed: each life of a run brings its own
- `expiry`: versions nobody answered in time
- `view`: a version as users read it
"""
