"""Kubeconfigs, token files, impersonation: claims T64, T70, T73 about who we say we are and
where we go."""

import logging
from pathlib import Path

import pytest

from tests.support.pki import Ca
from tests.unit.kube.auth.kubeconfigs import Clock, b64, load, refusal, write_kubeconfig
from watchrelay.core.errors import ConfigError
from watchrelay.kube.auth.credentials import ClusterCredentials, load_credentials


async def authorization(credentials: ClusterCredentials) -> str | None:
    return dict(await credentials.headers()).get("Authorization")


# ---- T64 -----------------------------------------------------------------------------------------


async def test_T64_a_rotated_token_file_is_used_within_60_seconds_and_stripped(
    tmp_path: Path,
) -> None:
    clock, token = Clock(), tmp_path / "token"
    token.write_text("old\n")
    credentials = load(
        write_kubeconfig(tmp_path / "config", user={"tokenFile": "token"}), clock=clock
    )
    assert await authorization(credentials) == "Bearer old"
    token.write_text("  new\r\n\n")
    clock.advance(60)
    assert await authorization(credentials) == "Bearer new"


@pytest.mark.parametrize("spoiled", [b"", b" \n", b"a\nb", b"\xff\xfe", None])
async def test_T64_an_unusable_token_file_leaves_the_old_token_in_use(
    tmp_path: Path, spoiled: bytes | None
) -> None:
    clock, token = Clock(), tmp_path / "token"
    token.write_text("old")
    credentials = load(
        write_kubeconfig(tmp_path / "config", user={"tokenFile": "token"}), clock=clock
    )
    token.unlink() if spoiled is None else token.write_bytes(spoiled)
    for _ in range(3):
        clock.advance(61)
        assert await authorization(credentials) == "Bearer old"
    token.write_text("new")
    clock.advance(61)
    assert await authorization(credentials) == "Bearer new"


async def test_T64_a_401_has_the_token_file_read_at_once(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("old")
    clock = Clock()
    credentials = load(
        write_kubeconfig(tmp_path / "config", user={"tokenFile": "token", "token": "ignored"}),
        clock=clock,
    )
    assert await authorization(credentials) == "Bearer old"
    token.write_text("new")
    assert await authorization(credentials) == "Bearer old"
    await credentials.rejected(clock.now_s())
    assert await authorization(credentials) == "Bearer new"


async def test_T64_many_401s_read_the_token_file_once(tmp_path: Path) -> None:
    clock, token = Clock(), tmp_path / "token"
    token.write_text("refused")
    credentials = load(
        write_kubeconfig(tmp_path / "config", user={"tokenFile": "token"}), clock=clock
    )
    assert await authorization(credentials) == "Bearer refused"
    asked_s = clock.now_s()
    clock.advance(1)
    for content in ("read", "not read", "nor this"):
        token.write_text(content)
        await credentials.rejected(asked_s)
        assert await authorization(credentials) == "Bearer read", (
            "what was read since the request was sent, it did not have"
        )
    asked_s = clock.now_s()
    clock.advance(1)
    await credentials.rejected(asked_s)
    assert await authorization(credentials) == "Bearer nor this"


def test_a_token_file_that_is_missing_at_the_start_is_named(tmp_path: Path) -> None:
    message = refusal(write_kubeconfig(tmp_path / "config", user={"tokenFile": "token"}))
    assert message == (
        f"{tmp_path}/config:1: users[prod].user: tokenFile: {tmp_path}/token: No such "
        "file or directory"
    )


# ---- where the credentials come from -------------------------------------------------------------


def in_cluster(tmp_path: Path) -> tuple[Path, dict[str, str]]:
    account = tmp_path / "serviceaccount"
    account.mkdir()
    (account / "token").write_text("pod-token\n")
    (account / "ca.crt").write_bytes(Ca().pem)
    return account, {
        "KUBERNETES_SERVICE_HOST": "10.0.0.1",
        "KUBERNETES_SERVICE_PORT": "443",
        "HOME": str(tmp_path),
    }


async def test_the_service_account_goes_before_kubeconfig_unless_a_context_or_file_is_asked_for(
    tmp_path: Path,
) -> None:
    account, environ = in_cluster(tmp_path)
    config = write_kubeconfig(tmp_path / ".kube/config", user={"token": "home"})
    environ["KUBECONFIG"] = str(config)
    for kubeconfig, context, expected in (
        (None, None, ("https://10.0.0.1:443", "Bearer pod-token")),
        (None, "prod", ("https://127.0.0.1:6443", "Bearer home")),
        (str(config), None, ("https://127.0.0.1:6443", "Bearer home")),
    ):
        credentials = load_credentials(
            kubeconfig, context, environ=environ, service_account=account
        )
        assert (credentials.endpoint.url, await authorization(credentials)) == expected


def test_T70_an_ipv6_service_host_is_bracketed(tmp_path: Path) -> None:
    account, environ = in_cluster(tmp_path)
    environ["KUBERNETES_SERVICE_HOST"] = "fd00::1"
    assert (
        load_credentials(None, None, environ=environ, service_account=account).endpoint.url
        == "https://[fd00::1]:443"
    )


async def test_kubeconfig_variable_goes_before_the_home_directory(tmp_path: Path) -> None:
    write_kubeconfig(tmp_path / ".kube/config", user={"token": "home"})
    other = write_kubeconfig(tmp_path / "other", user={"token": "other"})
    nowhere = tmp_path / "nowhere"
    for environ, expected in (
        ({"HOME": str(tmp_path)}, "Bearer home"),
        ({"HOME": str(tmp_path), "KUBECONFIG": f"{nowhere}:{other}"}, "Bearer other"),
    ):
        assert (
            await authorization(
                load_credentials(None, None, environ=environ, service_account=nowhere)
            )
            == expected
        )


def test_nothing_configured_says_what_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError,
        match=r"no service account at .*, \$KUBECONFIG is not set, and .*/\.kube/config does not "
        r"exist",
    ):
        load_credentials(None, None, environ={"HOME": str(tmp_path)}, service_account=tmp_path)
    with pytest.raises(ConfigError, match=r"\$KUBECONFIG: no such file: .*nowhere"):
        load_credentials(
            None, None, environ={"KUBECONFIG": str(tmp_path / "nowhere")}, service_account=tmp_path
        )


