"""Links that download everything a run reported."""

from __future__ import annotations

from urllib.parse import quote

import dash_mantine_components as dmc
from dash import html

FORMATS = {"csv": "CSV", "jsonl": "JSONL", "parquet": "Parquet"}


def export_links(run_id: str, *, label: str = "Export") -> dmc.Group:
    """One link a format; the browser sends its own session with them."""
    path = f"/api/v1/runs/{quote(run_id, safe='')}/export?format="
    links = [
        html.A(name, href=path + word, className="run-link", **{"download": "", "aria-label": f"Export as {name}"})
        for word, name in FORMATS.items()
    ]
    title = [dmc.Text(label, size="xs", c="dimmed")] if label else []
    return dmc.Group([*title, *links], gap="xs", className="export-links", wrap="nowrap")
