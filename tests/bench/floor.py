"""A minimal relay: what an event costs in Python when nothing is kept in order, bounded,
recovered, resumed or reported; go-raw (`goraw/main.go`) is the same in Go.

Input: a source, a broker and a topic. Output: the topic filled, as a process of its own whose CPU
is measured beside the relay's.

It is a gauge. What a microsecond of a core buys here changes by half within minutes, with whatever
else the machine's host runs, and an absolute figure then speaks of the host. A floor that took
turns with the relay on the same core had the same luck, so their ratio stays. It does what no relay
of this contract can leave out: for each object that it lists and each event it decodes one level,
cuts managedFields, hashes, packs with a dictionary, holds the entry, makes the record's headers,
appends it to the batch of its partition, compresses and sends that. It knows no difference between states, no
position that survives, no bound, no metrics; it ends with the first error.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import hashlib
import zlib

import aiohttp
import cramjam
import msgspec
import zstandard
from aiokafka import AIOKafkaProducer
from aiokafka.producer.message_accumulator import BatchBuilder
from aiokafka.record._crecords import default_records
from msgspec import Raw

_BATCH_BYTES = 512 * 1024
_FLUSH_EVERY_S = 0.005
_PAGE = 500
_YOUNG_OBJECTS = 50_000

Fields = dict[str, Raw]


class _Line(msgspec.Struct, gc=False):
    object: Fields


class _Page(msgspec.Struct):
    items: list[Fields]
    metadata: Fields


class _Held(msgspec.Struct, gc=False):
    uid: str
    version: str
    hash: bytes
    partition: int
    packed: bytes


_read_lines = msgspec.json.Decoder(_Line).decode_lines
_read_page = msgspec.json.Decoder(_Page).decode
_read_fields = msgspec.json.Decoder(Fields).decode
_read_text = msgspec.json.Decoder(str).decode
_write = msgspec.json.Encoder().encode


class _Floor:
    """The entries, and a batch per partition."""

    def __init__(self, producer: AIOKafkaProducer, topic: str, partitions: int) -> None:
        self._producer, self._topic, self._partitions = producer, topic, partitions
        self._held: dict[bytes, _Held] = {}
        self._pack = zstandard.ZstdCompressor(level=1).compress
        self._sequences = [0] * partitions
        self._open: dict[int, BatchBuilder] = {}
        self.on_the_way: dict[int, asyncio.Future[object]] = {}
        self.full: list[tuple[int, BatchBuilder]] = []

    def train(self, values: list[bytes]) -> None:
        samples: list[bytes | bytearray | memoryview] = [*values]
        learnt = zstandard.train_dictionary(16 * 1024, samples, k=2000, d=8)
        learnt.precompute_compress(level=1)
        self._pack = zstandard.ZstdCompressor(
            level=1, dict_data=learnt, write_dict_id=False
        ).compress

    def hold(self, fields: Fields) -> bytes:
        """Hold one object; its published bytes."""
        return self._take(fields)[1]

    def say(self, fields: Fields) -> None:
        """Hold one object, and append its record."""
        key, value, held, namespace, name = self._take(fields)
        partition = held.partition
        self._sequences[partition] = sequence = self._sequences[partition] + 1
        headers = [
            ("ce_specversion", b"1.0"), ("ce_source", b"/clusters/floor"), ("ce_wrstream", b"pods"), ("ce_wrepoch", b"1"),
            ("ce_kind", b"Pod"), ("ce_apiversion", b"v1"), ("content-type", b"application/json"),
            ("ce_type", b"dev.watchrelay.object.modified.v1"), ("ce_wrreason", b"watch"), ("ce_time", b"2026-01-01T00:00:00.000Z"),
            ("ce_namespace", namespace), ("ce_name", name), ("ce_subject", key), ("ce_wruid", held.uid.encode()),
            ("ce_wrrv", held.version.encode()), ("ce_wrhash", held.hash.hex().encode()),
            ("ce_id", b"pods.1.%d.%d" % (partition, sequence)), ("ce_sequence", b"%020d" % sequence),
        ]  # fmt: skip
        batch = self._open.get(partition)
        if (
            batch is None
            or batch.append(timestamp=None, key=key, value=value, headers=headers) is None
        ):
            if batch is not None:
                self.full.append((partition, batch))
            batch = self._open[partition] = self._producer.create_batch()
            batch.append(timestamp=None, key=key, value=value, headers=headers)

    def _take(self, fields: Fields) -> tuple[bytes, bytes, _Held, bytes, bytes]:
        metadata = _read_fields(fields["metadata"])
        metadata.pop("managedFields", None)
        namespace, name = _read_text(metadata["namespace"]), _read_text(metadata["name"])
        value = _write({"apiVersion": "v1", "kind": "Pod", **fields, "metadata": metadata})
        key = f"{namespace}/{name}".encode()
        hashed = hashlib.sha256(b"%b\0%b" % (key, value)).digest()[:8]
        was = self._held.get(key)
        partition = zlib.crc32(key) % self._partitions if was is None else was.partition
        uid, version = _read_text(metadata["uid"]), _read_text(metadata["resourceVersion"])
        held = self._held[key] = _Held(uid, version, hashed, partition, self._pack(value))
        return key, value, held, namespace.encode(), name.encode()

    async def flush(self) -> None:
        """Send what is full and what is open, one batch of a partition at a time."""
        batches = [*self.full, *self._open.items()]
        self.full.clear()
        self._open.clear()
        for partition, batch in batches:
            batch.close()
            if partition in self.on_the_way:
                await self.on_the_way[partition]
            self.on_the_way[partition] = await self._producer.send_batch(
                batch, self._topic, partition=partition
            )

    async def flush_forever(self) -> None:
        """Send every few milliseconds."""
        while True:
            await asyncio.sleep(_FLUSH_EVERY_S)
            await self.flush()


async def _list(floor: _Floor, session: aiohttp.ClientSession, url: str) -> str:
    """Publish everything there is; the version of the list."""
    params, trained = {"limit": str(_PAGE)}, False
    while True:
        async with session.get(url, params=params) as answer:
            page = _read_page(await answer.read())
        if not trained:
            floor.train([floor.hold(fields) for fields in page.items])
            trained = True
        for fields in page.items:
            floor.say(fields)
        await floor.flush()
        if "continue" not in page.metadata:
            await asyncio.wait(floor.on_the_way.values())
            return _read_text(page.metadata["resourceVersion"])
        params["continue"] = _read_text(page.metadata["continue"])


async def _run(port: int, bootstrap: str, topic: str, partitions: int) -> None:
    url, rest = f"http://127.0.0.1:{port}/api/v1/pods", b""
    # aiokafka compresses with level 3 and has no setting; level 1 is cheaper, and what the relay
    # uses.
    default_records.zstd_encode = lambda payload: bytes(cramjam.zstd.compress(payload, level=1))
    producer = AIOKafkaProducer(
        bootstrap_servers=bootstrap,
        compression_type="zstd",
        max_batch_size=_BATCH_BYTES,
        max_request_size=8 << 20,
        enable_idempotence=True,
    )
    timeout = aiohttp.ClientTimeout(total=None)
    async with (
        producer,
        aiohttp.ClientSession(timeout=timeout, read_bufsize=128 << 10) as session,
        asyncio.TaskGroup() as tasks,
    ):
        floor = _Floor(producer, topic, partitions)
        version = await _list(floor, session, url)
        gc.collect()
        gc.freeze()
        gc.set_threshold(_YOUNG_OBJECTS, 20, 50)
        tasks.create_task(floor.flush_forever())
        async with session.get(url, params={"watch": "1", "resourceVersion": version}) as watch:
            print("watching", flush=True)
            while chunk := await watch.content.readany():
                end = chunk.rfind(b"\n")
                if end < 0:
                    rest += chunk
                    continue
                for line in _read_lines(rest + chunk[:end]):
                    floor.say(line.object)
                rest = chunk[end + 1 :]
                if floor.full:
                    await floor.flush()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for name in ("port", "bootstrap", "topic", "partitions"):
        parser.add_argument(name, type=int if name in {"port", "partitions"} else str)
    asked = parser.parse_args()
    asyncio.run(_run(asked.port, asked.bootstrap, asked.topic, asked.partitions))
