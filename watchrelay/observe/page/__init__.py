"""The status page's files, read when asked for: nothing of them stays in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Final

FILES: Final = {
    "page.css": "text/css",
    "page.js": "text/javascript",
    "rows.js": "text/javascript",
    "cards.js": "text/javascript",
    "replicas.js": "text/javascript",
    "words.js": "text/javascript",
}
HEADERS: Final = {
    # Nothing but our own files, no inline script or style, no HTML made of strings: names and
    # messages come from clusters.
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        "img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


def read(name: str) -> str:
    return (Path(__file__).parent / name).read_text(encoding="utf-8")
