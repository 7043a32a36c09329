"""Kubeconfigs, token files, impersonation: claims T64, T70, T71, T73 about who we say we are and
where we go."""

import logging
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.unit.kube.auth.kubeconfigs import Clock, b64, load, write_kubeconfig
from tests.unit.kube.auth.pki import Ca
from watchrelay.core.errors import ConfigError
from watchrelay.kube.auth.credentials import ClusterCredentials, load_credentials


async def authorization(credentials: ClusterCredentials) -> str | None:
    return dict(await credentials.headers()).get("Authorization")


def refusal(path: Path, **options: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        load(path, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


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


# ---- mistakes ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cluster", "user", "message"),
    [
        ({"server": ""}, {}, "clusters[prod].cluster.server: is missing"),
        (
            {"server": "ftp://x"},
            {},
            "clusters[prod].cluster: server: is not the URL of an API server (https://host:6443)",
        ),
        (
            {"certificate-authority-data": "%%"},
            {},
            "clusters[prod].cluster.certificate-authority-data: is not base64",
        ),
        (
            {"certificate-authority-data": b64(b"x")},
            {},
            "clusters[prod].cluster: certificate-authority-data: holds no PEM certificate",
        ),
        (
            {"certificate-authority": "no.crt"},
            {},
            (
                "clusters[prod].cluster: certificate-authority: {dir}/no.crt: No such file or "
                "directory"
            ),
        ),
        (
            {"certificate-authority": "x", "insecure-skip-tls-verify": True},
            {},
            (
                "clusters[prod].cluster.insecure-skip-tls-verify: cannot be true together with a "
                "certificate-authority (remove one of them)"
            ),
        ),
        (
            {"insecure-skip-tls-verify": "yes"},
            {},
            "clusters[prod].cluster.insecure-skip-tls-verify: must be true or false, not a string",
        ),
        (
            {},
            {"token": 12},
            "users[prod].user.token: must be a string, not a number (put it in quotes)",
        ),
        (
            {},
            {"client-certificate": "a"},
            "users[prod].user.client-key: is missing: a certificate and its key come together",
        ),
        (
            {},
            {"auth-provider": {"name": "gcp"}},
            (
                'users[prod].user.auth-provider: "gcp" is a kind of login that Kubernetes '
                "1.26 removed "
                "(use an exec plugin instead: gke-gcloud-auth-plugin, kubelogin)"
            ),
        ),
        (
            {},
            {"token": "t", "username": "u"},
            "users[prod].user.username: cannot be given together with a token (remove one of them)",
        ),
        (
            {},
            {"token": "one\ntwo"},
            (
                "users[prod].user.token: holds more than one line, or a control character (write the "
                "token alone)"
            ),
        ),
        (
            {},
            {"as": "u", "as-user-extra": {"\u00b2": "x"}},
            "users[prod].user.as-user-extra.\u00b2: must be a list of strings",
        ),
        (
            {},
            {"as-groups": ["g"]},
            "users[prod].user.as: is missing: groups, uid and extra need a user to act as",
        ),
    ],
)
def test_a_mistake_is_one_line_with_file_and_key(
    tmp_path: Path, cluster: dict[str, Any], user: dict[str, Any], message: str
) -> None:
    config = write_kubeconfig(tmp_path / "config", cluster=cluster, user=user)
    assert refusal(config) == f"{config}:1: {message.replace('{dir}', str(tmp_path))}"


def test_a_server_that_no_url_can_hold_is_refused(tmp_path: Path) -> None:
    for server in ("https://a b:1", "https://a\u2028b:1", "ftp://x"):
        message = refusal(write_kubeconfig(tmp_path / "config", cluster={"server": server}))
        assert message.endswith(
            "clusters[prod].cluster: server: is not the URL of an API server (https://host:6443)"
        )


HOSTS_THAT_CANNOT_BE = [
    "prod..example.com",
    ".example.com",
    "a" * 64 + ".example.com",
    "\u00fc..example.com",
    ".",
    "\u00fc" * 64,
]


@pytest.mark.parametrize("host", HOSTS_THAT_CANNOT_BE)
def test_a_host_that_cannot_exist_is_refused_with_file_and_key(tmp_path: Path, host: str) -> None:
    what = (
        "names a host that cannot exist: a part of it between dots is empty, or longer than "
        "63 characters"
    )
    form, config = "(http://, https:// or socks5://host:port)", tmp_path / "config"
    where = f"{config}:1: clusters[prod].cluster"
    for cluster, environ, message in (
        (
            {"server": f"https://me:hunter2@{host}:6443"},
            {},
            f"{where}: server: {what} (https://host:6443)",
        ),
        ({"proxy-url": f"http://me:hunter2@{host}:3128"}, {}, f"{where}: proxy-url: {what} {form}"),
        ({"proxy-url": f"socks5h://{host}"}, {}, f"{where}: proxy-url: {what} {form}"),
        (
            {"server": "https://api"},
            {"HTTPS_PROXY": f"{host}:3128"},
            f"environment: $HTTPS_PROXY: {what} {form}",
        ),
        (
            {"tls-server-name": host},
            {},
            (
                f"{where}.tls-server-name: {what} (write the name that the server's certificate "
                "carries)"
            ),
        ),
    ):
        assert refusal(write_kubeconfig(config, cluster=cluster), environ=environ) == message


@pytest.mark.parametrize("host", ["xn--", "xn--.example.com", "api.xn--a.example"])
def test_a_host_in_an_encoding_that_it_is_not_in_is_refused(tmp_path: Path, host: str) -> None:
    what = "names a host that cannot exist: a part of it begins with xn-- and encodes no name"
    assert what in refusal(
        write_kubeconfig(tmp_path / "config", cluster={"server": f"https://{host}:6443"})
    )
    assert what in refusal(
        write_kubeconfig(tmp_path / "config", cluster={"proxy-url": f"http://{host}:3128"})
    )


@pytest.mark.parametrize("name", ["a b", "a\0b", "a\nb"])
def test_a_host_with_a_blank_or_a_control_character_is_refused(tmp_path: Path, name: str) -> None:
    message = refusal(write_kubeconfig(tmp_path / "config", cluster={"tls-server-name": name}))
    assert "cluster.tls-server-name: names a host with a blank or a control character" in message
    for url in (f"http://{name}:3128", f"socks5://{name}"):
        if "\n" not in name:  # a URL is read without its line ends
            message = refusal(write_kubeconfig(tmp_path / "config", cluster={"proxy-url": url}))
            assert "cluster: proxy-url: names a host with a blank or a control character" in message


@pytest.mark.parametrize(
    "host",
    [
        "api.example.com.",
        "my_api.internal",
        "10.0.0.1",
        "[::1]",
        "[fe80::1%eth0]",
        "[::ffff:10.0.0.1]",
        "b\u00fccher.example",
        "xn--strae-oqa.example",
        "a" * 63,
    ],
)
def test_a_host_that_can_exist_is_taken(tmp_path: Path, host: str) -> None:
    cluster = {
        "server": f"https://{host}:6443",
        "proxy-url": f"http://{host}:3128",
        "tls-server-name": host.strip("[]"),
    }
    endpoint = load(write_kubeconfig(tmp_path / "config", cluster=cluster)).endpoint
    assert (endpoint.url, endpoint.proxy, endpoint.server_hostname) == (
        cluster["server"],
        cluster["proxy-url"],
        host.strip("[]"),
    )


def test_a_credential_file_without_end_does_not_fill_the_memory(tmp_path: Path) -> None:
    for cluster, user, key in (
        ({}, {"tokenFile": "/dev/zero"}, "users[prod].user: tokenFile"),
        (
            {"certificate-authority": "/dev/zero"},
            {},
            "clusters[prod].cluster: certificate-authority",
        ),
    ):
        config = write_kubeconfig(tmp_path / "config", cluster=cluster, user=user)
        assert refusal(config) == f"{config}:1: {key}: /dev/zero: is larger than 8 MiB"


def test_a_kubeconfig_that_is_a_pipe_without_a_writer_is_no_reason_to_hang(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert (
        refusal(tmp_path / "pipe")
        == f"{tmp_path}/pipe: the kubeconfig cannot be read: it is a pipe without a writer"
    )


def test_a_home_that_nobody_has_is_a_file_that_is_not_there() -> None:
    message = refusal(Path("~nobody-of-this-name/config"))
    assert (
        message
        == "~nobody-of-this-name/config: the kubeconfig cannot be read: No such file or directory"
    )


def test_missing_entries_are_named_with_what_there_is(tmp_path: Path) -> None:
    config = write_kubeconfig(tmp_path / "config")
    with pytest.raises(
        ConfigError,
        match=r'config: contexts: context "prot" does not exist \(did you mean "prod"\?\)',
    ):
        load_credentials(str(config), "prot", environ={})
    assert "current-context: no context is selected; known: prod" in refusal(
        write_kubeconfig(tmp_path / "none", current="")
    )
    config.write_text(
        "current-context: a\ncontexts: [{name: a, context: {cluster: b, user: c}}]\nclusters: "
        "null\n"
    )
    assert refusal(config) == (
        f'{config}:2: contexts[a].context.cluster: cluster "b" does not exist (there is '
        "no cluster at all)"
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "the kubeconfig cannot be read: No such file or directory"),
        (
            "a: [",
            (
                ":1: not YAML: did not find expected node content, at column 1 (check the quotes, "
                "brackets, colons and indentation here)"
            ),
        ),
        ("\x00", ":1: not YAML: a control character (is this a text file?)"),
        ("", "holds no context at all (is this the kubeconfig?)"),
        (
            '{"kind": "Pod", "apiVersion": "v1"}',
            "holds no context at all (is this the kubeconfig?)",
        ),
        ("- a", "is not a kubeconfig: the file is a list, not a mapping"),
        ("clusters: {}", ":1: clusters: must be a list, not a mapping"),
        (
            "kind: Config\nusers:\n- name: a\n- name: a\n",
            ':4: users[1].name: "a" is defined twice in this file',
        ),
    ],
)
def test_a_file_that_is_no_kubeconfig_says_so(
    tmp_path: Path, content: str | None, message: str
) -> None:
    config = tmp_path / "config"
    if content is not None:
        config.write_text(content)
    assert refusal(config).removeprefix(str(config)).removeprefix(": ") == message


