"""Everything that can be configured, as frozen values. Each field's docstring (unit, default,
reason) is its description in the JSON Schema and in docs/reference/config.md."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, Self

from pydantic import Field, SecretStr
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource

from watchrelay.config.values import (
    ClusterName,
    Command,
    Count,
    CountedPaths,
    FieldSelector,
    FilePath,
    Flag,
    IgnoredPaths,
    InstanceName,
    LabelSelector,
    Listen,
    Namespaces,
    ObjectName,
    Paths,
    ResourceText,
    Section,
    Servers,
    StreamId,
    Text,
    TopicName,
    TopicPart,
    TopicTemplate,
    WebAddress,
    period,
    size,
)
from watchrelay.model.streams import Format, InitialList, ListSemantic

Protocol = Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]
Mechanism = Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "AWS_MSK_IAM"]
Scope = Literal["namespace", "cluster"]
Overload = Literal["conflate", "block"]
Delivery = Literal["idempotent", "transactional"]
LogFormat = Literal["auto", "json", "console"]
LogLevel = Literal["debug", "info", "warning", "error"]


DEFAULT_PARTITIONS: Final = 1
"""Of a topic where the config does not set `partitions`."""


def _unset() -> Any:
    """The default of an optional text: "" in the code, which may not be written in a file."""
    return Field(default="", validate_default=False)


def _written(default: object) -> Any:
    """A default as a file would have it; the field's validator converts it."""
    return Field(default=default)


class KubernetesSettings(Section):
    """How to reach the API server. Left out: the pod's service account, then $KUBECONFIG, then
    ~/.kube/config."""

    kubeconfig: FilePath = _unset()
    """Path of a kubeconfig file. Default: in-cluster credentials, then $KUBECONFIG, then
    ~/.kube/config, as kubectl does."""

    context: Text = _unset()
    """The context of the kubeconfig to use. Default: its current-context."""


class KafkaSecurity(Section):
    """How to reach the brokers. Secrets come from files, which are read again when they change.
    Default: PLAINTEXT without credentials."""

    protocol: Protocol = "PLAINTEXT"
    """PLAINTEXT, SSL (TLS), SASL_PLAINTEXT or SASL_SSL, as the listener of the brokers wants it.
    Default: PLAINTEXT."""

    mechanism: Mechanism | None = Field(default=None)
    """The SASL mechanism; needed with SASL_PLAINTEXT and SASL_SSL. AWS_MSK_IAM needs the extra
    `watchrelay[msk]`, which the image has. Default: none."""

    username: Text = _unset()
    """User name for PLAIN and SCRAM. Default: none."""

    username_file: FilePath = _unset()
    """File with the user name, instead of `username`; read again when it changes. Default: none."""

    password: SecretStr | None = Field(default=None)
    """Password for PLAIN and SCRAM. Default: none; prefer `passwordFile`, which keeps it out of the
    config."""

    password_file: FilePath = _unset()
    """File with the password, instead of `password`; read again when it changes. Default: none."""

    ca_file: FilePath = _unset()
    """PEM file with the authorities that the brokers' certificates must come from. Default: those
    of the system."""

    cert_file: FilePath = _unset()
    """PEM file with the client certificate, for brokers that ask for one (mTLS); with `keyFile`.
    Default: none."""

    key_file: FilePath = _unset()
    """PEM file with the key of the client certificate. Default: none."""

    key_password_file: FilePath = _unset()
    """File with the password of the client certificate's key. Default: none, the key is not
    encrypted."""

    token_file: FilePath = _unset()
    """File with the OAUTHBEARER token, read again when it changes. Default: none."""

    token_command: Command = Field(default=(), validate_default=False)
    """Program that prints the OAUTHBEARER token: one line, or a list of words; no shell runs it.
    Default: none."""

    check_hostname: Flag = True
    """Whether the brokers' certificates must carry the name they are reached by. Default: true;
    false invites impostors."""

    aws_region: Text = _unset()
    """AWS region of the MSK cluster, needed with AWS_MSK_IAM. Default: none."""


