"""What is wrong with a kubeconfig or a credential is one line with the file and the key."""

import os
from pathlib import Path
from typing import Any

import pytest

from tests.unit.kube.auth.kubeconfigs import b64, load, refusal, write_kubeconfig
from watchrelay.core.errors import ConfigError
from watchrelay.kube.auth.credentials import load_credentials


@pytest.mark.parametrize(
    ("cluster", "user", "message"),
    [
        ({"server": ""}, {}, "clusters[prod].cluster.server: is missing"),
        ({"certificate-authority-data": "%%"}, {}, "clusters[prod].cluster.certificate-authority-data: is not base64"),
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
        ({}, {"token": 12}, "users[prod].user.token: must be a string, not a number (put it in quotes)"),
        ({}, {"client-certificate": "a"}, "users[prod].user.client-key: is missing: a certificate and its key come together"),
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
        ({}, {"as": "u", "as-user-extra": {"\u00b2": "x"}}, "users[prod].user.as-user-extra.\u00b2: must be a list of strings"),
        ({}, {"as-groups": ["g"]}, "users[prod].user.as: is missing: groups, uid and extra need a user to act as"),
    ],
)  # fmt: skip
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
        ('{"kind": "Pod", "apiVersion": "v1"}', "holds no context at all (is this the kubeconfig?)"),
        ("- a", "is not a kubeconfig: the file is a list, not a mapping"),
        ("clusters: {}", ":1: clusters: must be a list, not a mapping"),
        ("kind: Config\nusers:\n- name: a\n- name: a\n", ':4: users[1].name: "a" is defined twice in this file'),
    ],
)  # fmt: skip
def test_a_file_that_is_no_kubeconfig_says_so(
    tmp_path: Path, content: str | None, message: str
) -> None:
    config = tmp_path / "config"
    if content is not None:
        config.write_text(content)
    assert refusal(config).removeprefix(str(config)).removeprefix(": ") == message
