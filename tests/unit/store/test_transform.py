"""What is published of an object, byte for byte."""

import msgspec
import pytest

from tests.support.pods import frame_of, pod
from watchrelay.model.paths import LAST_APPLIED
from watchrelay.model.resources import Resource
from watchrelay.store.transform import Transform

WIDGETS = Resource("example.com", "v1", "widgets", "Widget", namespaced=True)
SECRETS = Resource("", "v1", "secrets", "Secret", namespaced=True)
HEAD = b'{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":"a","namespace":"n","uid":"u","resourceVersion":"7"'


def published(raw: bytes, resource: Resource = WIDGETS, **options: object) -> bytes:
    return Transform.compile(resource, **options).apply(frame_of(raw))  # type: ignore[arg-type]  # options of compile by name


def widget(rest: bytes = b"", metadata: bytes = b"") -> bytes:
    return HEAD + metadata + b"}" + rest + b"}"


def test_without_paths_every_byte_stays() -> None:
    raw = widget(
        b',"spec":{"a":1.0,"b":-0,"c":1e400,"d":123456789012345678901234567890,"e":"\\u003c\\/ '
        b'\xc3\xa4"},"status":null'
    )
    assert published(raw) == raw


def test_managed_fields_and_last_applied_are_dropped_by_default() -> None:
    noise = (
        b',"annotations":{"%s":"{\\"a\\":1}","keep":"me"},"managedFields":[{"manager":"x"}]'
        % LAST_APPLIED.encode()
    )
    assert published(widget(b',"spec":{}', noise)) == widget(
        b',"spec":{}', b',"annotations":{"keep":"me"}'
    )
    assert published(
        widget(metadata=noise), keep_managed_fields=True, keep_last_applied=True
    ) == widget(metadata=noise)


def test_an_annotation_map_that_becomes_empty_stays() -> None:
    assert published(
        widget(metadata=b',"annotations":{"%s":"{}"}' % LAST_APPLIED.encode())
    ) == widget(metadata=b',"annotations":{}')


def test_last_applied_is_found_when_its_key_is_written_with_escapes() -> None:
    key = LAST_APPLIED.encode().replace(b"/", b"\\/").replace(b"last", b"\\u006cast")
    assert published(widget(metadata=b',"annotations":{"%s":"x"}' % key)) == widget(
        metadata=b',"annotations":{}'
    )


def test_api_version_and_kind_come_first_and_are_filled_in() -> None:
    transform = Transform.compile(WIDGETS)
    frame = frame_of(widget(b',"spec":1'))
    for order in (
        ("kind", "apiVersion", "metadata", "spec"),
        ("metadata", "spec"),
        ("metadata", "kind", "spec"),
    ):
        frame.fields = {key: frame_of(widget(b',"spec":1')).fields[key] for key in order}
        assert transform.apply(frame) == widget(b',"spec":1')


@pytest.mark.parametrize(
    ("drop", "rest", "left"),
    [
        (["status.conditions"], b',"status":{"conditions":[1],"x":1.0}', b',"status":{"x":1.0}'),
        (["status.conditions"], b',"status":{"conditions":[1]}', b',"status":{}'),
        (["status"], b',"spec":1,"status":{}', b',"spec":1'),
        (["spec.*.b"], b',"spec":{"x":{"b":1,"c":1e400},"y":2,"z":[{"b":3}]}', b',"spec":{"x":{"c":1e400},"y":2,"z":[{"b":3}]}'),
        (["spec.list[*].b"], b',"spec":{"list":[{"a":-0,"b":1},7,{"b":2}]}', b',"spec":{"list":[{"a":-0},7,{}]}'),
        (["spec.list[*]"], b',"spec":{"list":[1,2]}', b',"spec":{"list":[]}'),
        (["spec.*"], b',"spec":{"a":1,"b":2}', b',"spec":{}'),
        (["spec.a.b", "spec.*.c"], b',"spec":{"a":{"b":1,"c":2,"d":3},"e":{"b":4,"c":5}}', b',"spec":{"a":{"d":3},"e":{"b":4}}'),
        (["spec.a", "spec.a.b"], b',"spec":{"a":{"b":1}}', b',"spec":{}'),
        (["spec.missing.x", "nothing"], b',"spec":{"a":1}', b',"spec":{"a":1}'),
        (["spec.a.b"], b',"spec":{"a":"text"}', b',"spec":{"a":"text"}'),
        (["*"], b',"spec":{},"status":{}', b""),
    ],
)  # fmt: skip
def test_dropped_paths_leave_every_other_value_byte_for_byte(
    drop: list[str], rest: bytes, left: bytes
) -> None:
    assert published(widget(rest), drop=drop) == widget(left)


def test_wildcards_never_take_an_objects_identity() -> None:
    raw = widget(b',"spec":1', b',"labels":{"a":"b"},"generation":3')
    assert published(raw, drop=["metadata.*"]) == widget(b',"spec":1')
    assert published(raw, drop=["*.*"]) == widget(b',"spec":1')
    assert published(raw, redact=["*"]) == widget(
        b',"spec":"<redacted>"', b',"labels":"<redacted>","generation":"<redacted>"'
    )


def test_a_quoted_key_names_one_annotation() -> None:
    metadata = b',"annotations":{"example.com/x":"1","y":"2"}'
    assert published(
        widget(metadata=metadata), drop=['metadata.annotations["example.com/x"]']
    ) == widget(metadata=b',"annotations":{"y":"2"}')
    both = metadata.replace(b'"y"', b'"%s":"3","y"' % LAST_APPLIED.encode())
    assert published(widget(metadata=both), redact=["metadata.annotations.y"]) == widget(
        metadata=b',"annotations":{"example.com/x":"1","y":"<redacted>"}'
    )


