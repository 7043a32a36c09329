"""How the client reaches the server, over real sockets: proxies, refusals, certificates."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import pytest

from tests.support.pki import Ca
from tests.support.process import free_port
from tests.support.scripted import Reply, Request, ScriptedServer
from tests.support.socks import SocksProxy
from tests.unit.kube.served import (
    PODS,
    STREAM,
    KnownCredentials,
    client_of,
    list_from,
    listed,
    pod,
)
from watchrelay.core.errors import (
    Misconfigured,
    Unavailable,
    Unreachable,
)
from watchrelay.kube.auth.transport import Endpoint
from watchrelay.model.frames import ListQuery


async def test_T71_a_redirect_is_never_followed() -> None:
    async def handler(request: Request, reply: Reply) -> None:
        await reply.text(302, "", {"Location": "/login"})

    async with ScriptedServer(handler) as server:
        with pytest.raises(Unavailable, match="redirect"):
            await list_from(server)
        assert [request.path for request in server.requests] == ["/api/v1/pods"]


async def test_T71_a_proxy_is_asked_for_the_servers_own_url() -> None:
    async def handler(request: Request, reply: Reply) -> None:
        await reply.json(200, listed(pod("a")))

    async with ScriptedServer(handler) as proxy:
        credentials = KnownCredentials("http://kubernetes.invalid:6443")
        credentials.endpoint = Endpoint("http://kubernetes.invalid:6443", proxy=proxy.url)
        async with client_of("", credentials=credentials) as client:
            page = await client.list_page(PODS, ListQuery(), stream=STREAM)
        assert len(page.objects) == 1
        assert proxy.requests[0].headers["host"] == "kubernetes.invalid:6443"


@pytest.mark.parametrize("login", [None, ("me", "hunter2")])
async def test_T71_a_socks_proxy_leads_to_a_name_that_only_it_knows(
    login: tuple[str, str] | None,
) -> None:
    async def handler(request: Request, reply: Reply) -> None:
        await reply.json(200, listed(pod("a")))

    async with (
        ScriptedServer(handler) as server,
        SocksProxy(int(server.url.rpartition(":")[2]), login=login) as proxy,
    ):
        credentials = KnownCredentials("http://kubernetes.invalid:6443")
        user = f"{':'.join(login)}@" if login else ""
        credentials.endpoint = Endpoint(
            "http://kubernetes.invalid:6443", proxy=f"socks5://{user}127.0.0.1:{proxy.port}"
        )
        async with client_of("", credentials=credentials) as client:
            page = await client.list_page(PODS, ListQuery(), stream=STREAM)
        assert len(page.objects) == 1
        assert proxy.asked == [("kubernetes.invalid", 6443)]


async def test_an_http_proxy_that_is_gone_is_named() -> None:
    port = free_port()
    credentials = KnownCredentials("http://kubernetes.invalid:6443")
    credentials.endpoint = Endpoint(
        "http://kubernetes.invalid:6443", proxy=f"http://127.0.0.1:{port}"
    )
    async with client_of("", credentials=credentials) as client:
        with pytest.raises(
            Unreachable,
            match=rf"6443: the proxy 127\.0\.0\.1:{port} cannot be reached: connection refused",
        ):
            await client.list_page(PODS, ListQuery(), stream=STREAM)


async def test_T71_a_socks_proxy_that_refuses_or_is_gone_is_reported_without_the_password() -> None:
    async with SocksProxy(1, login=("me", "right")) as proxy:
        credentials = KnownCredentials("http://kubernetes.invalid:6443")
        credentials.endpoint = Endpoint(
            "http://kubernetes.invalid:6443", proxy=f"socks5://me:hunter2@127.0.0.1:{proxy.port}"
        )
        async with client_of("", credentials=credentials) as client:
            with pytest.raises(
                Unreachable, match=r"kubernetes\.invalid:6443: the proxy 127\.0\.0\.1:\d+ refused: "
            ) as raised:
                await client.list_page(PODS, ListQuery(), stream=STREAM)
            assert "hunter2" not in str(raised.value)
            proxy.close()
            with pytest.raises(
                Unreachable, match=r"6443: the proxy 127\.0\.0\.1:\d+ cannot be reached"
            ):
                await client.list_page(PODS, ListQuery(), stream=STREAM)


@pytest.mark.parametrize(
    "endpoint",
    [
        Endpoint("https://prod..example.com:6443"),
        Endpoint("https://\u00fc..example.com:6443"),
        Endpoint("https://api.invalid:99999"),
        Endpoint("https://api.invalid", proxy="http://proxy..example.com:3128"),
        Endpoint("https://api.invalid", proxy="socks5://proxy..example.com:1080"),
    ],
)
async def test_a_host_that_cannot_exist_needs_a_person(endpoint: Endpoint) -> None:
    credentials = KnownCredentials("")
    credentials.endpoint = endpoint
    async with client_of("", credentials=credentials) as client:
        with pytest.raises(Misconfigured, match="cannot be used"):
            await client.list_page(PODS, ListQuery(), stream=STREAM)


async def test_a_refused_connection_names_the_server() -> None:
    async def handler(request: Request, reply: Reply) -> None: ...

    async with ScriptedServer(handler) as server:
        url, port = server.url, server.port
    async with client_of(url) as client:
        with pytest.raises(Unavailable, match=f"list pods at 127.0.0.1:{port}: connection refused"):
            await client.list_page(PODS, ListQuery(), stream=STREAM)


async def test_an_answer_that_is_not_http_is_unavailable() -> None:
    async def handler(request: Request, reply: Reply) -> None:
        reply.started = True
        await reply.raw(b"SSH-2.0-OpenSSH_9.6\r\n\r\n")
        await reply.fin()

    async with ScriptedServer(handler) as server:
        with pytest.raises(Unavailable, match="not HTTP"):
            await list_from(server)


def serving_tls(authority: Ca, directory: Path) -> ScriptedServer:
    """A list of one pod, by a server whose certificate is of `authority`."""

    async def handler(request: Request, reply: Reply) -> None:
        await reply.json(200, listed(pod("a")))

    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(*authority.issue("server").write(directory, "server"))
    return ScriptedServer(handler, ssl_context=serving)


async def test_an_untrusted_or_misnamed_certificate_needs_a_person_and_the_message_names_the_cure(
    tmp_path: Path,
) -> None:
    authority = Ca()
    async with serving_tls(authority, tmp_path) as server:
        trusting = ssl.create_default_context(cadata=authority.pem.decode())
        for credentials, match in (
            (
                KnownCredentials(server.url, tls=ssl.create_default_context()),
                "not trusted .* certificate-authority",
            ),
            (
                KnownCredentials(server.url, tls=trusting, server_hostname="kubernetes.invalid"),
                "tls-server-name",
            ),
        ):
            async with client_of(server.url, credentials=credentials) as client:
                with pytest.raises(Misconfigured, match=match):
                    await client.list_page(PODS, ListQuery(), stream=STREAM)
        async with client_of(
            server.url,
            credentials=KnownCredentials(server.url, tls=trusting, server_hostname="localhost"),
        ) as client:
            assert len((await client.list_page(PODS, ListQuery(), stream=STREAM)).objects) == 1


async def test_a_certificate_that_verifies_once_the_ca_is_read_again_costs_no_error(
    tmp_path: Path,
) -> None:
    authority = Ca()
    async with serving_tls(authority, tmp_path) as server:
        credentials = KnownCredentials(server.url, tls=ssl.create_default_context())
        credentials.context_after_distrust = ssl.create_default_context(
            cadata=authority.pem.decode()
        )
        async with client_of(server.url, credentials=credentials) as client:
            assert len((await client.list_page(PODS, ListQuery(), stream=STREAM)).objects) == 1


async def test_plain_http_behind_an_https_url_is_reported_in_words() -> None:
    async def plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(plain, "127.0.0.1", 0) as server:
        url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with client_of(
            url, credentials=KnownCredentials(url, tls=ssl.create_default_context())
        ) as client:
            with pytest.raises(Unavailable, match="does not speak TLS"):
                await client.list_page(PODS, ListQuery(), stream=STREAM)
