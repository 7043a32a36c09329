"""Builds the site into build/docs/site, strictly: a page that cannot be reached, a broken link or
anchor, or a foreign asset fails.

python -m tools.docs.build          needs the programs of requirements/docs.txt in .venv/docs; `make
docs` sees to that
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import yaml

from tools.docs.pages import DOCS, ROOT, BrokenLink, sources, staged
from tools.docs.site import complaints

BUILD = ROOT / "build" / "docs"
PAGES, SITE = BUILD / "pages", BUILD / "site"
CONFIG = ROOT / "mkdocs.yml"
NOT_SEARCHED = ("kafka-facts.md", "watch-facts.md")
"""Pages for contributors that would hide what users look for."""
_EXCLUDED = "---\nsearch:\n  exclude: true\n---\n"
ZENSICAL = ROOT / ".venv" / "docs" / "bin" / "zensical"


def navigation(node: object) -> list[str]:
    """Every page that the navigation names, in order."""
    if isinstance(node, str):
        return [node]
    return [
        page
        for each in (node.values() if isinstance(node, dict) else node)
        for page in navigation(each)
    ]


def unreachable() -> list[str]:
    """Pages without a place in the navigation, and places without a page."""
    named, there = navigation(yaml.safe_load(CONFIG.read_text())["nav"]), sources().values()
    return [f"{page}: in no part of the navigation" for page in there if page not in named] + [
        f"mkdocs.yml: {page} is no page" for page in named if page not in there
    ]


def stage(directory: Path) -> None:
    """Write every page as the site reads it, and the pictures."""
    shutil.rmtree(directory, ignore_errors=True)
    pages = sources()
    for name, place in pages.items():
        (directory / place).parent.mkdir(parents=True, exist_ok=True)
        head = _EXCLUDED if place in NOT_SEARCHED else ""
        (directory / place).write_text(head + staged(name, pages))
    for picture in sorted([*DOCS.rglob("*.svg"), *DOCS.rglob("*.png")]):
        target = directory / picture.relative_to(DOCS)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(picture, target)


def main() -> int:
    """Exit code 0 when the site is whole."""
    if problems := unreachable():
        print("\n".join(problems), file=sys.stderr)
        return 1
    try:
        stage(PAGES)
    except BrokenLink as error:
        print(error, file=sys.stderr)
        return 1
    shutil.rmtree(SITE, ignore_errors=True)
    shutil.copy(CONFIG, BUILD)
    done = subprocess.run(
        [str(ZENSICAL), "build", "--strict", "--clean"],
        cwd=BUILD,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        print(done.stdout, done.stderr, sep="\n", file=sys.stderr)
        return 1
    if problems := complaints(SITE):
        print("\n".join(problems), file=sys.stderr)
        return 1
    print(f"docs: {len(sources())} pages in {SITE.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
