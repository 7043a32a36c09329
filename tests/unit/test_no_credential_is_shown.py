"""No token, password or key in any log line, error, traceback or repr, at the level of debug, of
whatever kind the credential is."""

from __future__ import annotations

import base64
import json
import logging
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from aiokafka.errors import (
    AuthenticationFailedError,
    KafkaConnectionError,
    SaslAuthenticationFailed,
)
from prometheus_client import generate_latest
from pydantic import ValidationError

from tests.support.pki import Ca, tls_server
from tests.support.process import free_port
from tests.support.scripted import Reply, Request, ScriptedServer
from tests.unit.kube.auth.kubeconfigs import b64, write_kubeconfig
from tests.unit.kube.served import PODS, STREAM, watch_from
from watchrelay.config import Settings, load_settings
from watchrelay.core.errors import (
    ConfigError,
    KubeError,
    Misconfigured,
    SinkUnavailable,
)
from watchrelay.kafka.client.client_log import quiet_client_log
from watchrelay.kafka.client.connection import KafkaConnection
from watchrelay.kafka.client.failures import unreachable
from watchrelay.kafka.topics import Topics, TopicSpec
from watchrelay.kube.auth.credentials import load_credentials
from watchrelay.kube.auth.exec_plugin import parse_credential
from watchrelay.kube.auth.kubeconfig import EXEC_EXTENSION, EXEC_VERSIONS, ExecPlugin
from watchrelay.kube.client import KubeClient
from watchrelay.model.frames import ListQuery
from watchrelay.observe.logs import JsonFormatter
from watchrelay.observe.metrics import Metrics

CANARY = "canary-0f-a-credential-1234567890"
FORMS = (
    CANARY,
    base64.b64encode(CANARY.encode()).decode().rstrip("="),
    base64.b64encode(f"u:{CANARY}".encode()).decode(),
)


class Logged(logging.Handler):
    """All that is logged, by the relay and by libraries, as the program would write it and as the
    record is."""

    def __init__(self) -> None:
        super().__init__(logging.NOTSET)
        self.text = ""
        self.setFormatter(JsonFormatter())

    def emit(self, record: logging.LogRecord) -> None:
        self.text += self.format(record) + repr(record.__dict__) + "\n"


@pytest.fixture
def logged() -> Any:
    """Levels are put back by tests/conftest.py."""
    handler = Logged()
    logging.root.addHandler(handler)
    for name in (None, "aiohttp", "aiohttp.client", "aiokafka", "asyncio", "watchrelay"):
        logging.getLogger(name).setLevel(logging.DEBUG)
    yield handler
    logging.root.removeHandler(handler)


def shows(text: str, *forms: str) -> list[str]:
    return [form for form in (*FORMS, *forms) if form in text]


def whole(error: BaseException) -> str:
    """What anybody could print of it."""
    return "".join(traceback.format_exception(error)) + repr(error) + repr(error.args)


def by_token(_: Path) -> dict[str, Any]:
    return {"token": CANARY}


def by_token_file(directory: Path) -> dict[str, Any]:
    (directory / "token").write_text(CANARY)
    return {"tokenFile": "token"}


def by_password(_: Path) -> dict[str, Any]:
    return {"username": "u", "password": CANARY}


def by_plugin(directory: Path) -> dict[str, Any]:
    answer = {
        "kind": "ExecCredential",
        "apiVersion": "client.authentication.k8s.io/v1",
        "status": {"token": CANARY},
    }
    (directory / "answer").write_text(json.dumps(answer))
    plugin = directory / "plugin"
    plugin.write_text(f"#!/bin/sh\necho {CANARY} >&2\ncat {directory}/answer\n")
    plugin.chmod(0o755)
    env = [{"name": "PASSWORD", "value": CANARY}]
    plugged = {
        "apiVersion": answer["apiVersion"],
        "command": str(plugin),
        "args": [f"--client-secret={CANARY}"],
        "env": env,
    }
    return {"exec": {**plugged, "interactiveMode": "Never"}}


KINDS: list[Callable[[Path], dict[str, Any]]] = [by_token, by_token_file, by_password, by_plugin]


async def echo(request: Request, reply: Reply) -> None:
    """As some proxies do: the complaint repeats the request."""
    output = "\n".join(f"{name}: {value}" for name, value in request.raw_headers)
    match request.path.rpartition("/")[2]:
        case "pods" if "watch" in request.query:
            await reply.json(
                403, {"kind": "Status", "code": 403, "reason": "Forbidden", "message": output}
            )
        case "pods":
            await reply.text(401, output)
        case _:
            await reply.text(500, output, {"Retry-After": "1"})