class KafkaSettings(Section):
    """The Kafka side: where the brokers are, how topics are named and made."""

    bootstrap_servers: Servers
    """Brokers to ask first, as host:port; two or three are enough, the others are learned.
    Required."""

    security: KafkaSecurity = _written({})
    """How to reach the brokers. Default: PLAINTEXT without credentials."""

    topic_prefix: TopicPart = "k8s"
    """First part of every topic's name. Default: k8s. The relay's rights in Kafka are granted on
    this prefix."""

    topic_template: TopicTemplate = "{prefix}.{cluster}.{group}.{resource}"
    """Name of a resource's topic, out of {prefix}, {cluster}, {group} ("core" for the core group)
    and {resource} (the plural). Default: {prefix}.{cluster}.{group}.{resource}. Leave {resource}
    out to have several resources on one topic."""

    create_topics: Flag = True
    """Whether missing topics are created. Default: true; false where others create them, they are
    then only checked."""

    partitions: Count | None = Field(
        default=None, ge=1, le=10_000, json_schema_extra={"default": DEFAULT_PARTITIONS}
    )
    """Partitions of each state topic. Default: 1; more let consumers read a large or busy resource
    in parallel. A stream keeps the number of its first start: another one needs another topic."""

    replication_factor: Count = Field(default=3, ge=1, le=32767)
    """Copies of each partition of the topics that are created. Default: 3. At most the number of
    brokers."""

    min_insync_replicas: Count = Field(default=2, ge=1, le=32767)
    """Copies that must hold a record before it counts as delivered, for the topics that are
    created. Default: 2, so that one broker may be away. At most `replicationFactor`."""

    format: Format = "cloudevents"
    """How a record looks: cloudevents (binary mode: the object as value, the rest in headers),
    structured or debezium. Default: cloudevents."""

    delivery: Delivery = "idempotent"
    """idempotent, or transactional: consumers that ignore headers and read committed records see
    the records of one owner at a time. Default: idempotent."""

    flush_interval_s: Annotated[float, period("1ms", most="100ms")] = _written("3ms")
    """Least time between two writes of what is queued. Default: 3ms. A longer one packs more
    records into each request: less CPU in relay and brokers, at that much more latency. At most
    100ms."""


class Defaults(Section):
    """Keys that apply to every entry of `resources` that does not set them itself."""

    namespaces: Namespaces = ()
    """Namespaces to watch. Default: all of them. Each is a watch and a stream of its own, unless
    `scope` is cluster."""

    scope: Scope = "namespace"
    """namespace: one watch for each of `namespaces`, with rights in these alone; cluster: one watch
    for all, filtered on arrival (for many namespaces; needs the right to all). Default:
    namespace."""

    exclude_namespaces: Namespaces = ()
    """Namespaces to leave out of a watch of all namespaces. Default: none."""

    label_selector: LabelSelector = _unset()
    """Only objects with these labels, as kubectl's --selector. Default: all objects."""

    field_selector: FieldSelector = _unset()
    """Only objects with these fields, as kubectl's --field-selector. Default: all objects."""

    metadata_only: Flag = False
    """Whether to ask for metadata alone, and publish that. Default: false."""

    initial_list: InitialList = "auto"
    """How lists are read, relists too: auto (streaming from server 1.34 on, else paged), paged, or
    streaming. Default: auto."""

    list_semantic: ListSemantic = "mostRecent"
    """mostRecent: each list shows the newest state; any: the first list may come from a server's
    cache and be stale (cheaper). Relists are never older than what was seen. Default:
    mostRecent."""

    page_size: Count = Field(default=500, ge=0, le=1_000_000)
    """Objects per page of a paged list; 0: all in one. Default: 500, as client-go does."""

    bookmarks: Flag = True
    """Whether to ask for bookmarks, which keep a quiet watch resumable. Default: true."""

    drop: Paths = ()
    """Paths to leave out of what is published, such as status.conditions, on top of
    metadata.managedFields and the last-applied annotation. Default: nothing more."""

    redact: Paths = ()
    """Paths whose values become "<redacted>", such as data.*. Default: none, but for the payload of
    Secrets."""

    keep_managed_fields: Flag = False
    """Whether metadata.managedFields is published. Default: false: it is a third of many objects
    and carries little information."""

    keep_last_applied: Flag = False
    """Whether the annotation kubectl.kubernetes.io/last-applied-configuration is published.
    Default: false: it repeats the object."""

    include_secret_data: Flag = False
    """Whether the payload of Secrets leaves the cluster. Default: false; legal for Secrets
    alone."""

    suppress_unchanged: Flag = True
    """Whether nothing is published when only dropped fields or the resourceVersion changed.
    Default: true."""

    ignore_changes: IgnoredPaths = ()
    """Paths that do not count: a change of these alone is not published. Their values are published
    with the next change that counts, so the topic may show older ones. Default: none."""

    publish_when: CountedPaths | None = None
    """Paths that alone count, beside uid and metadata.deletionTimestamp: a change of anything else
    is not published. []: objects are published when they appear, are being deleted, and are gone.
    Replaces a default of `ignoreChanges`, as that does one of this key. Default: every change
    counts."""

    topic: TopicName = _unset()
    """Full name of the topic. Default: made from `kafka.topicTemplate`."""

    partitions: Count | None = Field(default=None, ge=1, le=10_000)
    """Partitions of the topic. Default: `kafka.partitions`. A stream keeps the number of its first
    start."""

    snapshot_interval_s: Annotated[float, period("5s", zero=True)] = _written("1h")
    """How often a full snapshot is published, so that new consumers need not read far back; 0: only
    at first start and when a stream's config changes. Default: 1h; least: 5s."""

    relist_interval_s: Annotated[float, period("1s", zero=True)] = _written("6h")
    """How often the state is compared with a fresh list, to find what a watch silently missed;
    up to a tenth of it is added, at random, so that streams do not list together. 0: never.
    Default: 6h; least: 1s."""


