"""A conversion webhook that refuses objects with `spec.refused`, over TLS, in a thread."""

from __future__ import annotations

import json
import ssl
import threading
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.support.pki import Ca


class _Converting(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["request"]
        wanted, objects = asked["desiredAPIVersion"], asked["objects"]
        refused = any(each.get("spec", {}).get("refused") for each in objects)
        result: dict[str, Any] = {"status": "Success"}
        if refused:
            result = {"status": "Failure", "message": "this state cannot be converted"}
        answer = {
            "uid": asked["uid"],
            "result": result,
            "convertedObjects": []
            if refused
            else [{**each, "apiVersion": wanted} for each in objects],
        }
        review = {"apiVersion": "apiextensions.k8s.io/v1", "kind": "ConversionReview"}
        body = json.dumps(review | {"response": answer}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def conversion_webhook(directory: Path) -> Iterator[dict[str, Any]]:
    """The `spec.conversion` of a CustomResourceDefinition that uses it."""
    authority = Ca()
    pair = authority.issue("webhook").write(directory, "webhook")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.certificate, pair.key)
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Converting)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    serving = threading.Thread(target=server.serve_forever, name="webhook")
    serving.start()
    client = {
        "url": f"https://127.0.0.1:{server.server_port}/convert",
        "caBundle": b64encode(authority.pem).decode(),
    }
    try:
        yield {
            "strategy": "Webhook",
            "webhook": {"clientConfig": client, "conversionReviewVersions": ["v1"]},
        }
    finally:
        server.shutdown()
        serving.join()
        server.server_close()
