"""Error codes of brokers as errors, and what an operator can do about each that lasts.

Source: Kafka protocol guide, "Error Codes".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from aiokafka.errors import BrokerResponseError, for_code

_OLD: Final = "to 2.1 or later"
_NOT_IN_SYNC: Final = (
    "fewer replicas are in sync than its min.insync.replicas: start the brokers that are away, or "
    "lower min.insync.replicas"
)
CURES: Final[Mapping[int, str]] = {
    -1: "the broker failed: its log has the error",
    2: "a batch arrived damaged: look for a proxy or a network device that changes what is sent",
    3: "the brokers do not know it: was the topic deleted?",
    5: "it has no leader: is its broker away?",
    6: "it has no leader that is known: was the topic deleted, or is its broker away?",
    7: "replicas do not confirm in time: are brokers away, or overloaded?",
    9: "a replica is not available: is its broker away?",
    17: "kafka refuses the name of the topic: choose another topic in the resource entry, or "
    "another kafka.topicPrefix or cluster",
    19: _NOT_IN_SYNC,
    20: _NOT_IN_SYNC,
    23: "another kind of program, or a release that does not fit, is in the group: end it, or "
    "choose another kafka.topicPrefix or cluster",
    24: "the brokers refuse the name of the group: choose another kafka.topicPrefix or cluster",
    26: "the brokers refuse the session timeout: set sharding.sessionTimeout between their "
    "group.min.session.timeout.ms and group.max.session.timeout.ms",
    29: "this user may not: grant READ and WRITE on it or its prefix",
    30: "this user may not be a member: grant READ on the group or its prefix",
    31: "this user may write no topic at all: grant WRITE on the topic prefix",
    32: "the times of records are out of the topic's bounds: set this machine's clock, or "
    "message.timestamp.type of the topic to LogAppendTime",
    33: "the broker does not offer this mechanism: check kafka.security.mechanism",
    34: "this port wants no user: check kafka.security.protocol",
    35: f"the brokers are too old: update them, and inter.broker.protocol.version if set, {_OLD}",
    42: "the broker does not understand the request: look for a proxy that changes what is sent",
    43: "the topic has an old format of records: remove message.format.version of the topic and "
    f"log.message.format.version of the brokers, or set both {_OLD}",
    44: "a policy of the brokers refuses it, create.topic.policy.class.name: use what it allows, "
    "or have who runs the brokers create the topic",
    50: "transaction.max.timeout.ms of the brokers is too small: raise it, or set kafka.delivery "
    "to idempotent",
    53: "this user may not use the transactional id: grant WRITE and DESCRIBE on it or its prefix",
    56: "the broker cannot use its disk: its log has the error, look at its log.dirs",
    58: "the broker refused the credentials: check the user and the password or token under "
    "kafka.security",
    72: "its leader has no listener of the name that this broker has here: give all brokers the "
    "same names in listeners and advertised.listeners",
    76: f"the brokers do not take zstd: set inter.broker.protocol.version {_OLD}",
    81: "the group is full: raise group.max.size of the brokers, or run fewer replicas",
    87: "the brokers refuse the records: end the validation of records on the topic, such as "
    "confluent.value.schema.validation",
    89: "the user's quota for changes of topics is used up: raise its controller_mutation_rate",
}
"""By error code. What is not here ends by itself, is handled where it comes, or answers no request
of ours."""


def error_of(code: int, about: str = "") -> BrokerResponseError:
    """The error of a code; one that aiokafka does not know has its number as well."""
    kind = for_code(code)
    named = [] if kind.errno == code else [f"error code {code}"]
    text = ", ".join([*named, *filter(None, [about])])
    error: BrokerResponseError = kind(text) if text else kind()
    error.errno = code
    return error


def cure_of(error: BaseException) -> str:
    """What an operator can do about an error of a broker, "" if that is not known."""
    return CURES.get(error.errno, "") if isinstance(error, BrokerResponseError) else ""
