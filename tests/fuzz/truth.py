"""What the API server really holds of one resource, and how that changes."""

from __future__ import annotations

from random import Random

from tests.fuzz.oddobjects import shaped
from tests.fuzz.oddserver import Tell, shown
from tests.fuzz.plan import GROUP, Followed
from watchrelay.demo.registry import Registry
from watchrelay.demo.storage import Stored

NAMESPACES = ("a", "b")


class Truth:
    """The objects of one resource. Those that nobody can be asked to publish are gone once it turns
    decent."""

    def __init__(self, followed: Followed, registry: Registry, rng: Random) -> None:
        self.followed = followed
        self._registry, self._rng = registry, rng
        self._odder: set[tuple[str, str]] = set()
        self._made = 0

    @property
    def existing(self) -> list[Stored]:
        """All objects."""
        return list(self._objects.values())

    @property
    def _objects(self) -> dict[tuple[str, str], Stored]:
        return self._registry.storage.collection(self.followed.id).objects

    def bodies(self) -> dict[str, bytes]:
        """By record key, the JSON of each object that the stream keeps."""
        prefix, kept = (
            f"{self.followed.id}/" if self.followed.prefixed else "",
            self.followed.namespaces,
        )
        return {
            f"{prefix}{each.namespace}/{each.name}": each.body()
            for each in self.existing
            if not kept or each.namespace in kept
        }

    def define(self) -> None:
        """Have the resource served."""
        resource = self.followed.resource
        names = {
            "plural": resource.plural,
            "singular": resource.kind.lower(),
            "kind": resource.kind,
        }
        scope = "Namespaced" if resource.namespaced else "Cluster"
        spec = {
            "group": GROUP,
            "scope": scope,
            "names": names,
            "versions": [{"name": "v1", "served": True, "storage": True}],
        }
        self._registry.create(
            "customresourcedefinitions.apiextensions.k8s.io",
            {"metadata": {"name": self.followed.id}, "spec": spec},
        )

    def fill(self) -> None:
        """The objects of the start, none of them odd."""
        for _ in range(self.followed.objects):
            self._put(self._place(), plain=True)

    def churn(self, *, odder: bool, tell: Tell) -> None:
        """A few changes."""
        rng = self._rng
        for _ in range(rng.randrange(5)):
            keys = list(self._objects)
            match rng.randrange(5):
                case 0 if keys:
                    self._registry.storage.delete(self.followed.id, rng.choice(keys))
                case 1 if keys:
                    again = rng.choice(keys)
                    self._registry.storage.delete(self.followed.id, again)
                    self._put(again)
                case 2 | 3 if keys:
                    self._put(rng.choice(keys), uid=rng.choice(["kept", "kept", "another"]))
                case _:
                    self._put(self._place())
        if odder and rng.random() < 0.5:
            keys = list(self._objects)
            place = rng.choice(keys) if keys and rng.random() < 0.4 else self._place()
            tell(
                f"{self.followed.resource.plural}: holds "
                f"{shown(self._put(place, odder=True).body())}"
            )

    def turn_decent(self) -> None:
        """Nothing that cannot be published is left."""
        for place in sorted(self._odder & self._objects.keys()):
            if self._rng.random() < 0.5:
                self._registry.storage.delete(self.followed.id, place)
            else:
                self._put(place)
        self._odder.clear()

    def _place(self) -> tuple[str, str]:
        self._made += 1
        return self._rng.choice(
            NAMESPACES
        ) if self.followed.resource.namespaced else "", f"o{self._made}"

    def _put(
        self, place: tuple[str, str], *, uid: str = "", odder: bool = False, plain: bool = False
    ) -> Stored:
        held, rng = self._objects.get(place), self._rng
        known = held.uid if held is not None and uid == "kept" else f"u{rng.randrange(10**12)}"
        plain = plain or not self.followed.odd or rng.random() < 0.4
        made = shaped(
            rng, self.followed.resource, *place, known, odder=odder, plain=plain and not odder
        )
        (self._odder.add if odder else self._odder.discard)(place)
        return self._registry.put(self.followed.id, made.stored())