@pytest.mark.parametrize("named", ["HOME", "KUBECONFIG"])
def test_a_place_that_cannot_be_looked_into_is_named_with_the_reason(
    tmp_path: Path, named: str
) -> None:
    closed = tmp_path / ("x" * 300)  # refused to root, too
    with pytest.raises(ConfigError, match=r"the kubeconfig cannot be read: File name too long"):
        load_credentials(None, None, environ={named: str(closed)}, service_account=tmp_path)


async def test_T70_of_a_kubeconfig_list_the_first_file_wins_entry_by_entry(tmp_path: Path) -> None:
    first = write_kubeconfig(tmp_path / "a/config", user={"token": "first"}, current="")
    second = write_kubeconfig(
        tmp_path / "b/config", user={"token": "second", "as": "nobody"}, current="prod"
    )
    third = write_kubeconfig(tmp_path / "c/config", name="stage", user={"tokenFile": "token"})
    (tmp_path / "c/token").write_text("third")
    environ = {"KUBECONFIG": f"{first}::{second}:{third}"}
    credentials = load_credentials(None, None, environ=environ, service_account=tmp_path)
    assert await credentials.headers() == [("Authorization", "Bearer first")]
    stage = load_credentials(None, "stage", environ=environ, service_account=tmp_path)
    assert await authorization(stage) == "Bearer third", (
        "a relative path belongs to the file that names it"
    )


async def test_T70_relative_paths_belong_to_the_file_and_data_goes_before_a_file(
    tmp_path: Path,
) -> None:
    ca = Ca()
    (tmp_path / "etc").mkdir()
    ca.issue("client").write(tmp_path / "etc", "client")
    config = write_kubeconfig(
        tmp_path / "etc/config",
        cluster={"certificate-authority": "missing.crt", "certificate-authority-data": b64(ca.pem)},
        user={"client-certificate": "client.crt", "client-key": "client.key"},
    )
    assert await load(config).tls() is not None


async def test_basic_auth_is_sent_as_utf8(tmp_path: Path) -> None:
    credentials = load(
        write_kubeconfig(tmp_path / "config", user={"username": "jürgen", "password": "a:b"})
    )
    assert await authorization(credentials) == "Basic " + b64("jürgen:a:b".encode())


async def test_plain_http_has_no_context_and_no_user_has_no_headers(tmp_path: Path) -> None:
    credentials = load(
        write_kubeconfig(tmp_path / "config", cluster={"server": "http://localhost:8001/prefix/"})
    )
    assert credentials.endpoint.url == "http://localhost:8001/prefix"
    assert await credentials.tls() is None
    assert await credentials.headers() == []


def test_disable_compression_and_tls_server_name_reach_the_endpoint(tmp_path: Path) -> None:
    cluster = {"disable-compression": True, "tls-server-name": "api.internal"}
    endpoint = load(write_kubeconfig(tmp_path / "config", cluster=cluster)).endpoint
    assert (endpoint.compress, endpoint.server_hostname) == (False, "api.internal")


# ---- T73 -----------------------------------------------------------------------------------------


async def test_T73_impersonation_headers_are_exact(tmp_path: Path) -> None:
    user = {
        "token": "t",
        "as": "system:serviceaccount:a:b",
        "as-uid": "u-1",
        "as-groups": ["dev", "ops"],
        "as-user-extra": {"scopes": ["view", "edit"], "acme.com/Project %": ["p"]},
    }
    assert await load(write_kubeconfig(tmp_path / "config", user=user)).headers() == [
        ("Authorization", "Bearer t"),
        ("Impersonate-User", "system:serviceaccount:a:b"),
        ("Impersonate-Uid", "u-1"),
        ("Impersonate-Group", "dev"),
        ("Impersonate-Group", "ops"),
        ("Impersonate-Extra-scopes", "view"),
        ("Impersonate-Extra-scopes", "edit"),
        ("Impersonate-Extra-acme.com%2FProject%20%25", "p"),
    ]


async def test_T73_no_credential_is_ever_logged_or_shown(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    clock, token = Clock(), tmp_path / "token"
    token.write_text("hunter2")
    credentials = load(
        write_kubeconfig(tmp_path / "config", user={"tokenFile": "token"}), clock=clock
    )
    token.write_text("hunter2\nhunter2")
    clock.advance(61)
    await credentials.headers()
    assert [
        record.message for record in caplog.records if record.name.startswith("watchrelay")
    ] == ["credential file unusable; keeping the previous one"]
    for record in caplog.records:
        assert "hunter2" not in str(record.__dict__)
    assert "hunter2" not in repr(vars(credentials))
