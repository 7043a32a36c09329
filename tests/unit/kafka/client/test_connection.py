"""Which arguments aiokafka gets from settings and files, and what an operator reads about
failures."""

import os
import ssl
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, cast

import pytest
from aiokafka.errors import (
    AuthenticationFailedError,
    KafkaConnectionError,
    SaslAuthenticationFailed,
    TopicAuthorizationFailedError,
)
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from tests.support.pki import Ca
from watchrelay.core.errors import SinkForbidden, SinkMisconfigured, SinkUnavailable
from watchrelay.kafka.client.connection import KafkaConnection, Mechanism
from watchrelay.kafka.client.failures import unreachable

SERVERS = ("kafka-0:9092", "kafka-1:9092")


def scram(**more: str) -> KafkaConnection:
    fixed: dict[str, Any] = {"protocol": "SASL_PLAINTEXT", "mechanism": "SCRAM-SHA-512"}
    return KafkaConnection(bootstrap_servers=SERVERS, **fixed, **cast("Any", more))


def encrypted(key: Path, password: bytes) -> Path:
    loaded = load_pem_private_key(key.read_bytes(), None)
    path = key.with_suffix(".encrypted")
    path.write_bytes(
        loaded.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(password))
    )
    return path


def test_plaintext_needs_nothing_but_the_servers() -> None:
    assert KafkaConnection(bootstrap_servers=SERVERS, client_id="c").arguments() == {
        "bootstrap_servers": list(SERVERS),
        "client_id": "c",
        "security_protocol": "PLAINTEXT",
    }


def test_secrets_are_read_again_each_time_without_the_line_end(tmp_path: Path) -> None:
    user, password = tmp_path / "user", tmp_path / "password"
    user.write_text("relay\n")
    password.write_text("one\r\n")
    connection = scram(username_file=str(user), password_file=str(password))
    assert connection.arguments()["sasl_plain_password"] == "one"
    password.write_text(" two ")
    arguments = connection.arguments()
    assert (arguments["sasl_plain_username"], arguments["sasl_plain_password"]) == (
        "relay",
        " two ",
    )


def test_a_password_is_in_no_message() -> None:
    assert "hunter2" not in repr(scram(username="u", password="hunter2"))


def test_a_secret_that_cannot_be_read_is_named_by_its_setting(tmp_path: Path) -> None:
    with pytest.raises(
        SinkUnavailable,
        match=r"kafka\.security\.passwordFile .*/absent cannot be read: No such file",
    ):
        scram(username="u", password_file=str(tmp_path / "absent")).arguments()


def test_sasl_without_user_or_password_is_reported() -> None:
    with pytest.raises(SinkUnavailable, match="needs a mechanism, a user and a password"):
        scram(username="u").arguments()


def test_tls_trusts_the_given_authority_alone_and_checks_names_unless_configured_otherwise(
    tmp_path: Path,
) -> None:
    ca = str(Ca().write(tmp_path))
    for check in (True, False):
        context = KafkaConnection(
            bootstrap_servers=SERVERS, protocol="SSL", ca_file=ca, check_hostname=check
        ).arguments()["ssl_context"]
        assert isinstance(context, ssl.SSLContext)
        assert context.check_hostname is check
        assert context.verify_mode is ssl.CERT_REQUIRED
        assert len(context.get_ca_certs()) == 1


def _shake_hands(context: ssl.SSLContext, server: ssl.SSLContext) -> None:
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        context.wrap_bio(to_client, to_server, server_hostname="localhost"),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    for end in ends * 4:
        with suppress(ssl.SSLWantReadError):
            end.do_handshake()
    ends[0].getpeercert()