async def failures(client: KubeClient) -> str:
    """Everything that can be asked, refused."""
    output = repr(client) + repr(vars(client))
    try:
        await client.list_page(PODS, ListQuery(), stream=STREAM)
    except KubeError as error:
        output += whole(error)
    try:
        async with client.watch(PODS, watch_from(), stream=STREAM) as frames:
            output += repr(frames)
    except KubeError as error:
        output += whole(error)
    try:
        await client.version()
    except KubeError as error:
        output += whole(error)
    return output


@pytest.mark.parametrize("kind", KINDS)
async def test_a_credential_of_the_kubeconfig_is_sent_and_shown_nowhere(
    kind: Callable[[Path], dict[str, Any]], tmp_path: Path, logged: Logged
) -> None:
    metrics = Metrics()
    async with ScriptedServer(echo) as server:
        extensions = [{"name": EXEC_EXTENSION, "extension": {"secret": CANARY}}]
        config = write_kubeconfig(
            tmp_path / "config",
            cluster={"server": server.url, "extensions": extensions},
            user=kind(tmp_path),
        )
        credentials = load_credentials(str(config), None, environ={})
        async with KubeClient(credentials, metrics) as client:
            output = await failures(client)
            sent = server.requests[0].headers["authorization"]
        assert shows(sent), "the credential was not used"
    async with KubeClient(credentials, metrics) as client:
        output += await failures(client)  # nobody listens any more
    output += (
        repr(credentials) + repr(vars(credentials)) + generate_latest(metrics.registry).decode()
    )
    assert "401" in output
    assert "403" in output
    assert shows(output, sent) == []
    assert shows(logged.text, sent) == []


async def test_the_password_of_a_proxy_and_of_the_servers_url_is_shown_nowhere(
    tmp_path: Path, logged: Logged
) -> None:
    async def refuse(request: Request, reply: Reply) -> None:
        await reply.text(407, f"who is {request.raw_headers}, {CANARY}?")

    output = ""
    async with ScriptedServer(refuse) as proxy:
        for server in (
            "https://api.internal:6443",
            "http://api.internal",
            f"https://u:{CANARY}@api.internal",
        ):
            cluster = {
                "server": server,
                "proxy-url": proxy.url.replace("http://", f"http://u:{CANARY}@"),
            }
            config = write_kubeconfig(tmp_path / "config", cluster=cluster)
            credentials = load_credentials(str(config), None, environ={})
            output += repr(credentials.endpoint) + repr(vars(credentials))
            async with KubeClient(credentials, Metrics()) as client:
                with pytest.raises(KubeError) as caught:
                    await client.list_page(PODS, ListQuery(), stream=STREAM)
                output += str(caught.value) + repr(caught.value) + client.where
    assert "407" in output
    assert shows(output) == []
    assert shows(logged.text) == []


async def test_the_key_of_a_client_certificate_is_shown_nowhere(
    tmp_path: Path, logged: Logged
) -> None:
    pair = Ca().issue("client")
    key = b64(pair.key)
    user = {"client-certificate-data": b64(pair.certificate), "client-key-data": key}
    async with tls_server(Ca().issue("api")) as port:  # of an authority that nobody knows
        config = write_kubeconfig(
            tmp_path / "config", cluster={"server": f"https://localhost:{port}"}, user=user
        )
        credentials = load_credentials(str(config), None, environ={})
        async with KubeClient(credentials, Metrics()) as client:
            output = await failures(client) + repr(credentials) + repr(vars(credentials))
    body = pair.key.decode().splitlines()[1]
    assert shows(output, body, key[80:160]) == []
    assert shows(logged.text, body, key[80:160]) == []


def kafka_by(kind: str, directory: Path) -> dict[str, Any]:
    file = directory / "secret"
    file.write_text(CANARY)
    program = directory / "program"
    program.write_text(f"#!/bin/sh\necho no token: {CANARY} >&2\nexit 3\n")
    program.chmod(0o755)
    kinds: dict[str, dict[str, Any]] = {
        "plain": {"mechanism": "PLAIN", "username": "u", "password": CANARY},
        "scram": {"mechanism": "SCRAM-SHA-512", "username": "u", "password_file": str(file)},
        "oauth file": {"mechanism": "OAUTHBEARER", "token_file": str(file)},
        "oauth command": {"mechanism": "OAUTHBEARER", "token_command": (str(program), CANARY)},
    }
    return kinds[kind]


