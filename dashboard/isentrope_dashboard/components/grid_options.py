"""What all grids share: a theme of CSS variables (the packaged ones are links to the outside) and plain text cells."""

from __future__ import annotations

from typing import Any

OPTIONS: dict[str, Any] = {
    "theme": {"function": "themeQuartz.withParams(isentropeGridTheme)"},
    "rowHeight": 36,
    "headerHeight": 36,
    "animateRows": False,
    "domLayout": "autoHeight",
    "enableCellTextSelection": True,
}
COLUMN: dict[str, Any] = {"sortable": True, "resizable": True}
NUMERIC: dict[str, Any] = {"type": "rightAligned", "cellClass": "num ag-right-aligned-cell"}
COUNT: dict[str, Any] = {**NUMERIC, "valueFormatter": {"function": "isentropeCount(params.value)"}}