class ResourceEntry(Defaults):
    """One resource to watch: what it is, which part of it, and how it is published. After loading,
    `defaults` are merged in."""

    resource: ResourceText
    """Plural, singular, short name or Kind (pods, pod, po, Pod); deployments.apps;
    widgets.example.com/v1; "*.example.com" for all resources of a group (Secrets are never meant by
    a wildcard). Required."""

    id: StreamId = _unset()
    """Name of the stream, needed where two entries would get the same one. Default: the plural and
    the group, as in deployments.apps; @namespace is added for each of `namespaces`."""

    name: ObjectName = _unset()
    """Watch this single object. Default: all objects."""

    split: Count = Field(default=1, ge=1, le=10_000)
    """Into how many parts the stream is split, each with a range of its partitions, a watch and a
    writer of its own; at most `partitions`. Default: 1, for which one process has to be fast
    enough."""


class ObserveSettings(Section):
    """Metrics, health, status page, logs."""

    listen: Listen = ":8080"
    """Address of /metrics, /livez, /readyz and the status page, as host:port; without a host all
    interfaces, IPv4 and IPv6. Default: :8080; restart to change it."""

    log_format: LogFormat = "auto"
    """json, console (for people), or auto: console on a terminal, else json. Default: auto."""

    log_level: LogLevel = "info"
    """debug, info, warning or error. Default: info."""

    runbook_base_url: WebAddress | None = None
    """What precedes docs/runbooks/NAME.md in the links of the status page, such as
    https://git.example.com/watchrelay. Default: the sources of this version; restart to change
    it."""


class ShutdownSettings(Section):
    """What happens between SIGTERM and the end."""

    drain_timeout_s: Annotated[float, period("100ms")] = _written("20s")
    """How long queued records may take to reach Kafka before the process exits anyway, with exit
    code 1. Default: 20s; keep it under the pod's terminationGracePeriodSeconds."""


class ShardingSettings(Section):
    """Several replicas that share the streams, by a consumer group of Kafka."""

    enabled: Flag = False
    """Whether replicas share the streams and take over from each other. Default: false: the newest
    relay claims them all."""

    session_timeout_s: Annotated[float, period("6s")] = _written("6s")
    """How long a silent replica keeps its streams. Default: 6s, which is also the least; the
    brokers bound it by `group.min.session.timeout.ms` and `group.max.session.timeout.ms`."""

    standbys: Count = Field(default=1, ge=0, le=100)
    """How many replicas beside the owner follow each stream, so that one of them goes on without
    reading it back. Default: 1; 0 saves memory."""

    balance_after_s: Annotated[float, period("1s")] = _written("60s")
    """How long no replica must have come or gone before streams move so that all replicas have the
    same load. Default: 60s; least: 1s."""

    instance: InstanceName = _unset()
    """Name of this replica, and of no other, such as the pod's: when it restarts within
    `sessionTimeout`, it has its streams back. Default: none."""


class Laid(PydanticBaseSettingsSource):
    """The values of the file, the environment and `--set`, one laid over the other: the only
    source. Those of pydantic-settings know neither lines, nor lists with commas, nor unknown
    variables."""

    def __init__(self, settings: type[BaseSettings], values: dict[str, Any]) -> None:
        super().__init__(settings)
        self._values = values

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        key = field.alias or field_name
        return self._values.get(key), key, False

    def __call__(self) -> dict[str, Any]:
        return self._values


