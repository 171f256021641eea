"""Lays out the pages of the site, which `make docs` builds: `python docs/site_pages.py FOLDER`

The folder gets docs/, the README as the first page, every file of the repository that a page links
to, and the help of every command. Links lead to the same files as in the repository.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterator
from os.path import normpath, relpath
from pathlib import Path

import click

from isentrope.cli import main as isentrope

ROOT = Path(__file__).parents[1]
COMMANDS_MARK = "<!-- commands -->"
_LINK = re.compile(r"(?<=\]\()[^)\s#:]+(?=[)#])")
_FENCE = re.compile(r"^(```\w+) .*$", re.MULTILINE)
_COLUMNS = 84


def lay_out(folder: Path) -> None:
    """Write all pages, and what they link to, into a folder that is emptied first."""
    shutil.rmtree(folder, ignore_errors=True)
    waiting = [
        ROOT / "README.md",
        ROOT / "CHANGELOG.md",
        *(path for path in (ROOT / "docs").rglob("*") if path.is_file()),
    ]
    done: set[Path] = set()
    while waiting:
        path = waiting.pop()
        if path in done or path.suffix in (".py", ".pyc"):
            continue
        done.add(path)
        page = folder / site_path(path)
        page.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".md":
            text = path.read_text(encoding="utf-8")
            page.write_text(page_of(path, text), encoding="utf-8")
            waiting += [
                linked for link in _LINK.findall(text) if (linked := _linked(path, link)).is_file()
            ]
        else:
            shutil.copy(path, page)


def site_path(path: Path) -> str:
    """Where the site has a file of the repository."""
    return (
        "index.md"
        if path == ROOT / "README.md"
        else str(path.relative_to(ROOT)).removeprefix("docs/")
    )


def page_of(path: Path, text: str) -> str:
    """The page that the site shows of a Markdown file of the repository."""

    def in_the_site(link: re.Match[str]) -> str:
        linked = _linked(path, link[0])
        return (
            relpath(site_path(linked), Path(site_path(path)).parent)
            if linked.is_file()
            else link[0]
        )

    # "```python control": the second word is for the test that runs the example.
    text = _FENCE.sub(r"\1", _LINK.sub(in_the_site, text))
    if COMMANDS_MARK in text:
        text = text.replace(COMMANDS_MARK, "\n".join(_help_of(isentrope, "isentrope")))
    return text


def _linked(path: Path, link: str) -> Path:
    """The file of the repository that a link in one of its files means."""
    return Path(normpath(path.parent / link))


def _help_of(
    command: click.Command, name: str, parent: click.Context | None = None
) -> Iterator[str]:
    context = command.make_context(
        name, [], parent, resilient_parsing=True, terminal_width=_COLUMNS
    )
    yield f"## {context.command_path}\n\n```text\n{command.get_help(context)}\n```\n"
    if isinstance(command, click.Group):
        for own_name in command.list_commands(context):
            found = command.get_command(context, own_name)
            assert found is not None
            yield from _help_of(found, own_name, context)


if __name__ == "__main__":
    lay_out(Path(sys.argv[1]))
