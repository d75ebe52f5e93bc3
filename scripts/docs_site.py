"""Writes the documentation as a site of plain pages, in the order of docs/README.md: start, how to by task, operation, reference,
explanation. Every page tells where it stands, and leads to the one before and the one after.

python -m scripts.docs_site FOLDER

The exit code is 1 if a link leads nowhere, or if a page is in no section.
"""

import re
import shutil
import sys
from collections.abc import Iterator
from html import escape
from itertools import pairwise
from pathlib import Path
from posixpath import normpath
from string import Template

from markdown_it import MarkdownIt
from markdown_it.token import Token
from msgspec import Struct

ROOT = Path(__file__).resolve().parent.parent
PROJECT = (("CONTRIBUTING.md", "Contributing"), ("CHANGELOG.md", "Changelog"), ("SECURITY.md", "Reporting a flaw"))
PAGE = Template("""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>$title - Mainspring</title>
<link rel="stylesheet" href="style.css">
</head>
<body>
<nav aria-label="Pages">$nav</nav>
<main>
$body
<footer>$around</footer>
</main>
</body>
</html>
""")
STYLE = """
:root { color-scheme: light dark; --line: color-mix(in srgb, currentColor 20%, transparent); }
body { margin: 0; font: 16px/1.6 system-ui, sans-serif; display: grid; grid-template-columns: 16rem minmax(0, 1fr); }
nav { padding: 1.5rem 1rem; border-right: 1px solid var(--line); position: sticky; top: 0; height: 100vh; overflow: auto;
  box-sizing: border-box; }
nav h2 { font-size: .8rem; text-transform: uppercase; letter-spacing: .05em; margin: 1.2rem 0 .3rem; }
nav ul { list-style: none; margin: 0; padding: 0; }
nav a { display: block; padding: .1rem .4rem; text-decoration: none; color: inherit; }
nav a[aria-current] { font-weight: 600; border-left: 3px solid; }
main { padding: 1.5rem 2rem 4rem; max-width: 54rem; }
pre, table { overflow-x: auto; display: block; }
pre { padding: .8rem; border: 1px solid var(--line); border-radius: 6px; }
code { font-size: .9em; }
table { border-collapse: collapse; }
th, td { border: 1px solid var(--line); padding: .3rem .6rem; text-align: left; vertical-align: top; }
img { max-width: 100%; }
footer { display: flex; justify-content: space-between; gap: 1rem; margin-top: 3rem; border-top: 1px solid var(--line);
  padding-top: 1rem; }
@media (max-width: 50rem) { body { display: block; } nav { position: static; height: auto; border: 0; } }
"""


class Entry(Struct, frozen=True):
    """A page as the navigation names it. `source` is its file, seen from the root of the repository."""

    source: str
    title: str


class Section(Struct, frozen=True):
    name: str
    entries: tuple[Entry, ...]


def main() -> int:
    if len(sys.argv) != 2:
        print(__doc__)
        return 2
    problems = build_site(Path(sys.argv[1]))
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


def build_site(folder: Path, root: Path = ROOT) -> list[str]:
    """Writes the site into a folder. Returns what is wrong with the pages."""
    sections = read_sections(root)
    pages = [entry for section in sections for entry in section.entries]
    texts = {entry.source: RENDERER.parse((root / entry.source).read_text()) for entry in pages}
    anchors = {source: set(add_anchors(tokens)) for source, tokens in texts.items()}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "style.css").write_text(STYLE)
    left_out = {f"docs/{page.name}" for page in (root / "docs").glob("*.md")} - texts.keys()
    problems = [f"{source}: no section of docs/README.md names it" for source in sorted(left_out)]
    neighbours = dict(zip(pages, zip([None, *pages], [*pages[1:], None], strict=False), strict=True))
    for entry in pages:
        tokens = texts[entry.source]
        problems += resolve_links(entry.source, tokens, anchors, root, folder)
        body = RENDERER.renderer.render(tokens, RENDERER.options, {})
        around = "".join([_link(each, mark) for each, mark in zip(neighbours[entry], ("← ", "→ "), strict=True)])
        nav = "".join(_draw_nav(sections, entry))
        html = PAGE.substitute(title=escape(entry.title), nav=nav, body=body, around=around)
        (folder / find_target(entry.source)).write_text(html)
    return problems


