"""Room: test support.  In: what an API server's audit log says of a user.  Out: that it asked for
nothing but what a relay needs."""

import http.client
import json

from tests.support.realparts import ControlPlane

_DISCOVERY = ("/api", "/apis", "/version")


def assert_only_listed_and_watched(cluster: ControlPlane, user: str) -> None:
    """Objects were listed and watched by `user`, all else it asked for was discovery, and nothing
    was refused."""
    asked = [entry for entry in cluster.audit_entries() if entry["user"]["username"] == user]
    assert {entry["verb"] for entry in asked if "objectRef" in entry} == {"list", "watch"}
    for entry in asked:
        if "objectRef" not in entry:
            path = entry["requestURI"].partition("?")[0]
            assert (entry["verb"], path.startswith(_DISCOVERY)) == ("get", True), entry[
                "requestURI"
            ]
        assert entry["responseStatus"]["code"] < http.client.BAD_REQUEST, json.dumps(entry)