# ---- T71 -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("server", "cluster", "environ", "expected"),
    [
        (
            "https://api:6443",
            {"proxy-url": "http://proxy:3128"},
            {"NO_PROXY": "*"},
            "http://proxy:3128",
        ),
        (
            "https://api:6443",
            {"proxy-url": "https://proxy"},
            {"HTTPS_PROXY": "http://other"},
            "https://proxy",
        ),
        ("https://api:6443", {}, {"HTTPS_PROXY": "proxy:3128"}, "http://proxy:3128"),
        ("https://api:6443", {}, {"https_proxy": "http://proxy:3128"}, "http://proxy:3128"),
        ("https://api:6443", {}, {"HTTP_PROXY": "http://proxy:3128"}, None),
        ("http://api", {}, {"HTTP_PROXY": "http://proxy:3128"}, "http://proxy:3128"),
        ("https://localhost:6443", {}, {"HTTPS_PROXY": "http://proxy"}, None),
        ("https://[::1]:6443", {}, {"HTTPS_PROXY": "http://proxy"}, None),
    ],
)
def test_T71_the_proxy_is_the_kubeconfigs_or_else_the_environments(
    tmp_path: Path,
    server: str,
    cluster: dict[str, str],
    environ: dict[str, str],
    expected: str | None,
) -> None:
    config = write_kubeconfig(tmp_path / "config", cluster={"server": server, **cluster})
    assert load(config, environ=environ).endpoint.proxy == expected