@pytest.mark.parametrize("authority", [Ca(plain=True), Ca("intermediate", parent=Ca("root"))])
def test_authorities_that_the_strict_rules_of_newer_pythons_refuse_are_trusted(
    authority: Ca, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_before = ssl.create_default_context

    def as_in_python_3_13(*, cafile: str | None) -> ssl.SSLContext:
        context = as_before(cafile=cafile)
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        return context

    monkeypatch.setattr(ssl, "create_default_context", as_in_python_3_13)
    connection = KafkaConnection(
        bootstrap_servers=SERVERS, protocol="SSL", ca_file=str(authority.write(tmp_path))
    )
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(*authority.issue("broker").write(tmp_path, "broker"))
    _shake_hands(connection.arguments()["ssl_context"], server)
    with pytest.raises(ssl.SSLCertVerificationError) as strict:
        _shake_hands(as_in_python_3_13(cafile=connection.ca_file), server)
    failure = unreachable(connection, KafkaConnectionError(str(strict.value)))
    assert isinstance(failure, SinkMisconfigured)


def test_files_that_settings_leave_empty_are_not_looked_for() -> None:
    context = KafkaConnection(
        bootstrap_servers=SERVERS,
        protocol="SSL",
        ca_file="",
        cert_file="",
        key_file="",
        key_password_file="",
    ).arguments()["ssl_context"]
    assert context.verify_mode is ssl.CERT_REQUIRED
    with pytest.raises(SinkUnavailable, match="needs a mechanism, a user and a password"):
        scram(username="u", password="", username_file="", password_file="").arguments()


def test_a_client_certificate_is_loaded_also_with_an_encrypted_key(tmp_path: Path) -> None:
    authority = Ca()
    issued = authority.issue("relay").write(tmp_path, "relay")
    key, password = encrypted(issued.key, b"secret"), tmp_path / "key-password"
    password.write_text("secret\n")

    def with_password(path: str | None) -> KafkaConnection:
        return KafkaConnection(
            bootstrap_servers=SERVERS,
            protocol="SSL",
            ca_file=str(authority.write(tmp_path)),
            cert_file=str(issued.certificate),
            key_file=str(key),
            key_password_file=path,
        )

    assert "ssl_context" in with_password(str(password)).arguments()
    # Nobody is asked on the terminal for it.
    with pytest.raises(
        SinkUnavailable, match=r"kafka\.security\.certFile .* keyPasswordFile must be right"
    ):
        with_password(None).arguments()
    password.write_text("x" * 1025)
    with pytest.raises(SinkMisconfigured, match="password cannot be longer than 1024 bytes"):
        with_password(str(password)).arguments()


def test_files_that_hold_no_certificates_are_named(tmp_path: Path) -> None:
    rubbish = tmp_path / "rubbish"
    rubbish.write_text("rubbish")
    for ca in (rubbish, tmp_path / "absent"):
        with pytest.raises(SinkUnavailable, match=r"kafka\.security\.caFile .* cannot be used"):
            KafkaConnection(bootstrap_servers=SERVERS, protocol="SSL", ca_file=str(ca)).arguments()


@pytest.mark.parametrize("name", ["ca_file", "cert_file", "key_file"])
@pytest.mark.parametrize(
    ("odd", "why"), [("x" * 300, "File name too long"), ("\0", "embedded null byte")]
)
def test_a_file_that_cannot_be_looked_at_is_named(
    tmp_path: Path, name: str, odd: str, why: str
) -> None:
    """As in a directory that the user may not enter, which for root there is none."""
    files = {"cert_file": str(Ca().write(tmp_path)), name: str(tmp_path / odd)}
    connection = KafkaConnection(bootstrap_servers=SERVERS, protocol="SSL", **cast("Any", files))
    with pytest.raises(SinkMisconfigured, match=f"cannot be used: {why}"):
        connection.arguments()


@pytest.mark.parametrize(
    ("mechanism", "expected"),
    [("OAUTHBEARER", "needs tokenFile or tokenCommand"), ("AWS_MSK_IAM", "awsRegion")],
)
async def test_tokens_need_a_source(mechanism: Mechanism, expected: str) -> None:
    with pytest.raises(SinkUnavailable, match=expected):
        KafkaConnection(
            bootstrap_servers=SERVERS, protocol="SASL_SSL", mechanism=mechanism
        ).arguments()


async def test_a_missing_signer_names_the_extra_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "aws_msk_iam_sasl_signer", None)
    with pytest.raises(
        SinkMisconfigured, match=r"pip install 'watchrelay\[msk\]'; the image has it"
    ):
        KafkaConnection(
            bootstrap_servers=SERVERS,
            protocol="SASL_SSL",
            mechanism="AWS_MSK_IAM",
            aws_region="eu-west-1",
        ).arguments()