def read_sections(root: Path = ROOT) -> list[Section]:
    """What docs/README.md lists, in its order: each page once, where it is named first."""
    index = "docs/README.md"
    found = [Section("Mainspring", (Entry("README.md", "What it is"), Entry(index, "All pages by task")))]
    seen = {"README.md", index}
    for name, text in re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", (root / index).read_text(), re.MULTILINE | re.DOTALL):
        entries = []
        for title, target in re.findall(r"\[([^\]]+)\]\(([\w./-]+\.md)\)", text):
            source = normpath(f"docs/{target}")
            if source not in seen:
                seen.add(source)
                entries.append(Entry(source, title[0].upper() + title[1:]))
        found.append(Section(name, tuple(entries)))
    return [*found, Section("Project", tuple([Entry(source, title) for source, title in PROJECT]))]


def find_target(source: str) -> str:
    """The name of a page on the site, which is one folder."""
    return "index.html" if source == "README.md" else "pages.html" if source == "docs/README.md" else f"{Path(source).stem}.html"


RENDERER = MarkdownIt("commonmark", {"html": True}).enable("table")


def add_anchors(tokens: list[Token]) -> Iterator[str]:
    """Gives each heading an anchor, named as GitHub names them, and yields the names."""
    seen: dict[str, int] = {}
    for heading, inline in pairwise(tokens):
        if heading.type == "heading_open":
            words = "".join([child.content for child in inline.children or () if child.type in ("text", "code_inline")])
            name = re.sub(r"[^\w\- ]", "", words.lower()).replace(" ", "-")
            seen[name] = seen.get(name, -1) + 1
            heading.attrSet("id", f"{name}-{seen[name]}" if seen[name] else name)
            yield str(heading.attrGet("id"))


def resolve_links(source: str, tokens: list[Token], anchors: dict[str, set[str]], root: Path, folder: Path) -> Iterator[str]:
    """Has links lead to pages of the site, and to copies of other files. Yields those that lead nowhere."""
    for token in [child for each in tokens for child in each.children or ()]:
        name = {"link_open": "href", "image": "src"}.get(token.type)
        given = str(token.attrGet(name) or "") if name is not None else ""
        if name is None or re.match(r"[a-z]+:|/", given):
            continue
        path, _, anchor = given.partition("#")
        wanted = normpath(str(Path(source).parent / path)) if path else source
        if not (root / wanted).is_file():
            yield f"{source}: `{given}` leads nowhere"
        elif anchor and anchor not in anchors.get(wanted, {anchor}):
            yield f"{source}: `{given}`: there is no such heading"
        elif wanted in anchors:
            token.attrSet(name, find_target(wanted) + (f"#{anchor}" if anchor else ""))
        else:
            (folder / "files" / wanted).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(root / wanted, folder / "files" / wanted)
            token.attrSet(name, f"files/{wanted}")


def _draw_nav(sections: list[Section], here: Entry) -> Iterator[str]:
    for section in sections:
        yield f"<h2>{escape(section.name)}</h2><ul>"
        for entry in section.entries:
            current = ' aria-current="page"' if entry == here else ""
            yield f'<li><a href="{find_target(entry.source)}"{current}>{escape(entry.title)}</a></li>'
        yield "</ul>"


def _link(entry: Entry | None, mark: str) -> str:
    return "<span></span>" if entry is None else f'<a href="{find_target(entry.source)}">{mark}{escape(entry.title)}</a>'


if __name__ == "__main__":
    sys.exit(main())
