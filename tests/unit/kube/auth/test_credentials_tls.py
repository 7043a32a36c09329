"""Authorities, certificates, servers on real sockets: claims T69 to T72 about whom we trust."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.support.pki import Ca, tls_server
from tests.unit.kube.auth.kubeconfigs import Clock, b64, load, write_kubeconfig
from watchrelay.core.errors import ConfigError
from watchrelay.kube.auth.credentials import ClusterCredentials


async def get(
    credentials: ClusterCredentials, *, session: aiohttp.ClientSession | None = None
) -> str:
    """What the server answers over a new connection."""
    endpoint = credentials.endpoint
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=10)) as fresh:
        context, name = await credentials.tls(), endpoint.server_hostname
        arguments: dict[str, Any] = {
            "ssl": context,
            "server_hostname": name,
            "proxy": endpoint.proxy,
        }
        async with (session or fresh).get(
            endpoint.url, headers=await credentials.headers(), **arguments
        ) as response:
            return await response.text()


def config_for(
    path: Path,
    port: int,
    cluster: Mapping[str, object] | None = None,
    user: Mapping[str, object] | None = None,
) -> Path:
    return write_kubeconfig(
        path / "config",
        cluster={"server": f"https://localhost:{port}", **(cluster or {})},
        user=user,
    )


async def test_T69_a_replaced_ca_file_is_trusted_within_5_minutes_and_the_context_changes_only_then(
    tmp_path: Path,
) -> None:
    old, new, clock, file = Ca("old"), Ca("new"), Clock(), tmp_path / "ca.crt"
    file.write_bytes(old.pem)
    async with tls_server(old.issue("api")) as port_old, tls_server(new.issue("api")) as port_new:
        before = load(
            config_for(tmp_path, port_old, {"certificate-authority": "ca.crt"}), clock=clock
        )
        after = load(
            config_for(tmp_path, port_new, {"certificate-authority": "ca.crt"}), clock=clock
        )
        first = await before.tls()
        assert await get(before) == ""
        with pytest.raises(aiohttp.ClientConnectorCertificateError):
            await get(after)
        file.write_bytes("# ü: both\n".encode() + old.pem + b"\n" + new.pem)
        assert await before.tls() is first
        clock.advance(300)
        assert await before.tls() is not first
        assert await get(before) == await get(after) == ""
        file.write_bytes(new.pem)
        clock.advance(300)
        assert await get(after) == ""
        with pytest.raises(aiohttp.ClientConnectorCertificateError):
            await get(before)


async def test_T69_a_connection_that_lives_is_not_disturbed_by_a_new_ca(tmp_path: Path) -> None:
    old, clock, file = Ca("old"), Clock(), tmp_path / "ca.crt"
    file.write_bytes(old.pem)
    async with tls_server(old.issue("api")) as port, aiohttp.ClientSession() as session:
        credentials = load(
            config_for(tmp_path, port, {"certificate-authority": "ca.crt"}), clock=clock
        )
        async with session.get(
            credentials.endpoint.url, ssl=await credentials.tls() or False
        ) as live:
            file.write_bytes(Ca("new").pem)
            clock.advance(300)
            assert await credentials.tls() is not None
            with pytest.raises(aiohttp.ClientConnectorCertificateError):
                await get(credentials, session=session)
            assert await live.text() == ""


@pytest.mark.parametrize("garbage", [b"", b"garbage", None, "cut"])
async def test_T69_a_garbage_ca_file_leaves_the_old_one_in_use(
    tmp_path: Path, garbage: bytes | str | None
) -> None:
    ca, clock, file = Ca(), Clock(), tmp_path / "ca.crt"
    file.write_bytes(ca.pem)
    credentials = load(config_for(tmp_path, 1, {"certificate-authority": "ca.crt"}), clock=clock)
    first = await credentials.tls()
    if garbage is None:
        file.unlink()
    else:
        file.write_bytes(
            garbage if isinstance(garbage, bytes) else ca.pem + ca.pem[: len(ca.pem) // 2]
        )
    clock.advance(300)
    assert await credentials.tls() is first


async def test_T69_a_certificate_that_does_not_verify_has_the_ca_read_at_once(
    tmp_path: Path,
) -> None:
    old, new, file = Ca("old"), Ca("new"), tmp_path / "ca.crt"
    file.write_bytes(old.pem)
    async with tls_server(new.issue("api")) as port:
        clock = Clock()
        credentials = load(
            config_for(tmp_path, port, {"certificate-authority": "ca.crt"}), clock=clock
        )
        with pytest.raises(aiohttp.ClientConnectorCertificateError):
            await get(credentials)
        file.write_bytes(new.pem)
        asked_s = clock.now_s()
        clock.advance(1)
        credentials.distrusted(asked_s)
        assert await get(credentials) == ""
        file.write_bytes(old.pem)
        credentials.distrusted(asked_s)  # of another stream, which asked before the file was read
        assert await get(credentials) == ""


async def test_a_rotated_client_certificate_is_presented_within_5_minutes(tmp_path: Path) -> None:
    ca, clock = Ca(), Clock()
    ca.issue("first").write(tmp_path, "client")
    async with tls_server(ca.issue("api"), client_ca=ca) as port:
        user = {"client-certificate": "client.crt", "client-key": "client.key"}
        credentials = load(
            config_for(tmp_path, port, {"certificate-authority-data": b64(ca.pem)}, user),
            clock=clock,
        )
        assert await get(credentials) == "first"
        second = ca.issue("second")
        (tmp_path / "client.crt").write_bytes(second.certificate)
        clock.advance(300)
        assert await get(credentials) == "first", (
            "a certificate whose key has not come yet is not used"
        )
        (tmp_path / "client.key").write_bytes(second.key)
        clock.advance(300)
        assert await get(credentials) == "second"


async def test_a_client_certificate_from_data_leaves_no_file_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ca, scratch = Ca(), tmp_path / "scratch"
    scratch.mkdir()
    pair = ca.issue("from-data")
    user = {"client-certificate-data": b64(pair.certificate), "client-key-data": b64(pair.key)}
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    async with tls_server(ca.issue("api"), client_ca=ca) as port:
        config = config_for(tmp_path, port, {"certificate-authority-data": b64(ca.pem)}, user)
        assert await get(load(config)) == "from-data"
    assert list(scratch.iterdir()) == []


def test_unusable_client_certificates_are_refused_at_the_start(tmp_path: Path) -> None:
    ca = Ca()
    pair, other, locked = ca.issue("a"), ca.issue("b"), ca.issue("c", passphrase="hunter2")
    for certificate, key, message in (
        (pair.certificate, other.key, "the key does not belong to the certificate"),
        (
            locked.certificate,
            locked.key,
            "the private key is encrypted; only keys without a passphrase can be used",
        ),
        (b"x", pair.key, "is not a PEM certificate and key"),
    ):
        user = {"client-certificate-data": b64(certificate), "client-key-data": b64(key)}
        with pytest.raises(ConfigError) as caught:
            load(config_for(tmp_path, 1, user=user))
        assert (
            str(caught.value)
            == f"{tmp_path}/config:1: users[prod].user: client-certificate-data: {message}"
        )


async def test_T70_tls_server_name_is_what_the_certificate_must_carry(tmp_path: Path) -> None:
    ca = Ca()
    async with tls_server(ca.issue("api", dns="api.internal", ip="")) as port:
        data = {"certificate-authority-data": b64(ca.pem)}
        assert (
            await get(load(config_for(tmp_path, port, {**data, "tls-server-name": "api.internal"})))
            == ""
        )
        with pytest.raises(aiohttp.ClientConnectorCertificateError):
            await get(load(config_for(tmp_path, port, data)))


async def test_T70_insecure_skip_tls_verify_trusts_anyone(tmp_path: Path) -> None:
    async with tls_server(Ca().issue("api", dns="other", ip="")) as port:
        assert await get(load(config_for(tmp_path, port, {"insecure-skip-tls-verify": True}))) == ""


async def test_T70_without_a_ca_the_systems_are_trusted(tmp_path: Path) -> None:
    async with tls_server(Ca().issue("api")) as port:
        credentials = load(config_for(tmp_path, port))
        context = await credentials.tls()
        assert context is not None
        assert context.verify_mode == ssl.CERT_REQUIRED
        with pytest.raises(aiohttp.ClientConnectorCertificateError):
            await get(credentials)


@asynccontextmanager
async def connect_proxy() -> AsyncIterator[tuple[int, list[str]]]:
    """A proxy that knows CONNECT, and the targets it was asked for."""
    asked: list[str] = []
    served = asyncio.Semaphore(0)

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(65536):
                writer.write(data)
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        target = (await reader.readuntil(b"\r\n\r\n")).split()[1].decode()
        asked.append(target)
        host, _, port = target.rpartition(":")
        far_reader, far_writer = await asyncio.open_connection(host, int(port))
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        async with asyncio.TaskGroup() as pumps:
            pumps.create_task(pump(reader, far_writer), name="up")
            pumps.create_task(pump(far_reader, writer), name="down")
        served.release()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1], asked
        for _ in asked:
            await served.acquire()


async def test_T71_requests_go_through_the_proxy_and_still_verify_the_server(
    tmp_path: Path,
) -> None:
    ca = Ca()
    async with (
        connect_proxy() as (proxy_port, asked),
        tls_server(ca.issue("api", dns="api.internal", ip="")) as port,
    ):
        proxy = {
            "proxy-url": f"http://127.0.0.1:{proxy_port}",
            "certificate-authority-data": b64(ca.pem),
        }
        assert (
            await get(
                load(config_for(tmp_path, port, {**proxy, "tls-server-name": "api.internal"}))
            )
            == ""
        )
        assert asked == [f"localhost:{port}"]
        with pytest.raises(aiohttp.ClientConnectorCertificateError):
            await get(load(config_for(tmp_path, port, proxy)))


async def test_T72_a_ca_without_key_identifiers_connects_and_a_wrong_host_is_refused(
    tmp_path: Path,
) -> None:
    ca = Ca(plain=True)
    async with (
        tls_server(ca.issue("api")) as port,
        tls_server(ca.issue("api", dns="other", ip="")) as elsewhere,
    ):
        data = {"certificate-authority-data": b64(ca.pem)}
        credentials = load(config_for(tmp_path, port, data))
        assert await get(credentials) == ""
        context = await credentials.tls()
        assert context is not None
        assert not context.verify_flags & ssl.VERIFY_X509_STRICT
        # what Python 3.13 would do, and any OpenSSL can
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        with pytest.raises(aiohttp.ClientConnectorCertificateError):
            await get(credentials)
        with pytest.raises(aiohttp.ClientConnectorCertificateError):
            await get(load(config_for(tmp_path, elsewhere, data)))


async def test_T72_an_intermediate_authority_alone_is_an_anchor_as_go_has_it(
    tmp_path: Path,
) -> None:
    intermediate = Ca("intermediate", parent=Ca("root"))
    async with tls_server(intermediate.issue("api")) as port:
        assert (
            await get(
                load(
                    config_for(
                        tmp_path, port, {"certificate-authority-data": b64(intermediate.pem)}
                    )
                )
            )
            == ""
        )


async def test_T69_a_bundle_may_hold_strangers_and_doubles(tmp_path: Path) -> None:
    ca, stranger = Ca(), Ca("stranger")
    async with tls_server(ca.issue("api")) as port:
        bundle = b64(stranger.pem + ca.pem + ca.pem)
        assert (
            await get(load(config_for(tmp_path, port, {"certificate-authority-data": bundle})))
            == ""
        )
