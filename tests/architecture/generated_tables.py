"""Tables of the guides that are made from the wire's rows: `python -m tests.architecture.generated_tables` writes them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from isentrope_wire.metrics import HISTOGRAMS, METRICS, Metric

DOCS = Path(__file__).parents[2] / "docs"


def escaped(text: str) -> str:
    return text.replace("*", r"\*")


def metrics_page() -> str:
    def table(rows: list[Metric]) -> list[str]:
        body = [f"| `{row}` | {row.unit} | {escaped(row.meaning)} |" for row in rows]
        return ["| metric | unit | meaning |", "|---|---|---|", *body, ""]

    return "\n".join(
        [
            "# Metrics",
            "",
            "Every metric that Isentrope reports by itself. Entropies and scores are in nats. What was not measured is absent,",
            "never 0. Whatever else a loop logs keeps its own name.",
            "",
            "## Reported by every probe",
            "",
            *table([row for row in METRICS.values() if row.promised]),
            "## Reported where they apply",
            "",
            *table([row for row in METRICS.values() if not row.promised]),
            "## Histograms",
            "",
            *table(list(HISTOGRAMS.values())),
        ]
    )


PAGES: dict[str, Callable[[], str]] = {"metrics.md": metrics_page}


def main() -> None:
    for name, page in PAGES.items():
        (DOCS / name).write_text(page())


if __name__ == "__main__":
    main()
