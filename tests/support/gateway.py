"""Room: test support.  In: the port of a server.  Out: a way to it that can be cut and closed while
the server lives on."""

import contextlib
import socket
import threading
from types import TracebackType
from typing import Self

from tests.support.process import free_port

_CHUNK_BYTES = 65536
_POLL_S = 0.2


class Gateway:
    """A TCP proxy on a port of its own; a context manager. Closed, it refuses connections, as a
    server that is away does."""

    def __init__(self, target_port: int) -> None:
        self.port = free_port()
        self._target_port = target_port
        self._listener: socket.socket | None = None
        self._accepting: threading.Thread | None = None
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def open(self) -> None:
        """Lets connections through from now on."""
        listener = socket.create_server(("127.0.0.1", self.port))
        listener.settimeout(_POLL_S)
        self._listener = listener
        self._accepting = threading.Thread(
            target=self._accept, args=(listener,), name=f"gateway {self.port}", daemon=True
        )
        self._accepting.start()

    def close(self) -> None:
        """Cuts every connection and refuses new ones; a second call does nothing."""
        listener, self._listener = self._listener, None
        if listener is None:
            return
        assert self._accepting is not None, "a listener without its thread"
        self._accepting.join()
        listener.close()
        with self._lock:
            for end in self._open:
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)

    def _accept(self, listener: socket.socket) -> None:
        while self._listener is listener:
            try:
                client, _ = listener.accept()
            except TimeoutError:
                continue
            try:
                server = socket.create_connection(("127.0.0.1", self._target_port), timeout=5.0)
            except OSError:
                client.close()
                continue
            server.settimeout(None)
            client.settimeout(None)
            with self._lock:
                self._open |= {client, server}
            threading.Thread(
                target=self._join, args=(client, server), name=f"gateway {self.port}", daemon=True
            ).start()

    def _join(self, client: socket.socket, server: socket.socket) -> None:
        answers = threading.Thread(
            target=_pump, args=(server, client), name=f"gateway {self.port}", daemon=True
        )
        answers.start()
        _pump(client, server)
        answers.join()
        with self._lock:
            self._open -= {client, server}
        client.close()
        server.close()


def _pump(source: socket.socket, sink: socket.socket) -> None:
    """Moves bytes until either side ends, then ends both."""
    with contextlib.suppress(OSError):
        while data := source.recv(_CHUNK_BYTES):
            sink.sendall(data)
    for end in (source, sink):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
