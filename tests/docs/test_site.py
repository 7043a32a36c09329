"""Small pages: proof that what must fail the build of the site is found."""

from pathlib import Path

import pytest

from tools.docs.build import NOT_SEARCHED, stage
from tools.docs.pages import BrokenLink, resolve, rewritten, sources, staged
from tools.docs.reference import table
from tools.docs.site import complaints

GOOD = (
    '<html><head><link rel="stylesheet" href="a.css"></head><body><h1 id="top">T</h1><a '
    'href="#top">x</a><a href="https://example.com">y</a>'
)


def built(directory: Path, body: str, css: str = "body{}") -> list[str]:
    (directory / "a.css").write_text(css)
    (directory / "index.html").write_text(GOOD + body + "</body></html>")
    return complaints(directory)


def test_a_whole_page_is_whole(tmp_path: Path) -> None:
    assert built(tmp_path, '<img src="data:image/png;base64,AA">') == []


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ('<a href="b.html">x</a>', "b.html leads nowhere"),
        ('<a href="#nope">x</a>', "#nope has no such place"),
        ('<img src="https://example.com/a.png">', "from elsewhere"),
        ('<script src="//example.com/a.js"></script>', "from elsewhere"),
        ('<link rel="preconnect" href="https://fonts.example.com">', "from elsewhere"),
    ],
)
def test_what_leads_nowhere_or_elsewhere_is_found(body: str, problem: str, tmp_path: Path) -> None:
    (found,) = built(tmp_path, body)
    assert problem in found


def test_a_style_that_fetches_is_found(tmp_path: Path) -> None:
    (found,) = built(tmp_path, "", "@font-face{src:url(https://fonts.example.com/x.woff)}")
    assert "from elsewhere" in found


def test_links_follow_pages_and_name_what_is_no_page() -> None:
    known = sources()
    assert "[Architecture](architecture.md)" in staged("docs/index.md", known)
    assert "](images/rooms.svg)" in staged("ARCHITECTURE.md", known)
    assert "`java/Reader.java` (`examples/java/Reader.java`)" in staged("examples/README.md", known)
    assert resolve("docs/runbooks/README.md", "../security.md#assets") == "docs/security.md"


def test_the_facts_for_contributors_are_left_out_of_the_search(tmp_path: Path) -> None:
    stage(tmp_path / "pages")
    excluded = {
        path.name
        for path in (tmp_path / "pages").rglob("*.md")
        if path.read_text().startswith("---\nsearch:\n  exclude: true\n---\n# ")
    }
    assert excluded == set(NOT_SEARCHED)


def test_a_link_to_nothing_stops_the_build() -> None:
    with pytest.raises(BrokenLink, match="leads nowhere"):
        rewritten("docs/index.md", "[x](nothing.md)\n", sources())
    assert (
        rewritten("docs/index.md", "```text\n[x](nothing.md)\n```\n", sources())
        == "```text\n[x](nothing.md)\n```\n"
    )


def test_a_list_or_table_behind_text_is_shown_as_one(tmp_path: Path) -> None:
    known = sources()
    assert rewritten("docs/index.md", "text\n- a\n- b\n", known) == "text\n\n- a\n- b\n"
    assert rewritten("docs/index.md", "text\n  | a |\n  |---|\n", known) == "text\n\n| a |\n|---|\n"
    assert (
        rewritten("docs/index.md", "## head\n- a\n  more\n- b\n", known)
        == "## head\n- a\n  more\n- b\n"
    )
    (found,) = built(tmp_path, "<p>text:\n| a | b |</p>")
    assert "not shown as a list or table" in found


def test_a_table_shows_what_looks_like_a_tag() -> None:
    assert "| &lt;name&gt; `<name>` a\\|b |" in table(("x",), [["<name> `<name>` a|b"]])
