"""Secret files that are replaced: when that is noticed."""

from pathlib import Path
from typing import Any, cast

from tests.support.mount import Mount
from watchrelay.kafka.client.connection import KafkaConnection
from watchrelay.kafka.client.secrets import Secrets


def test_a_change_is_reported_once_it_is_stable_and_until_it_is_taken(tmp_path: Path) -> None:
    user, password = tmp_path / "user", tmp_path / "password"
    user.write_text("relay")
    password.write_text("one")
    secrets = Secrets([str(user), str(password)])
    secrets.use_files()
    assert [secrets.changed() for _ in range(3)] == [False, False, False]
    password.write_text("other")
    assert not secrets.changed()
    user.write_text("another")
    assert not secrets.changed(), "the second file came later"
    assert [secrets.changed(), secrets.changed()] == [True, True]
    secrets.use_seen()
    assert not secrets.changed()


def test_a_client_that_gets_in_is_distinguished_from_the_first_and_from_one_of_the_same_secrets(
    tmp_path: Path,
) -> None:
    password = tmp_path / "password"
    password.write_text("one")
    secrets = Secrets([str(password)])
    secrets.use_files()
    assert [secrets.accepted(), secrets.accepted()] == [False, False]
    password.write_text("other")
    assert (secrets.changed(), secrets.in_use) == (False, False)
    secrets.use_files()
    assert (secrets.in_use, secrets.accepted(), secrets.accepted()) == (True, True, False)


def test_a_mounted_secret_that_is_swapped_is_seen_also_with_the_same_size_and_when_it_comes_late(
    tmp_path: Path,
) -> None:
    mount = Mount(tmp_path / "volume" / "password", "one")
    secrets = Secrets([str(mount.file), str(tmp_path / "late")])
    secrets.use_files()
    mount.swap("two")
    assert [secrets.changed(), secrets.changed()] == [False, True]
    secrets.use_seen()
    (tmp_path / "late").write_text("")
    assert [secrets.changed(), secrets.changed()] == [False, True]


def test_only_files_that_a_client_keeps_the_content_of_are_looked_at() -> None:
    files = {
        name: name
        for name in (
            "ca_file",
            "cert_file",
            "key_file",
            "key_password_file",
            "username_file",
            "password_file",
            "token_file",
        )
    }

    def of(protocol: str) -> set[str]:
        return set(
            KafkaConnection(
                bootstrap_servers=("a:1",), **cast("Any", {"protocol": protocol, **files})
            ).secret_files
        )

    assert of("PLAINTEXT") == set()
    assert of("SSL") == {"ca_file", "cert_file", "key_file", "key_password_file"}
    assert of("SASL_PLAINTEXT") == {"username_file", "password_file"}
    assert of("SASL_SSL") == of("SSL") | of("SASL_PLAINTEXT")
    assert KafkaConnection(bootstrap_servers=("a:1",), protocol="SSL").secret_files == []
    assert not Secrets([])