class Settings(Section, BaseSettings):  # type: ignore[misc]  # its model_config has keys more
    """The configuration of watchrelay."""

    @classmethod
    def load(cls, values: dict[str, Any]) -> Self:
        """The settings of `values`, as a file has them. Raises: pydantic.ValidationError."""
        return cls(values=values)  # type: ignore[call-arg]  # no keywords, whose names are settings of pydantic-settings

    @classmethod
    def settings_customise_sources(
        cls, settings_cls: type[BaseSettings], init_settings: Any, *_: Any, **__: Any
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        given = init_settings.init_kwargs
        return (Laid(settings_cls, given.get("values", given)),)

    cluster: ClusterName
    """Name of the source in topics and events, such as prod-eu-1. Required; another name makes
    other topics."""

    revision: Count = Field(default=0, ge=0, le=2**53 - 1)
    """Grows with each edit of the config: while replicas run different configs, that with the
    greater revision is the newer one. Default: 0; with equal revisions the one adopted last is the
    newer."""

    kubernetes: KubernetesSettings = _written({})
    """How to reach the API server. Default: in-cluster, then $KUBECONFIG, then ~/.kube/config."""

    kafka: KafkaSettings
    """The Kafka side. Required."""

    overload: Overload = "conflate"
    """What happens past `queueBytes` when Kafka is slow or unavailable: conflate skips intermediate
    states, never the last one, and goes on watching; block stops reading the watch, so that every
    transition is kept as long as the API server waits. Default: conflate."""

    queue_bytes: Annotated[int, size("1KiB")] = _written("64MiB")
    """Approximate memory for the records that a stream queues for Kafka, in bytes. Default:
    64MiB."""

    heartbeat_interval_s: Annotated[float, period("1s")] = _written("10s")
    """How often each partition publishes count and digest of the state. Default: 10s; least: 1s; it
    cannot be turned off."""

    defaults: Defaults = _written({})
    """Keys that apply to every entry of `resources` that does not set them itself."""

    resources: tuple[ResourceEntry, ...] = Field(min_length=1)
    """What to watch. Required, at least one entry."""

    accept_warnings: tuple[Text, ...] = ()
    """Names of warnings that `validate` prints in brackets, and that are meant: `validate --strict`
    passes over them. Default: none."""

    observe: ObserveSettings = _written({})
    """Metrics, health, status page, logs."""

    shutdown: ShutdownSettings = _written({})
    """What happens between SIGTERM and the end."""

    sharding: ShardingSettings = _written({})
    """Several replicas that share the streams."""


_INSTEAD: Final = {"ignore_changes": "publish_when", "publish_when": "ignore_changes"}
"""Two keys for one thing: an entry that has either has no default of the other."""


def with_defaults(settings: Settings) -> Settings:
    """`settings` with each entry of `resources` complete: its own keys, else those of `defaults`,
    else the built-in ones.
    """
    given = {name: getattr(settings.defaults, name) for name in settings.defaults.model_fields_set}
    merged = tuple(
        entry.model_copy(
            update={
                name: value
                for name, value in given.items()
                if entry.model_fields_set.isdisjoint({name, _INSTEAD.get(name)})
            }
        )
        for entry in settings.resources
    )
    return settings.model_copy(update={"resources": merged})


def json_schema() -> dict[str, Any]:
    """The JSON Schema of a whole config file, for editors, the chart's values and the reference
    page. A default that cannot be written in a file is not in it."""
    raw = _tidy(Settings.model_json_schema(by_alias=True, mode="validation"))
    draft = "https://json-schema.org/draft/2020-12/schema"
    return {"$schema": draft, "title": "watchrelay", **raw}


def _tidy(node: Any, *, names: bool = False) -> Any:
    """Without generated titles and null or empty defaults; descriptions on one line. `names`: the
    keys of `node` are keys of the config."""
    if isinstance(node, list):
        return [_tidy(item) for item in node]
    if not isinstance(node, dict):
        return node
    tidy: dict[str, Any] = {}
    for key, value in node.items():
        if names:
            tidy[key] = _tidy(value)
        elif key == "description":
            tidy[key] = " ".join(value.split())
        elif key == "anyOf" and {"type": "null"} in value:
            # optional in the code; in a file the key is left out instead
            tidy |= _tidy(next(kind for kind in value if kind != {"type": "null"}))
        elif key != "title" and not (
            key == "default" and (value in (None, "") or isinstance(value, dict))
        ):
            tidy[key] = _tidy(value, names=key in ("properties", "$defs"))
    return tidy
