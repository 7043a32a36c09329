"""Which keys of `kafka.security` go together.

Room: config. In: the section. Out: refusals: what is missing, and what would be ignored
(a forgotten `protocol` must not send secrets in clear).
"""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import SecretStr

from watchrelay.config.settings import KafkaSecurity
from watchrelay.config.tree import Path
from watchrelay.config.verdicts import Refusal

_TLS_KEYS = ("caFile", "certFile", "keyFile", "keyPasswordFile")
_LOGIN_KEYS = ("username", "usernameFile", "password", "passwordFile")
_TOKEN_KEYS = ("tokenFile", "tokenCommand")


def security_refusals(security: KafkaSecurity) -> Iterator[Refusal]:
    """What is wrong about the section as a whole."""
    given = _given(security)
    sasl = security.protocol.startswith("SASL_")
    if security.protocol not in ("SSL", "SASL_SSL"):
        for key in _TLS_KEYS:
            if key in given:
                cure = "SASL_SSL" if sasl else "SSL"
                yield Refusal(
                    _at(key, "protocol"),
                    f"means nothing with protocol {security.protocol}",
                    f"set protocol to {cure}",
                )
    if ("certFile" in given) != ("keyFile" in given):
        missing, there = ("keyFile", "certFile") if "certFile" in given else ("certFile", "keyFile")
        yield Refusal(_at(there, missing), f"needs {missing} too")
    elif "keyPasswordFile" in given and "keyFile" not in given:
        yield Refusal(_at("keyPasswordFile", "keyFile"), "needs keyFile too")
    if sasl and security.mechanism is None:
        yield Refusal(
            _at("protocol", "mechanism"),
            f"{security.protocol} needs a mechanism",
            "set mechanism, such as SCRAM-SHA-512",
        )
    elif not sasl and (
        keys := [
            key for key in ("mechanism", *_LOGIN_KEYS, *_TOKEN_KEYS, "awsRegion") if key in given
        ]
    ):
        yield Refusal(
            _at(keys[0], "protocol"),
            f"means nothing with protocol {security.protocol}",
            "set protocol to SASL_SSL",
        )
    elif sasl:
        yield from _mechanism(security, given)


def _mechanism(security: KafkaSecurity, given: set[str]) -> Iterator[Refusal]:
    mechanism = security.mechanism
    login = mechanism in ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
    allowed = (
        _LOGIN_KEYS if login else _TOKEN_KEYS if mechanism == "OAUTHBEARER" else ("awsRegion",)
    )
    for key in (*_LOGIN_KEYS, *_TOKEN_KEYS, "awsRegion"):
        if key in given and key not in allowed:
            yield Refusal(_at(key, "mechanism"), f"means nothing with mechanism {mechanism}")
    if login:
        yield from _one_of(given, "username", "usernameFile", f"mechanism {mechanism} needs")
        yield from _one_of(given, "password", "passwordFile", f"mechanism {mechanism} needs")
    elif mechanism == "OAUTHBEARER":
        yield from _one_of(given, "tokenFile", "tokenCommand", "mechanism OAUTHBEARER needs")
    elif mechanism == "AWS_MSK_IAM":
        if "awsRegion" not in given:
            yield Refusal(_at("mechanism", "awsRegion"), "mechanism AWS_MSK_IAM needs awsRegion")
        if security.protocol != "SASL_SSL":
            yield Refusal(
                _at("protocol", "mechanism"), "mechanism AWS_MSK_IAM needs protocol SASL_SSL"
            )


def _one_of(given: set[str], one: str, other: str, needs: str) -> Iterator[Refusal]:
    if one in given and other in given:
        yield Refusal(_at(other, one), f"{other} cannot stand with {one}", "keep one of the two")
    elif one not in given and other not in given:
        yield Refusal(_at("mechanism", one, other), f"{needs} {one} or {other}")


def _given(security: KafkaSecurity) -> set[str]:
    """The keys that hold something, as the file writes them."""
    fields = type(security).model_fields
    return {
        str(info.alias)
        for name, info in fields.items()
        if getattr(security, name) not in ("", None, (), SecretStr(""))
    }


def _at(*keys: str) -> tuple[Path, ...]:
    return tuple(("kafka", "security", key) for key in keys)