def test_redaction_hides_each_value_and_drop_wins_over_it() -> None:
    raw = widget(b',"data":{"a":"secret","b":{"c":1},"d":null},"spec":[{"p":1,"q":2.50}]')
    assert published(raw, redact=["data.*", "spec.x"], drop=["data.b"]) == widget(
        b',"data":{"a":"<redacted>","d":"<redacted>"},"spec":[{"p":1,"q":2.50}]'
    )
    assert Transform.compile(WIDGETS, redact=["data.*"]).redacts
    assert not Transform.compile(WIDGETS, drop=["data.*"]).redacts


SECRET = (
    b'{"apiVersion":"v1","kind":"Secret","metadata":{"name":"a","namespace":"n","uid":"u","resourceVersion":"7","annotations":'
    b'{"%s":"{\\"data\\":{\\"password\\":\\"aHVudGVyMg==\\"}}","note":"x"}},"data":{"password":"aHVudGVyMg==","empty":null},'
    b'"stringData":{"token":"hunter2"},"type":"Opaque"}' % LAST_APPLIED.encode()
)
KEPT_HOME = (
    b'{"apiVersion":"v1","kind":"Secret","metadata":{"name":"a","namespace":"n","uid":"u","resourceVersion":"7","annotations":'
    b'{"note":"x"}},"data":{"password":"<redacted>","empty":"<redacted>"},"stringData":{"token":"<redacted>"},"type":"Opaque"}'
)


@pytest.mark.parametrize("keep", [False, True])
def test_a_secrets_payload_and_its_copy_stay_home_but_key_names_show(keep: bool) -> None:
    assert published(SECRET, SECRETS, keep_last_applied=keep) == KEPT_HOME
    assert Transform.compile(SECRETS).redacts


def test_a_secrets_payload_leaves_only_when_asked_for_by_name() -> None:
    assert b"aHVudGVyMg==" in published(SECRET, SECRETS, include_secret_data=True)
    assert LAST_APPLIED.encode() not in published(SECRET, SECRETS, include_secret_data=True)
    assert published(SECRET, SECRETS, include_secret_data=True, keep_last_applied=True) == SECRET


@pytest.mark.parametrize(
    "data",
    [
        b'"hunter2"',
        b'["hunter2"]',
        b"17",
        b'{"a":{"b":"hunter2"}}',
        b'{"a":"hunter2","a":"hunter2"}',
        b'{"\xff":"hunter2"}',
    ],
)
def test_a_secrets_payload_of_an_unexpected_shape_stays_home_too(data: bytes) -> None:
    raw = SECRET.replace(b'{"password":"aHVudGVyMg==","empty":null}', data).replace(
        b'"token":"hunter2"', b""
    )
    assert b"hunter2" not in published(raw, SECRETS)
    assert b"17" not in published(raw, SECRETS)


def test_a_secret_without_payload_stays_without() -> None:
    raw = SECRET.replace(b'{"password":"aHVudGVyMg==","empty":null}', b"null")
    assert b'"data":null' in published(raw, SECRETS)


def test_user_paths_do_not_loosen_the_redaction_of_secrets() -> None:
    assert b"aHVudGVyMg==" not in published(
        SECRET, SECRETS, drop=["data.empty"], redact=["data.other.x", "*.token"]
    )


def test_metadata_only_publishes_metadata_even_of_a_full_object_under_its_own_kind() -> None:
    partial = (
        widget(b',"spec":{"a":1}', b',"managedFields":[]')
        .replace(b"example.com/v1", b"meta.k8s.io/v1")
        .replace(b'"Widget"', b'"PartialObjectMetadata"')
    )
    assert published(partial, metadata_only=True) == widget()
    secret = published(SECRET, SECRETS, metadata_only=True)
    assert secret == KEPT_HOME[: KEPT_HOME.index(b',"data"')] + b"}"
    assert not Transform.compile(SECRETS, metadata_only=True).redacts


def test_the_frame_is_left_as_it_came() -> None:
    frame = frame_of(SECRET)
    transform = Transform.compile(SECRETS, drop=["metadata.annotations"])
    assert transform.apply(frame) == transform.apply(frame)
    assert list(frame.fields) == ["apiVersion", "kind", "metadata", "data", "stringData", "type"]


def test_pods_keep_everything_but_managed_fields() -> None:
    tree = pod(5)
    value = msgspec.json.decode(
        published(msgspec.json.encode(tree), Resource("", "v1", "pods", "Pod", namespaced=True))
    )
    del tree["metadata"]["managedFields"]
    assert value == tree


def test_the_description_tells_transforms_apart_and_ignores_spelling() -> None:
    plain = Transform.compile(WIDGETS).describe()
    others = [
        Transform.compile(WIDGETS, drop=["status"]),
        Transform.compile(WIDGETS, redact=["status"]),
        Transform.compile(WIDGETS, keep_managed_fields=True),
        Transform.compile(WIDGETS, keep_last_applied=True),
        Transform.compile(WIDGETS, metadata_only=True),
    ]
    described = [plain, *(other.describe() for other in others)]
    assert all(a != b for at, a in enumerate(described) for b in described[:at])
    assert (
        Transform.compile(WIDGETS, drop=["a.b", "c"]).describe()
        == Transform.compile(WIDGETS, drop=["c", 'a["b"]']).describe()
    )
    assert (
        Transform.compile(SECRETS).describe()
        != Transform.compile(SECRETS, include_secret_data=True).describe()
    )
    msgspec.json.encode(plain)


def test_a_wrong_path_is_refused_in_one_line() -> None:
    with pytest.raises(
        ValueError, match="metadata and its name, namespace, uid, resourceVersion always stay"
    ):
        Transform.compile(WIDGETS, drop=["metadata.uid"])
