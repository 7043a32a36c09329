"""What is wrong with a built site: links and anchors that lead nowhere, anything that a browser
would fetch from elsewhere."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

FETCHED = {
    ("script", "src"),
    ("img", "src"),
    ("source", "src"),
    ("iframe", "src"),
    ("video", "src"),
    ("audio", "src"),
    ("object", "data"),
}
"""What a browser gets by itself, apart from `link`, some of whose kinds it does not."""
_STYLED = re.compile(r"""(?:url\(\s*|@import\s+)["']?(https?:)?//""")

_RAW = re.compile(r"<(?:p|li)>((?:(?!</?(?:p|li|pre)\b).)*?\n *(?:\||- |\d+\. ))", re.DOTALL)
"""A line of a list or table that was taken for text."""


class _Page(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.fetched: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = {name: value or "" for name, value in attrs}
        self.ids |= {attributes[name] for name in ("id", "name") if attributes.get(name)}
        if tag == "a" and "href" in attributes:
            self.links.append(attributes["href"])
        if tag == "link" and attributes.get("rel") not in (
            "canonical",
            "alternate",
            "prev",
            "next",
            "author",
            "license",
        ):
            self.fetched.append(attributes.get("href", ""))
        self.fetched += [
            attributes[name] for of, name in FETCHED if of == tag and attributes.get(name)
        ]


def complaints(site: Path) -> list[str]:
    """One line for each thing that is wrong."""
    pages = {path: _Page(path.read_text()) for path in sorted(site.rglob("*.html"))}
    found: list[str] = []
    for path, page in pages.items():
        here = path.relative_to(site)
        if path.name == "404.html":
            # its links start at the place that the site is served from, which is not known here
            continue
        for target in [*page.links, *page.fetched]:
            parts = urlsplit(target)
            if parts.scheme == "data" or (parts.scheme and target in page.links):
                continue
            if parts.scheme or parts.netloc:
                found.append(f"{here}: gets {target} from elsewhere")
                continue
            meant = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            meant = meant / "index.html" if meant.is_dir() else meant
            if not meant.is_file():
                found.append(f"{here}: {target} leads nowhere")
            elif (
                parts.fragment
                and meant in pages
                and not parts.fragment.startswith("__")
                and unquote(parts.fragment) not in pages[meant].ids
            ):
                found.append(f"{here}: {target} has no such place")
    raw = ((path.relative_to(site), _RAW.search(path.read_text())) for path in pages)
    found += [
        f"{path}: not shown as a list or table: {lost[1][:60]!r}" for path, lost in raw if lost
    ]
    styles = [
        style.relative_to(site)
        for style in sorted(site.rglob("*.css"))
        if _STYLED.search(style.read_text())
    ]
    return found + [f"{style}: gets something from elsewhere" for style in styles]