async def test_a_token_file_serves_oauthbearer(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("abc\n")
    connection = KafkaConnection(
        bootstrap_servers=SERVERS,
        protocol="SASL_SSL",
        mechanism="OAUTHBEARER",
        token_file=str(token),
    )
    provider = connection.arguments()["sasl_oauth_token_provider"]
    assert await provider.token() == "abc"
    token.unlink()
    with pytest.raises(AuthenticationFailedError, match="no token for OAUTHBEARER"):
        await provider.token()


@pytest.mark.parametrize(
    ("message", "cure"),
    [
        ("certificate verify failed: unable to get local issuer certificate", "set kafka.security.caFile"),
        ("[SSL: WRONG_VERSION_NUMBER] wrong version number", "check kafka.security.protocol"),
        ("[Error 58] SaslAuthenticationFailed: x", "the broker refused the credentials"),
        ("[Error 34] IllegalSaslStateError: <AIOKafkaConnection host=b port=1>", "this port wants no user"),
        (
            (
                "IncompatibleBrokerVersion: SaslHandShakeRequest cannot be used if the API version "
                "is unknown"
            ),
            "this port wants no user",
        ),
        ("certificate verify failed: certificate has expired (_ssl.c:1000)", "set this machine's clock"),
        ("certificate verify failed: certificate is not yet valid (_ssl.c:1000)", "set this machine's clock"),
        ("Hostname mismatch, certificate is not valid for 'x'", "correct kafka.bootstrapServers"),
        ("Connection at b:1 closed", "does this port speak TLS"),
        ("[Errno 104] Connection reset by peer", "does this port speak TLS"),
        ("Not authorized to read from topic t.", "grant READ on it"),
        ("[Error 31] ClusterAuthorizationFailedError", "this user may write no topic at all: grant WRITE on the topic prefix"),
        ("[Error 29] TopicAuthorizationFailedError: t", "grant READ and WRITE on it or its prefix"),
        ("[SSL: X] sslv3 alert bad certificate (_ssl.c:2580)", "wants a client certificate"),
        ("[SSL: X] sslv3 alert certificate unknown (_ssl.c:2580)", "does not know the authority"),
        ("", "OSError"),
        ("something new", "something new"),
    ],
)  # fmt: skip
def test_why_the_newest_connection_failed_is_reported_with_a_cure(message: str, cure: str) -> None:
    error = unreachable(
        KafkaConnection(bootstrap_servers=SERVERS),
        KafkaConnectionError("Unable to bootstrap"),
        OSError(message),
    )
    assert str(error).startswith("kafka at kafka-0:9092,kafka-1:9092 is not usable: ")
    assert cure in str(error)
    assert "\n" not in str(error)


@pytest.mark.parametrize("protocol", ["PLAINTEXT", "SSL"])
def test_a_silent_broker_is_reported_with_its_likely_causes_first(
    protocol: Literal["PLAINTEXT", "SSL"],
) -> None:
    error = unreachable(
        KafkaConnection(bootstrap_servers=SERVERS, protocol=protocol),
        KafkaConnectionError("Unable to bootstrap"),
        TimeoutError(),
    )
    places = [
        str(error).index(word)
        for word in (
            "no answer in time",
            "frozen",
            "overloaded",
            "starting",
            "firewall",
            "kafka.security.protocol",
        )
    ]
    assert places == sorted(places)
    assert not isinstance(error, SinkMisconfigured)


def test_an_error_that_does_not_end_a_connection_is_reported_itself() -> None:
    connection = KafkaConnection(bootstrap_servers=SERVERS)
    assert "no answer in time" in str(unreachable(connection, TimeoutError()))
    assert "Unable to bootstrap" in str(
        unreachable(connection, KafkaConnectionError("Unable to bootstrap"))
    )
    forbidden = TopicAuthorizationFailedError("k8s.c.pods")
    assert "k8s.c.pods" in str(unreachable(connection, forbidden, ConnectionResetError()))


@pytest.mark.parametrize(
    ("message", "person"),
    [
        ("[Error 58] SaslAuthenticationFailed", True),
        ("certificate verify failed: unable to get local issuer certificate", True),
        ("[Errno 111] Connect call failed", False),
        ("[Errno -2] Name or service not known", False),
    ],
)
def test_what_requires_operator_action_is_distinguished_from_an_unreachable_broker(
    message: str, person: bool
) -> None:
    error = unreachable(
        KafkaConnection(bootstrap_servers=SERVERS),
        KafkaConnectionError("Unable to bootstrap"),
        OSError(message),
    )
    assert isinstance(error, SinkMisconfigured) is person


@pytest.mark.parametrize(
    ("message", "right"),
    [
        ("Not authorized to read from topic k8s.c.pods", True),
        ("[Error 29] TopicAuthorizationFailedError: k8s.c.pods", True),
        ("[Error 31] ClusterAuthorizationFailedError", True),
        ("[Error 58] SaslAuthenticationFailed", False),
    ],
)
def test_a_missing_right_is_distinguished_from_wrong_credentials(message: str, right: bool) -> None:
    error = unreachable(
        KafkaConnection(bootstrap_servers=SERVERS),
        KafkaConnectionError("Unable to bootstrap"),
        OSError(message),
    )
    assert isinstance(error, SinkForbidden) is right


def test_a_file_that_cannot_be_read_is_a_persons_to_mend() -> None:
    with pytest.raises(SinkMisconfigured):
        KafkaConnection(bootstrap_servers=SERVERS, protocol="SSL", ca_file="/absent/ca").arguments()


def test_a_silence_is_not_explained_by_an_earlier_failure_of_a_connection() -> None:
    silence = TimeoutError("no records of t for 60 s, and its end is not reached")
    error = str(unreachable(scram(), silence, SaslAuthenticationFailed("of another time")))
    assert f" stopped answering: {silence} (most likely the broker is frozen" in error


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (None, "it is a pipe without a writer"),
        ("/dev/zero", "it holds more than 64 KiB, which no secret has"),
        (b"s\xffcret", "can't decode byte 0xff"),
    ],
)
async def test_a_secret_that_is_no_file_of_text_is_refused_and_neither_waited_for_nor_shown(
    content: bytes | str | None, expected: str, tmp_path: Path
) -> None:
    """Everything else of the daemon waits while a password is read."""
    file = tmp_path / "secret"
    if content is None:
        os.mkfifo(file)
    elif isinstance(content, str):
        file.symlink_to(content)
    else:
        file.write_bytes(content)
    plain = KafkaConnection(
        bootstrap_servers=SERVERS,
        protocol="SASL_SSL",
        mechanism="PLAIN",
        username="u",
        password_file=str(file),
    )
    with pytest.raises(
        SinkMisconfigured, match=f"kafka.security.passwordFile {file} cannot be read: .*{expected}"
    ) as refused:
        plain.arguments()
    assert refused.value.__cause__ is None, "it holds the bytes that could not be read"
    if not isinstance(content, bytes):
        trusting = KafkaConnection(bootstrap_servers=SERVERS, protocol="SSL", ca_file=str(file))
        known = KafkaConnection(
            bootstrap_servers=SERVERS, protocol="SSL", cert_file=str(file), key_file=str(file)
        )
        for name, connection in (("caFile", trusting), ("certFile", known)):
            with pytest.raises(
                SinkMisconfigured,
                match=f"kafka.security.{name} {file} cannot be used: it is no regular file",
            ):
                connection.arguments()
    token = KafkaConnection(
        bootstrap_servers=SERVERS,
        protocol="SASL_SSL",
        mechanism="OAUTHBEARER",
        token_file=str(file),
    )
    with pytest.raises(AuthenticationFailedError, match="no token for OAUTHBEARER: "):
        await token.arguments()["sasl_oauth_token_provider"].token()
