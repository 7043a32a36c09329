"""Room: test support.  In: nothing.  Out: the names of confluent_kafka's admin client, typed.

The package is marked as typed, but its `admin` imports these names without `__all__` or `as`: for a type checker it exports none of them
(PEP 484 on re-exports; confluent-kafka 2.16). Here that is told to the checker, once.
"""

from confluent_kafka.admin import (  # type: ignore[attr-defined]  # exported, not declared so
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

__all__ = [
    "AclBinding",
    "AclBindingFilter",
    "AclOperation",
    "AclPermissionType",
    "AdminClient",
    "ConfigResource",
    "NewPartitions",
    "NewTopic",
    "ResourcePatternType",
    "ResourceType",
    "ScramCredentialInfo",
    "ScramMechanism",
    "UserScramCredentialUpsertion",
]