@pytest.mark.parametrize(
    ("host", "no_proxy", "bypassed"),
    [
        ("api.corp.example", "corp.example", True),
        ("api.corp.example", ".corp.example", True),
        ("corp.example", ".corp.example", False),
        ("api.corp.example", "*.corp.example", True),
        ("apicorp.example", "corp.example", False),
        ("API.corp.example", "x, api.corp.example:6443", True),
        ("api.corp.example", "api.corp.example:443", False),
        ("10.1.2.3", "10.0.0.0/8", True),
        ("10.1.2.3", "11.0.0.0/8,garbage/99", False),
        ("api.corp.example", "corp.example:\u00b2", False),
        ("api.corp.example", "corp.example:" + "6" * 5000, False),
        ("[fd00::1]", "fd00::/8", True),
        ("[fd00::1]", "fd00::1", True),
        ("[fd00::1]", "[fd00::1]:6443", True),
        ("api", "*", True),
        ("api", "", False),
    ],
)
def test_T71_no_proxy_is_honoured_as_go_reads_it(
    tmp_path: Path, host: str, no_proxy: str, bypassed: bool
) -> None:
    config = write_kubeconfig(tmp_path / "config", cluster={"server": f"https://{host}:6443"})
    endpoint = load(
        config, environ={"HTTPS_PROXY": "http://proxy:3128", "no_proxy": no_proxy}
    ).endpoint
    assert (endpoint.proxy is None) is bypassed


def test_T71_socks5_needs_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = write_kubeconfig(
        tmp_path / "config", cluster={"proxy-url": "socks5h://me:hunter2@proxy:1080"}
    )
    assert load(config).endpoint.proxy == "socks5://me:hunter2@proxy:1080"
    monkeypatch.setitem(sys.modules, "aiohttp_socks", None)
    message = refusal(config)
    assert message.endswith(
        "proxy-url: a socks5 proxy needs an extra package (pip install 'watchrelay[socks]'; the "
        "image has it)"
    )
    assert "hunter2" not in message


def test_T71_another_name_of_the_server_cannot_be_checked_through_socks5(tmp_path: Path) -> None:
    cluster = {"proxy-url": "socks5://proxy:1080", "tls-server-name": "kubernetes.default"}
    message = refusal(write_kubeconfig(tmp_path / "config", cluster=cluster))
    assert (
        "tls-server-name: cannot be used through a socks5 proxy (give server the name that "
        "its certificate carries"
    ) in message


def test_T71_what_is_no_proxy_is_refused_without_showing_its_password(tmp_path: Path) -> None:
    for url in ("gopher://me:hunter2@x", "http://", "proxy:3128", "http://x:99999"):
        message = refusal(write_kubeconfig(tmp_path / "config", cluster={"proxy-url": url}))
        assert message.endswith(
            "proxy-url: is not the URL of a proxy (http://, https:// or socks5://host:port)"
        )
        assert "hunter2" not in message


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
