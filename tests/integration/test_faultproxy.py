"""An echo behind the fault proxy: each command does what its name says."""

import contextlib
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from tests.support.faultproxy import FaultProxy
from tests.support.process import wait_until


@pytest.fixture
def echo() -> Iterator[int]:
    """The port of a server that says what it hears."""
    listener = socket.create_server(("127.0.0.1", 0))

    def answer(client: socket.socket) -> None:
        with client, contextlib.suppress(OSError):
            while data := client.recv(65536):
                client.sendall(data)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = listener.accept()
                threading.Thread(target=answer, args=(client,), name="echo", daemon=True).start()

    thread = threading.Thread(target=accept, name="echo", daemon=True)
    thread.start()
    yield listener.getsockname()[1]
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join()


@pytest.fixture
def proxy(echo: int) -> Iterator[FaultProxy]:
    with FaultProxy(echo) as proxy:
        yield proxy


def client_of(proxy: FaultProxy) -> socket.socket:
    return socket.create_connection(("127.0.0.1", proxy.port), timeout=5.0)


def echoed(client: socket.socket, text: bytes) -> bytes:
    """What comes back."""
    client.sendall(text)
    found = b""
    while len(found) < len(text) and (more := client.recv(65536)):
        found += more
    return found


def silent(client: socket.socket, text: bytes = b"") -> bool:
    """Nothing comes back for as long as one is ready to wait."""
    client.settimeout(0.3)
    try:
        client.sendall(text)
        return not client.recv(1)
    except TimeoutError:
        return True
    finally:
        client.settimeout(5.0)


def test_it_passes_everything_and_after_a_refusal_again(proxy: FaultProxy) -> None:
    with client_of(proxy) as client:
        assert echoed(client, b"x" * 100_000) == b"x" * 100_000
        proxy.refuse()
        with pytest.raises(ConnectionResetError):
            client.recv(1)
        with pytest.raises(ConnectionRefusedError):
            client_of(proxy)
    proxy.heal()
    with client_of(proxy) as client:
        assert echoed(client, b"again") == b"again"
    assert proxy.connections == 2


def test_what_is_held_arrives_when_it_is_healed(proxy: FaultProxy) -> None:
    with client_of(proxy) as client:
        assert echoed(client, b"a") == b"a"
        proxy.hold()
        assert silent(client, b"bc")
        with client_of(proxy) as late:
            assert silent(late, b"late")
            proxy.heal()
            assert (client.recv(2, socket.MSG_WAITALL), late.recv(4, socket.MSG_WAITALL)) == (
                b"bc",
                b"late",
            )


def test_frozen_connections_stay_silent_and_new_ones_are_good(proxy: FaultProxy) -> None:
    with client_of(proxy) as client:
        assert echoed(client, b"a") == b"a"
        assert proxy.freeze_open() == 1
        proxy.heal()
        assert silent(client, b"b")
        with client_of(proxy) as other:
            assert echoed(other, b"c") == b"c"
            assert proxy.freeze_open() == 2


def test_a_connection_is_reset_after_so_many_bytes(proxy: FaultProxy) -> None:
    proxy.cut_after(10)
    with client_of(proxy) as client:
        client.sendall(b"0123456789abcdef")
        found = b""
        with contextlib.suppress(ConnectionResetError):
            while more := client.recv(100):
                found += more
        assert b"0123456789".startswith(found), (
            "a reset may overtake what was sent before it, never more than that arrives"
        )


def test_delay_and_throttle_hold_back_as_long_as_they_say(proxy: FaultProxy) -> None:
    with client_of(proxy) as client:
        proxy.delay(0.2)
        began_s = time.monotonic()
        assert echoed(client, b"a") == b"a"
        assert time.monotonic() - began_s >= 0.4
        proxy.heal()
        proxy.throttle(1000)
        began_s = time.monotonic()
        assert echoed(client, b"x" * 200) == b"x" * 200
        assert time.monotonic() - began_s >= 0.4


def test_a_new_target_is_for_new_connections(proxy: FaultProxy) -> None:
    with client_of(proxy) as client:
        assert echoed(client, b"a") == b"a"
        proxy.lead_to(1)
        assert echoed(client, b"b") == b"b"
        # it may be reset before it is made
        with contextlib.suppress(ConnectionResetError), client_of(proxy) as other:
            assert other.recv(1) == b""
    wait_until("both were taken", lambda: proxy.connections == 2)
