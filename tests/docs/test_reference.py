"""The pages and what they are made from: proof that nothing drifted and that every link leads
somewhere."""

import re
from dataclasses import asdict
from pathlib import Path

import pytest

from tests.support.docpages import pages
from tools.docs.build import unreachable
from tools.docs.capacity import figures, with_figures
from tools.docs.generate import drifted
from tools.docs.loglines import found
from tools.docs.pages import DOCS, ROOT, local_links, resolve
from tools.docs.rooms import drawing, layers
from watchrelay.cli.main import build_parser
from watchrelay.core.exit_codes import EXIT_CODES
from watchrelay.observe.status import StreamStatus


def test_generated_pages_are_fresh() -> None:
    assert drifted() == [], "run `make generate-docs`"


def test_every_package_of_the_import_contracts_is_drawn_in_its_layer() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    packages = {
        path.stem for path in (ROOT / "watchrelay").iterdir() if (path / "__init__.py").is_file()
    }
    assert {name for layer in layers(text) for name in layer} == packages | {"__main__"}
    tops = dict(re.findall(r'y="(\d+)" font-size="14" font-weight="bold">(\w+)<', drawing(text)))
    assert [name for _, name in sorted((int(top), name) for top, name in tops.items())] == [
        layer[-1] for layer in layers(text)
    ]


def test_a_package_without_a_description_is_refused() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    with pytest.raises(KeyError, match="elsewhere"):
        drawing(text.replace('"observe"', '"elsewhere"'))


def test_every_page_is_in_the_navigation_and_the_other_way_round() -> None:
    assert unreachable() == []


@pytest.mark.parametrize("page", pages())
def test_every_link_in_the_tree_leads_somewhere(page: str) -> None:
    broken = []
    for number, target in local_links((ROOT / page).read_text()):
        meant = resolve(page, target) or page
        anchor = target.partition("#")[2]
        if not (ROOT / meant).exists() or (anchor and anchor not in _anchors(ROOT / meant)):
            broken.append(f"{page}:{number}: {target}")
    assert broken == []


def _anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {
        re.sub(r"[^\w -]", "", heading.lower()).strip().replace(" ", "-") for heading in headings
    }


def test_the_tests_that_pages_name_exist() -> None:
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    names = {path.stem for path in files}
    for path in files:
        names |= set(re.findall(r"def (test_\w+)", path.read_text()))
    lost = {
        f"{page}: {name}"
        for page in pages()
        if page != "CHANGELOG.md"
        for name in re.findall(r"\b(test_\w+)(?![\w*]|\.\.\.)", (ROOT / page).read_text())
        if name not in names
    }
    assert lost == set()


def test_help_tells_the_exit_codes_of_the_reference() -> None:
    text = " ".join(build_parser().format_help().split())
    for code, meaning in EXIT_CODES.items():
        if code < 128:  # what a shell makes of a signal is not ours to explain there
            assert f"{code} {meaning}" in text


def test_every_field_of_a_streams_row_is_explained() -> None:
    text = (
        (DOCS / "observe.md")
        .read_text()
        .partition("## Fields of a stream")[2]
        .partition("\n## ")[0]
    )
    explained = {
        name
        for row in text.splitlines()
        if row.startswith("| `")
        for name in re.findall(r"`(\w+)`", row.split("|")[1])
    }
    assert explained == set(StreamStatus("pods").as_json())
    assert asdict(StreamStatus("pods"))["stream"] == "pods"


def test_what_this_release_does_not_have_is_not_promised() -> None:
    """The config refuses nothing that a page may call missing."""
    for page in ("guarantees.md", "capacity.md", "comparison.md", "reference/config.md"):
        assert "in this release" not in (DOCS / page).read_text().lower()


def test_capacity_takes_its_figures_from_the_benchmark_or_names_its_command() -> None:
    performance = "| figure | measured |\n| --- | --- |\n| memory: idle | 40 MB |\n"
    assert figures(performance) == {"memory: idle": "40 MB"}
    assert (
        with_figures("| x | <!-- figure: memory: idle --> old |\n", performance)
        == "| x | <!-- figure: memory: idle --> 40 MB |\n"
    )
    with pytest.raises(KeyError):
        with_figures("| x | <!-- figure: nothing --> |\n", performance)
    page = re.sub(r"<!-- figure:[^|\n]*", "", (DOCS / "capacity.md").read_text())
    others = [
        section
        for section in re.split(r"^##+ ", page.replace("5.1 KB", ""), flags=re.MULTILINE)
        if not re.search(r"`(?:python -m tests\.bench|make bench)", section)
    ]
    assert re.findall(r"\b[\d.,]+ ?(?:us|ms|MB|KiB(?!/)|/s)\b", "".join(others)) == [], (
        "a figure is from the benchmark, or its section names the command that gives it"
    )


SAYS = """
class Speaker:
    def one(self, level, error):
        extra = {"stream": "s", "error": error}
        log.log(logging.ERROR if error else logging.DEBUG, "one way" if error else "the other", extra=extra)

    def _logged(self, message, **more):
        _log.warning(message, extra={"topic": "t", **more})

    def two(self):
        self._logged("handed on", offset=1)
"""


def test_lines_of_the_log_are_found_however_they_are_logged() -> None:
    errors = ("error", "warning", "debug")
    lines = found({"m": SAYS.replace("logging.ERROR", "logging.ERROR if 1 else logging.WARNING")})
    assert [(line.levels, line.message, line.fields) for line in lines] == [
        (errors, "one way", ("stream", "error")),
        (errors, "the other", ("stream", "error")),
        (("warning",), "handed on", ("topic", "...")),
    ]


def test_a_line_whose_words_change_is_refused() -> None:
    with pytest.raises(ValueError, match="m:3: the message is not constant words"):
        found({"m": 'def f(name):\n    x = 1\n    log.info(f"hello {name}")\n'})


def test_no_field_of_a_log_line_has_the_name_of_one_that_every_line_has() -> None:
    lines = found(
        {
            ".".join(path.relative_to(ROOT).with_suffix("").parts): path.read_text()
            for path in (ROOT / "watchrelay").rglob("*.py")
        }
    )
    taken = {"time", "level", "logger", "message"}
    assert [line for line in lines if taken & set(line.fields)] == []
