"""An embedded Kafka: real protocol on a real socket, inside this process, without a JVM.

It has a bootstrap address, and for tests the levers that make brokers misbehave. It is
librdkafka's mock cluster, reached by ctypes in the shared library that the confluent-kafka wheel
brings along.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import importlib.util
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from watchrelay.core.errors import WatchrelayError

PRODUCE, FETCH, LIST_OFFSETS, METADATA, INIT_PRODUCER_ID = 0, 1, 2, 3, 22
"""API keys for `push_request_errors`. Source: Kafka protocol guide, "Api Keys"."""

NO_LEADER = -1
_PRODUCER = 0
_MISSING = (
    "the embedded Kafka needs confluent-kafka: pip install 'watchrelay[demo]', or name a "
    "real broker with --kafka"
)


class EmbeddedKafkaError(WatchrelayError):
    """The embedded Kafka cannot be started, or refused what was asked of it."""


class EmbeddedKafka:
    """A running mock cluster on 127.0.0.1; a context manager.

    Brokers have the ids 1 to `brokers`; topics that a client asks about come into being with
    4 partitions. What it does not do, and real Kafka does: keep more than 5 MiB of a partition (the
    oldest batches vanish), compact, limit sizes, check sequences, fence, create topics or describe
    configs on request, groups of more than one member. Source: librdkafka, src/rdkafka_mock.c.
    """

    def __init__(self, library: ctypes.CDLL, handle: int, cluster: int, bootstrap: str) -> None:
        self._library = library
        self._handle: int | None = handle
        self._cluster = cluster
        self.bootstrap = bootstrap

    @classmethod
    def start(cls, brokers: int = 1) -> Self:
        """A cluster that serves from now on until `stop`.

        Raises: EmbeddedKafkaError naming the extra to install when confluent-kafka is missing.
        """
        library = _load()
        conf = library.rd_kafka_conf_new()
        # Without a callback librdkafka logs nowhere; its default is stderr, which belongs to us.
        library.rd_kafka_conf_set_log_cb(conf, None)
        error = ctypes.create_string_buffer(512)
        handle = library.rd_kafka_new(_PRODUCER, conf, error, len(error))
        if not handle:
            raise EmbeddedKafkaError(
                f"the embedded Kafka cannot start: {error.value.decode(errors='replace')}"
            )
        cluster = library.rd_kafka_mock_cluster_new(handle, brokers)
        if not cluster:
            library.rd_kafka_destroy(handle)
            raise EmbeddedKafkaError("the embedded Kafka cannot listen on 127.0.0.1")
        return cls(
            library, handle, cluster, library.rd_kafka_mock_cluster_bootstraps(cluster).decode()
        )

    def stop(self) -> None:
        """End the cluster and all that it held; a second call does nothing."""
        handle, self._handle = self._handle, None
        if handle is not None:
            self._library.rd_kafka_mock_cluster_destroy(self._cluster)
            self._library.rd_kafka_destroy(handle)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def create_topic(self, name: str, partitions: int = 1, *, replication_factor: int = 1) -> None:
        """Make a topic. Raises: EmbeddedKafkaError when it exists already."""
        self._ask("rd_kafka_mock_topic_create", name.encode(), partitions, replication_factor)

    # ---- levers for tests ------------------------------------------------------------------------

    def push_request_errors(self, api_key: int, codes: Sequence[int]) -> None:
        """Answer the next `len(codes)` requests of this kind, to any broker, with these error codes
        instead of doing them."""
        array = (ctypes.c_int * len(codes))(*codes)
        self._library.rd_kafka_mock_push_request_errors_array(
            self._alive(), api_key, len(codes), array
        )

    def clear_request_errors(self, api_key: int) -> None:
        """Forget what `push_request_errors` left over for this kind of request."""
        self._library.rd_kafka_mock_clear_request_errors(self._alive(), api_key)

    def set_leader(self, topic: str, partition: int, broker: int) -> None:
        """Move a partition to another broker; `NO_LEADER` leaves it without one."""
        self._ask("rd_kafka_mock_partition_set_leader", topic.encode(), partition, broker)

    def set_topic_error(self, topic: str, code: int) -> None:
        """Answer requests about a topic with this error code; 0 ends that."""
        self._library.rd_kafka_mock_topic_set_error(self._alive(), topic.encode(), code)

    def broker_down(self, broker: int = 1) -> None:
        """Cut all connections of a broker and refuse new ones."""
        self._ask("rd_kafka_mock_broker_set_down", broker)

    def broker_up(self, broker: int = 1) -> None:
        """Serve again after `broker_down`, with the data that was there."""
        self._ask("rd_kafka_mock_broker_set_up", broker)

    def set_rtt(self, rtt_ms: int, broker: int = 1) -> None:
        """Hold back each answer of a broker by this number of milliseconds."""
        self._ask("rd_kafka_mock_broker_set_rtt", broker, rtt_ms)

    def _alive(self) -> int:
        if self._handle is None:
            raise EmbeddedKafkaError("the embedded Kafka was stopped")
        return self._cluster

    def _ask(self, function: str, *arguments: object) -> None:
        code = getattr(self._library, function)(self._alive(), *arguments)
        if code:
            reason = self._library.rd_kafka_err2str(code).decode()
            raise EmbeddedKafkaError(
                "the embedded Kafka refused "
                f"{function.removeprefix('rd_kafka_mock_')}{arguments}: {reason}"
            )


def _find_library() -> str:
    """Path of the librdkafka that confluent-kafka uses: bundled in Linux and macOS wheels, else the
    system's."""
    spec = importlib.util.find_spec("confluent_kafka")
    if spec is None or spec.origin is None:
        raise EmbeddedKafkaError(_MISSING)
    package = Path(spec.origin).parent
    for directory in (package.parent / "confluent_kafka.libs", package / ".dylibs"):
        for path in sorted(directory.glob("librdkafka*")):
            return str(path)
    system = ctypes.util.find_library("rdkafka")
    if system is None:
        raise EmbeddedKafkaError(
            f"no librdkafka beside {package}, nor on the system: install the confluent-kafka "
            "wheel for this platform"
        )
    return system


