"""The committed dashboards, a Prometheus that holds what `stage.py` played: pictures of them as
Grafana draws them.

Panels are asked as Grafana asks: the same step, rate interval and variables. What draws them are
Grafana's own components from npm (`render/main.jsx`); the frame around them, rows, variables and
annotations are drawn by us, since Grafana itself is in no registry.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.dashboards.stage import NAMESPACE, Played
from tests.support.browser import Browser
from tests.support.charttools import ROOT
from tests.support.dashboards import dashboard
from tests.support.prometheus import Prometheus

SCRAPE_S = 4
"""The scrape interval that the data source would be configured with; `$__rate_interval` is four
times that. Source: Grafana's documentation."""
CHOSEN: Mapping[str, Mapping[str, tuple[str, str]]] = {
    "fleet": {"namespace": ("All", ".*"), "cluster": ("All", ".*"), "stream": ("All", ".*")},
    "stream": {
        "namespace": ("All", ".*"),
        "cluster": ("", ""),
        "stream": ("configmaps", "configmaps"),
    },
    "kafka": {"namespace": ("All", ".*"), "cluster": ("All", ".*"), "topic": ("All", ".*")},
}
"""By dashboard and variable: what is shown as chosen, and its value in expressions; "" for the
cluster that was played."""
WIDTH = 1400
COLOURS = 128
_RENDER = Path(__file__).with_name("render")


def asked(name: str, prometheus: Prometheus, played: Played) -> dict[str, Any]:
    """The dashboard with the answers that its panels get. `window.shot` of main.jsx."""
    board = dashboard(name)
    values = {
        "$__rate_interval": f"{4 * SCRAPE_S}s",
        "$__range": f"{round(played.end - played.start)}s",
    }
    chosen = {
        variable: (text or played.cluster, value or played.cluster)
        for variable, (text, value) in CHOSEN[name].items()
    }
    values |= {f"${variable}": value for variable, (_, value) in chosen.items()}

    def answers(expression: str) -> list[dict[str, Any]]:
        for variable, value in values.items():
            expression = expression.replace(variable, value)
        return prometheus.query_range(
            expression, start=played.start, end=played.end, step_s=SCRAPE_S
        )

    panels = [
        {**panel, "answers": [answers(target["expr"]) for target in panel.get("targets", [])]}
        for panel in board["panels"]
    ]
    marks = [
        second * 1000
        for each in board["annotations"]["list"]
        if each["enable"]
        for second in _begins(answers(each["expr"]))
    ]
    shown = [
        (each["label"], chosen[each["name"]][0])
        for each in board["templating"]["list"]
        if each["type"] == "query"
    ]
    times = {"from": played.start * 1000, "to": played.end * 1000, "step": SCRAPE_S}
    return {
        "title": board["title"],
        "variables": shown,
        **times,
        "marks": marks,
        "panels": panels,
        "width": WIDTH,
        "dark": True,
    }


def _begins(series: list[dict[str, Any]]) -> list[float]:
    """When each stretch of points begins, over all series: Grafana makes one annotation of points
    that follow each other."""
    found: set[float] = set()
    for each in series:
        seconds = [float(second) for second, _ in each["values"]]
        found |= {second for second in seconds if second - SCRAPE_S not in seconds}
    return sorted(found)


def empty(shot: Mapping[str, Any]) -> list[str]:
    """The panels of a dashboard that nothing answered."""
    return [
        panel["title"]
        for panel in shot["panels"]
        if panel["type"] != "row" and not any(panel["answers"])
    ]


def draw(shots: Mapping[str, dict[str, Any]], directory: Path) -> list[Path]:
    """Their pictures in `directory`, by the names of the dashboards."""
    npm = _installed()
    pages = ROOT / "build" / "dashboards" / "pages"
    shutil.rmtree(pages, ignore_errors=True)
    _public(npm / "node_modules", pages / "public")
    _bundle(npm, pages)
    directory.mkdir(parents=True, exist_ok=True)
    files = []
    with Browser() as browser, _served(pages) as address:
        for name, shot in shots.items():
            (pages / f"{name}.js").write_text(f"window.shot = {json.dumps(shot)};")
            scripts = f'<script src="{name}.js"></script><script src="main.js"></script>'
            head = (
                '<meta charset="utf-8"><link rel="icon" href="data:,"><link rel="stylesheet" '
                'href="main.css">'
            )
            (pages / f"{name}.html").write_text(
                f'<!doctype html>{head}<body style="margin:0"><div id="dashboard"></div>{scripts}'
            )
            page = browser.page(f"{address}/{name}.html", width=WIDTH + 32, height=1000)
            page.wait("the dashboard is drawn", "window.drawn === true")
            assert page.problems == [], page.problems
            height = int(page.evaluate("document.getElementById('dashboard').offsetHeight"))
            page.send(
                "Emulation.setDeviceMetricsOverride",
                width=WIDTH + 32,
                height=height,
                deviceScaleFactor=1,
                mobile=False,
            )
            files.append(directory / f"dashboard-{name}.png")
            page.screenshot(files[-1])
            _run("node", npm / "palette.mjs", files[-1], str(COLOURS))
    return files


def _installed() -> Path:
    """Where npm put what the lock file names, after it did; beside it our own two files."""
    printed = _run(ROOT / "tools" / "dashboardtools.sh").splitlines()[-1]
    npm = Path(printed.rpartition(" in ")[2])
    for file in ("main.jsx", "palette.mjs"):
        shutil.copyfile(_RENDER / file, npm / file)
    return npm


def _public(modules: Path, public: Path) -> None:
    """Icons and fonts where Grafana's styles look for them."""
    fonts = public / "fonts" / "inter"
    fonts.mkdir(parents=True)
    (public / "build").symlink_to(modules / "@grafana" / "ui" / "dist" / "public")
    for weight, name in {400: "Regular", 500: "Medium"}.items():
        (fonts / f"Inter-{name}.woff2").symlink_to(
            modules / "@fontsource" / "inter" / "files" / f"inter-latin-{weight}-normal.woff2"
        )


def _bundle(npm: Path, pages: Path) -> None:
    loaders = ["--loader:.ttf=empty", "--loader:.svg=text"]
    defined = '--define:process.env.NODE_ENV="production"'
    flags = [
        "--bundle",
        "--minify",
        "--jsx=automatic",
        defined,
        "--log-level=warning",
        *loaders,
        f"--outfile={pages / 'main.js'}",
    ]
    _run(npm / "node_modules" / ".bin" / "esbuild", npm / "main.jsx", *flags)


def _run(*argv: str | Path) -> str:
    done = subprocess.run(
        [str(each) for each in argv],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "LC_ALL": "C"},
    )
    if done.returncode:
        raise SystemExit(
            f"{argv[0]} failed with {done.returncode}:\n{done.stdout}{done.stderr}".rstrip()
        )
    return done.stdout


class _Files(SimpleHTTPRequestHandler):
    """Files of a directory, without a line for each on stderr."""

    def log_message(self, *_: Any) -> None:
        """Nothing is logged."""


@contextmanager
def _served(directory: Path) -> Iterator[str]:
    """The address under which the directory's files are answered."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Files, directory=str(directory)))
    thread = threading.Thread(target=server.serve_forever, name="pages", daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


__all__ = ["CHOSEN", "NAMESPACE", "asked", "draw", "empty"]
