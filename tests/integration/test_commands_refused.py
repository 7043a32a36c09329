"""Ports that are no broker for us: what `tail` and `verify` say of each, and how they exit."""

import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.daemon import command, relay_config
from tests.support.pki import Ca

COMMANDS = (("tail", "--until-end"), ("verify",))


class Port:
    """A listener that shakes hands by TLS with a certificate of its own authority, or not at all,
    and hangs up."""

    def __init__(self, tls: ssl.SSLContext | None) -> None:
        self._listening, self._tls = socket.create_server(("127.0.0.1", 0)), tls
        self.address = f"127.0.0.1:{self._listening.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                with self._listening.accept()[0] as connection:
                    if self._tls is not None:
                        self._tls.wrap_socket(connection, server_side=True).close()
                    else:
                        connection.recv(1)
            except ssl.SSLError:
                continue
            except OSError:
                return

    def close(self) -> None:
        """Ends the listener."""
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._thread.join(5.0)


@pytest.fixture
def closing() -> Iterator[list[Port]]:
    ports: list[Port] = []
    yield ports
    for port in ports:
        port.close()


def refused(directory: Path, address: str, security: dict[str, Any]) -> Iterator[tuple[int, str]]:
    """Exit code and stderr of each command."""
    config = relay_config(
        "c",
        bootstrap=address,
        kubeconfig=directory / "none",
        resources=["pods"],
        kafka={"security": security},
    )
    file = directory / "watchrelay.yaml"
    file.write_text(yaml.safe_dump(config))
    for arguments in COMMANDS:
        done = command(*arguments, "-c", file)
        assert done.stdout == ""
        yield done.code, done.stderr


def test_a_certificate_that_is_not_trusted_is_78_with_the_cure_in_one_line(
    tmp_path: Path, closing: list[Port]
) -> None:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(*Ca().issue("broker").write(tmp_path, "broker"))
    closing.append(Port(tls))
    for code, stderr in refused(tmp_path, closing[0].address, {"protocol": "SSL"}):
        assert code == 78, stderr
        assert "the broker's certificate is not trusted: set kafka.security.caFile" in stderr
        assert stderr.count("\n") == 1, stderr


@pytest.mark.parametrize(
    ("protocol", "cure"),
    [("PLAINTEXT", "does this port speak TLS"), ("SSL", "the port may not speak TLS")],
)
def test_a_port_that_hangs_up_is_69_with_what_may_be_behind_it(
    tmp_path: Path, closing: list[Port], protocol: str, cure: str
) -> None:
    closing.append(Port(None))
    for code, stderr in refused(tmp_path, closing[0].address, {"protocol": protocol}):
        assert code == 69, stderr
        assert cure in stderr
        assert stderr.count("\n") == 1, stderr
