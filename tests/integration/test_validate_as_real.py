"""`validate --connect --as`: the rights of the account that will run, asked by somebody else, on a
real API server."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.daemon import command
from tests.support.embedded import EmbeddedBroker
from tests.support.realparts import ControlPlane
from tests.support.testbed import Testbed

pytestmark = pytest.mark.real


def _rule(*verbs: str, resources: str) -> dict[str, Any]:
    return {"apiGroups": [""], "resources": [resources], "verbs": list(verbs)}


def test_the_rights_of_the_account_that_will_run_are_checked_and_a_caller_who_may_not_ask_gets_the_missing_right(
    real_cluster: ControlPlane, broker: EmbeddedBroker, tmp_path: Path
) -> None:
    testbed = Testbed(real_cluster, broker, tmp_path)
    testbed.make_topics("configmaps")
    (namespace,) = testbed.namespaces(1)
    account = f"system:serviceaccount:{namespace}:relay"
    file = testbed.relay("configmaps").file
    for spelling in (account, f"system:serviceaccount:{namespace}/relay", f"{namespace}/relay"):
        refused = command("validate", "--connect", "--as", spelling, "-c", file)
        assert refused.code == 78
        assert f'User "{account}" cannot list resource "configmaps"' in refused.stdout
    assert command("validate", "--connect", "-c", file).code == 0, (
        "the caller's own rights are others"
    )

    real_cluster.grant(namespace, "relay", [_rule("list", "watch", resources="configmaps")])
    granted = command("validate", "--connect", "--as", account, "-c", file)
    assert granted.code == 0, granted.stdout + granted.stderr
    assert f"checked as {account}" in granted.stdout
    assert "ok: stream configmaps: may list and watch configmaps" in granted.stdout

    token = real_cluster.service_account_token(namespace, "caller")
    caller = testbed.relay(
        "configmaps",
        kubeconfig=real_cluster.write_kubeconfig(f"{testbed.name}-caller", token=token),
        name="caller",
    ).file
    unable = command("validate", "--connect", "--as", account, "-c", caller)
    assert unable.code == 78
    assert f"error: as {account}: the user of this kubeconfig may not act as it" in unable.stdout
    assert (
        f"the verb impersonate on serviceaccounts relay in namespace {namespace}" in unable.stdout
    )
    assert f"`kubectl create token relay --namespace {namespace}`" in unable.stdout

    real_cluster.grant(namespace, "caller", [_rule("impersonate", resources="serviceaccounts")])
    able = command("validate", "--connect", "--as", account, "-c", caller)
    assert able.code == 0, able.stdout + able.stderr
