"""Converts HTML to text, roughly Markdown: headings, lists, links, code and tables, without scripts and styles.

Runs in a process of its own, since some pages keep the parser busy for hours, and imports only the standard library.
"""

import re
from html.parser import HTMLParser
from urllib.parse import urljoin

_DROPPED = frozenset({"script", "style", "template", "svg", "iframe", "object", "select", "canvas", "math"})
_BLOCKS = frozenset({
    "address", "article", "aside", "blockquote", "dd", "details", "div", "dl", "dt", "fieldset", "figcaption", "figure", "footer",
    "form", "header", "hr", "main", "nav", "ol", "p", "section", "summary", "table", "tbody", "tfoot", "thead", "ul",
})  # fmt: skip
_HEADINGS = {f"h{level}": "#" * level + " " for level in range(1, 7)}
_SPACE = re.compile(r"[ \t\r\n\f\u00a0]+")
_EMPTY_LINES = re.compile(r"\n[ \t]*(?:\n[ \t]*)+")


def answer(html: str, base: str) -> dict[str, str]:
    """Title and text of a page; links are made absolute by its address `base`. What cannot be parsed ends the text."""
    reader = _Reader(base)
    try:
        reader.feed(html)
        reader.close()
    # The parser promises to take anything, and asserts otherwise.
    except AssertionError:
        reader.add("\n[the rest of the page is malformed]")
    text = _EMPTY_LINES.sub("\n\n", "".join(reader.pieces))
    return {"title": _SPACE.sub(" ", reader.title).strip(), "text": text.strip()}


class _Reader(HTMLParser):
    def __init__(self, base: str) -> None:
        super().__init__()
        self._base = base
        self.title = ""
        self.pieces: list[str] = []
        self._dropped: list[str] = []
        self._lists: list[int | None] = []
        self._links: list[tuple[int, str]] = []
        self._in_title = False
        self._in_code = 0

    def add(self, text: str) -> None:
        if text:
            self.pieces.append(text)

    def _break(self, count: int) -> None:
        """Ends the line, unless so many line ends are there already."""
        last = self.pieces[-1] if self.pieces else "\n\n"
        self.add("\n" * (count - len(last) + len(last.rstrip("\n"))))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if self._dropped or tag in _DROPPED:
            self._dropped += [tag] if tag in _DROPPED else []
        elif tag == "title" and not self.title:
            self._in_title = True
        elif tag in _HEADINGS:
            self._break(2)
            self.add(_HEADINGS[tag])
        elif tag == "a":
            self._links.append((len(self.pieces), given.get("href") or ""))
        elif tag == "img" and (alt := given.get("alt")):
            self.add(f"[image: {alt}]")
        elif tag in ("pre", "code", "br", "li", "tr", "td", "th"):
            self._start_layout(tag)
        elif tag in _BLOCKS:
            if tag in ("ul", "ol"):
                self._lists.append(0 if tag == "ol" else None)
            self._break(2 if len(self._lists) < 2 else 1)

    def handle_endtag(self, tag: str) -> None:
        if self._dropped:
            self._dropped = self._dropped[:-1] if tag == self._dropped[-1] else self._dropped
        elif tag == "title":
            self._in_title = False
        elif tag == "a" and self._links:
            self._end_link(*self._links.pop())
        elif tag == "pre" and self._in_code:
            self._in_code -= 1
            self.add("\n```\n")
        elif tag == "code" and not self._in_code:
            self.add("`")
        elif tag in _BLOCKS or tag in _HEADINGS:
            if tag in ("ul", "ol") and self._lists:
                self._lists.pop()
            self._break(1 if self._lists else 2)

    def handle_data(self, data: str) -> None:
        if self._in_title:
            self.title += data
        elif self._dropped:
            return
        elif self._in_code:
            self.add(data)
        else:
            text = _SPACE.sub(" ", data)
            # A line does not begin with a space.
            self.add(text.lstrip(" ") if self._is_at_start() or self.pieces[-1].endswith(" ") else text)

    def _start_layout(self, tag: str) -> None:
        match tag:
            case "pre":
                self._in_code += 1
                self.add("\n```\n")
            case "code" if not self._in_code:
                self.add("`")
            case "br":
                self.add("\n")
            case "tr":
                self._break(1)
            case "td" | "th":
                self.add("| " if self._is_at_start() else " | ")
            case "li":
                self._break(1)
                self.add(f"{'  ' * (len(self._lists) - 1)}{self._bullet()} ")

    def _is_at_start(self) -> bool:
        return not self.pieces or self.pieces[-1].endswith("\n")

    def _bullet(self) -> str:
        if not self._lists or (count := self._lists[-1]) is None:
            return "-"
        self._lists[-1] = count + 1
        return f"{count + 1}."

    def _end_link(self, start: int, target: str) -> None:
        text = "".join(self.pieces[start:]).strip()
        try:
            address = urljoin(self._base, target.strip())
        except ValueError:
            return
        if text and "\n" not in text and not target.startswith("#") and address.startswith(("http://", "https://")):
            self.pieces[start:] = [f"[{text}]({address})"]
