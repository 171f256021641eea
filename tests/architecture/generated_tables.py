"""Tables made from the wire's rows: `python -m tests.architecture.generated_tables` writes them
into the guides."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from isentrope_wire.diagnosis.measures import READ
from isentrope_wire.methods import METHODS, Method
from isentrope_wire.metrics import HISTOGRAMS, METRICS, Metric

ROOT = Path(__file__).parents[2]


def metrics_page(_: str) -> str:
    def table(rows: Iterable[Metric]) -> list[str]:
        body = [f"| `{row}` | {row.unit} | {escaped(row.meaning)} |" for row in rows]
        return ["| metric | unit | meaning |", "|---|---|---|", *body, ""]

    return "\n".join(
        [
            "# Metrics",
            "",
            (
                "Every metric that Isentrope reports by itself. Entropies and scores are in nats."
                " What was not measured is absent,"
            ),
            "never zero. Other metrics of a loop keep their own names.",
            "",
            "## Reported by every probe",
            "",
            *table(row for row in METRICS.values() if row.promised),
            "## Reported where they apply",
            "",
            *table(row for row in METRICS.values() if not row.promised),
            "## Histograms",
            "",
            *table(HISTOGRAMS.values()),
        ]
    )


def with_methods_table(guide: str) -> str:
    """The guide with the table between its two marks generated again."""
    begin, end = "<!-- methods: begin -->\n", "<!-- methods: end -->\n"
    body = [
        f"| `{row}` | {escaped(row.does)} | {row.source.removeprefix('arXiv:')} |"
        for row in METHODS.values()
        if row != Method.NONE
    ]
    table = ["| method | what it does to a token's gradient | source |", "|---|---|---|", *body, ""]
    before, rest = guide.split(begin)
    return before + begin + "\n".join(table) + end + rest.split(end)[1]


def with_names_table(guide: str) -> str:
    """The guide with the names of each quantity that the checks read, between its two marks."""
    begin, end = "<!-- names: begin -->\n", "<!-- names: end -->\n"
    body = [
        f"| `{row}` | {', '.join(f'`{name}`' for name in row.also)} |" for row in READ if row.also
    ]
    table = ["| quantity | other names that are read |", "|---|---|", *body, ""]
    before, rest = guide.split(begin)
    return before + begin + "\n".join(table) + end + rest.split(end)[1]


def escaped(text: str) -> str:
    return text.replace("*", r"\*")


PAGES: dict[str, Callable[[str], str]] = {
    "docs/metrics.md": metrics_page,
    "docs/checks.md": with_names_table,
    "docs/methods.md": with_methods_table,
}
"""By the file: what it should hold, from what it holds."""


def main() -> None:
    for name, page in PAGES.items():
        (ROOT / name).write_text(page((ROOT / name).read_text()))


if __name__ == "__main__":
    main()