def _load() -> ctypes.CDLL:
    path = _find_library()
    try:
        library = ctypes.CDLL(path)
    except OSError as error:
        raise EmbeddedKafkaError(f"the embedded Kafka cannot load {path}: {error}") from error
    pointer, text, number, size = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int, ctypes.c_size_t
    for name, result, arguments in (
        ("rd_kafka_conf_new", pointer, []),
        ("rd_kafka_conf_set_log_cb", None, [pointer, pointer]),
        ("rd_kafka_new", pointer, [number, pointer, text, size]),
        ("rd_kafka_destroy", None, [pointer]),
        ("rd_kafka_err2str", text, [number]),
        ("rd_kafka_mock_cluster_new", pointer, [pointer, number]),
        ("rd_kafka_mock_cluster_destroy", None, [pointer]),
        ("rd_kafka_mock_cluster_bootstraps", text, [pointer]),
        ("rd_kafka_mock_topic_create", number, [pointer, text, number, number]),
        (
            "rd_kafka_mock_push_request_errors_array",
            None,
            [pointer, ctypes.c_int16, size, ctypes.POINTER(number)],
        ),
        ("rd_kafka_mock_clear_request_errors", None, [pointer, ctypes.c_int16]),
        (
            "rd_kafka_mock_partition_set_leader",
            number,
            [pointer, text, ctypes.c_int32, ctypes.c_int32],
        ),
        ("rd_kafka_mock_topic_set_error", None, [pointer, text, ctypes.c_int]),
        ("rd_kafka_mock_broker_set_down", number, [pointer, ctypes.c_int32]),
        ("rd_kafka_mock_broker_set_up", number, [pointer, ctypes.c_int32]),
        ("rd_kafka_mock_broker_set_rtt", number, [pointer, ctypes.c_int32, number]),
    ):
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library