@pytest.mark.parametrize("kind", ["plain", "scram", "oauth file", "oauth command"])
async def test_a_credential_for_kafka_is_shown_nowhere(
    kind: str, tmp_path: Path, logged: Logged
) -> None:
    connection = KafkaConnection(
        bootstrap_servers=(f"127.0.0.1:{free_port()}",),
        protocol="SASL_PLAINTEXT",
        **kafka_by(kind, tmp_path),
    )
    with pytest.raises(SinkUnavailable) as caught:
        await Topics(connection).check_topic(
            TopicSpec(name="t", partitions=1, replication_factor=1, min_insync_replicas=1)
        )
    output = whole(caught.value) + repr(connection)
    if kind == "oauth command":
        with pytest.raises(
            AuthenticationFailedError, match=r"ended with status 3: no token: \.\.\."
        ) as refused:
            await connection.arguments()["sasl_oauth_token_provider"].token()
        output += whole(refused.value)
    assert shows(output) == []
    assert shows(logged.text) == []


def test_what_a_plugin_answers_is_shown_nowhere() -> None:
    answer = {"kind": "ExecCredential", "apiVersion": EXEC_VERSIONS[0], "status": {"token": CANARY}}
    assert shows(repr(parse_credential(json.dumps(answer).encode(), ExecPlugin("p")))) == []
    for odd in (
        CANARY,
        json.dumps({**answer, "status": CANARY}),
        json.dumps({**answer, "status": {"token": [CANARY]}}),
    ):
        with pytest.raises(Misconfigured) as refused:
            parse_credential(odd.encode(), ExecPlugin("p"))
        assert shows(whole(refused.value)) == []


@pytest.mark.parametrize("kind", ["plain", "scram", "oauth file"])
async def test_what_a_broker_repeats_of_a_credential_is_shown_nowhere(
    kind: str, tmp_path: Path, logged: Logged
) -> None:
    """Its complaint is its own words; aiokafka hands them on in an exception, and in its log."""
    connection = KafkaConnection(
        bootstrap_servers=("b:1",), protocol="SASL_SSL", **kafka_by(kind, tmp_path)
    )
    complaint = SaslAuthenticationFailed(f"nobody comes in with {CANARY}")
    quiet_client_log()
    arguments = connection.arguments()
    if kind == "oauth file":
        assert await arguments["sasl_oauth_token_provider"].token() == CANARY
    logging.getLogger("aiokafka").error('Unable connect to "%s:%s": %s', "b", 1, complaint)
    output = whole(unreachable(connection, KafkaConnectionError("x"), complaint)) + whole(
        unreachable(connection, complaint)
    )
    assert "nobody comes in with <redacted>" in output
    assert "nobody comes in with <redacted>" in logged.text
    assert shows(output) == []
    assert shows(logged.text) == []


def test_no_secret_of_the_config_is_in_its_repr(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(
        "cluster: c\nkafka: {bootstrapServers: [k:9092], security: {protocol: SASL_SSL, "
        "mechanism: PLAIN, username: u, "
        f"password: {CANARY}}}}}\nresources: [{{resource: pods}}]\n"
    )
    settings = load_settings(str(file), environ={})
    assert shows(repr(settings) + str(settings) + settings.model_dump_json()) == []
    assert settings.kafka.security.password is not None
    assert settings.kafka.security.password.get_secret_value() == CANARY


@pytest.mark.parametrize("password", [f"[{CANARY}]", f"{{a: {CANARY}}}"])
def test_a_password_of_another_shape_is_refused_without_being_repeated(
    password: str, tmp_path: Path
) -> None:
    file = tmp_path / "c.yaml"
    security = f"{{protocol: SASL_SSL, mechanism: PLAIN, username: u, password: {password}}}"
    file.write_text(
        f"cluster: c\nkafka: {{bootstrapServers: [k:9092], security: {security}}}\nresources: "
        "[{resource: pods}]\n"
    )
    with pytest.raises(ConfigError) as caught:
        load_settings(str(file), environ={})
    assert shows(whole(caught.value)) == []
    # what pydantic says itself, should it ever reach a log
    with pytest.raises(ValidationError) as raw:
        Settings.model_validate({"kafka": {"security": {"password": [CANARY]}}})
    assert shows(str(raw.value) + repr(raw.value)) == []
