"""Flags: a real kube-apiserver on its own etcd, with credentials and knobs to hurt it.

What makes history expire (Source: tried on 1.36): a restart of the API server ends every watch from
an older version with 410; a continue token or an exact list expires by `compact()` followed by a
restart; compaction alone changes nothing, as the server's caches serve on.
"""

import functools
import http.client
import json
import shutil
import ssl
import subprocess
import urllib.parse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self

from tests.support.parts import program
from tests.support.pki import Ca, Pair, write_rsa_pair
from tests.support.process import PartError, Process, Workspace, free_port, wait_until

Component = Literal["apiserver", "etcd", "controller-manager"]

_AUDIT_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [{"level": "Metadata"}],
}
# The defaults (20 requests/s) would make a Deployment of 500 take 12 s.
_CONTROLLER_MANAGER_SPEED = (
    "--kube-api-qps=2000",
    "--kube-api-burst=4000",
    "--concurrent-replicaset-syncs=20",
    "--concurrent-gc-syncs=40",
)


class ApiError(Exception):
    """An answer of 400 or above; `status` is the HTTP code, `body` the decoded Status object or
    text."""

    def __init__(self, request: str, status: int, body: Any) -> None:
        reason = body.get("message", body) if isinstance(body, dict) else body
        super().__init__(f"{request}: {status} {reason}")
        self.status = status
        self.body = body


_DISCOVERY = ("/api", "/apis", "/version")


class ControlPlane:
    """etcd, kube-apiserver and, if asked for, kube-controller-manager; a context manager.

    `url`, `ca`, `kubeconfig` (admin by client certificate), `admin` (that certificate and
    key) are fixed from construction on and survive every restart.
    """

    def __init__(
        self,
        *,
        controller_manager: bool = False,
        apiserver_flags: Sequence[str] = (),
        controller_manager_flags: Sequence[str] = (),
        audit: bool = False,
    ) -> None:
        self._workspace = Workspace("kube")
        self.directory = self._workspace.path
        self.port = free_port()
        self.url = f"https://127.0.0.1:{self.port}"
        authority, files = Ca(), self.directory / "pki"
        self.ca = authority.write(files)
        admin = authority.issue("watchrelay-admin", group="system:masters")
        self.admin = admin.write(files, "watchrelay-admin")
        self._serving = authority.issue("kube-apiserver").write(files, "kube-apiserver")
        self._signing_key, self._signing_public = write_rsa_pair(files, "service-accounts")
        self.kubeconfig = self.write_kubeconfig("admin")
        self._audit_log = self.directory / "audit.jsonl"
        self._etcd_port = free_port()
        self._processes: dict[Component, Process] = {
            "etcd": self._etcd(),
            "apiserver": self._apiserver(apiserver_flags, audit=audit),
        }
        if controller_manager:
            self._processes["controller-manager"] = self._controller_manager(
                controller_manager_flags
            )

    def _process(self, name: Component, argv: Sequence[str | Path]) -> Process:
        return Process(name, argv, log=self.directory / f"{name}.log")

    def _etcd(self) -> Process:
        client, peer = f"http://127.0.0.1:{self._etcd_port}", f"http://127.0.0.1:{free_port()}"
        flags = [
            f"--data-dir={self.directory / 'etcd'}",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
            "--unsafe-no-fsync",
            "--log-level=warn",
        ]
        return self._process("etcd", [program("etcd"), *flags])

    def _apiserver(self, extra: Sequence[str], *, audit: bool) -> Process:
        flags = [
            f"--etcd-servers=http://127.0.0.1:{self._etcd_port}",
            f"--cert-dir={self.directory / 'pki'}",
            f"--tls-cert-file={self._serving.certificate}",
            f"--tls-private-key-file={self._serving.key}",
            "--bind-address=127.0.0.1",
            f"--secure-port={self.port}",
            f"--client-ca-file={self.ca}",
            "--authorization-mode=RBAC",
            "--service-cluster-ip-range=10.0.0.0/24",
            "--allow-privileged=true",
            "--disable-admission-plugins=ServiceAccount",
            f"--service-account-issuer={self.url}/",
            f"--service-account-key-file={self._signing_public}",
            f"--service-account-signing-key-file={self._signing_key}",
            "--endpoint-reconciler-type=none",
        ]
        if audit:
            policy = self.directory / "audit-policy.json"
            policy.write_text(json.dumps(_AUDIT_POLICY))
            flags += [f"--audit-policy-file={policy}", f"--audit-log-path={self._audit_log}"]
        return self._process("apiserver", [program("kube-apiserver"), *flags, *extra])

    def _controller_manager(self, extra: Sequence[str]) -> Process:
        flags = [
            f"--kubeconfig={self.kubeconfig}",
            "--leader-elect=false",
            "--bind-address=127.0.0.1",
            "--secure-port=0",
            f"--service-account-private-key-file={self._signing_key}",
            f"--root-ca-file={self.ca}",
            "--use-service-account-credentials=false",
        ]
        flags += [*_CONTROLLER_MANAGER_SPEED, *extra]
        return self._process("controller-manager", [program("kube-controller-manager"), *flags])

    def start(self) -> Self:
        """Starts everything and returns once the API serves; what failed to start raises
        PartError."""
        try:
            etcd = self._processes["etcd"].launch()
            etcd.await_ready(self._etcd_serves)
            self.restart_apiserver()
            if "controller-manager" in self._processes:
                self._processes["controller-manager"].launch().await_ready(self._controllers_work)
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Ends everything and removes the data; a stopped control plane cannot be started again."""
        for process in reversed(self._processes.values()):
            process.kill()
        self._workspace.remove()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    # What tests do to it.

    def kill_apiserver(self) -> None:
        """SIGKILL to the API server: every connection is cut, every watch cache is lost."""
        self._processes["apiserver"].kill()

    def restart_apiserver(self) -> None:
        """Starts the API server on the same port, killing it first if it runs; returns once it
        serves."""
        apiserver = self._processes["apiserver"]
        apiserver.kill()
        apiserver.launch().await_ready(self._api_serves)

    def pause(self, component: Component = "apiserver") -> None:
        """SIGSTOP: connections stay open and silent until `resume`."""
        self._processes[component].pause()

    def resume(self, component: Component = "apiserver") -> None:
        """SIGCONT after `pause`."""
        self._processes[component].resume()

    def kill(self, component: Component) -> None:
        """SIGKILL to any of the processes; `relaunch` brings it back."""
        self._processes[component].kill()

    def relaunch(self, component: Component) -> None:
        """Starts a killed process again with its old data and port, and returns once it is
        ready."""
        if component == "apiserver":
            return self.restart_apiserver()
        ready: Callable[[], bool] = (
            self._etcd_serves if component == "etcd" else self._controllers_work
        )
        self._processes[component].launch().await_ready(ready)
        return None

    def compact(self, revision: int | None = None) -> int:
        """Drops etcd's history before `revision`, before the newest one if None; returns that
        revision."""
        newest = int(self._etcd_call("/v3/maintenance/status", {})["header"]["revision"])
        target = newest if revision is None else revision
        self._etcd_call("/v3/kv/compaction", {"revision": target, "physical": True})
        return target

    def back_up(self) -> None:
        """Keeps what etcd holds now, for `restore`; nothing is interrupted for longer than a copy
        takes."""
        self.pause("apiserver")
        self.pause("etcd")
        try:
            shutil.copytree(
                self.directory / "etcd", self.directory / "etcd.backup", dirs_exist_ok=True
            )
        finally:
            self.resume("etcd")
            self.resume("apiserver")

    def restore(self) -> None:
        """Puts what `back_up` kept in the place of what etcd holds: resourceVersions go back;
        returns once the API serves."""
        self.kill_apiserver()
        self.kill("etcd")
        shutil.rmtree(self.directory / "etcd")
        shutil.copytree(self.directory / "etcd.backup", self.directory / "etcd")
        self.relaunch("etcd")
        self.restart_apiserver()

    def rebuild(self) -> None:
        """Puts an empty etcd in the place of the cluster's: no objects, and resourceVersions from the
        start; returns once the API serves."""
        self.kill_apiserver()
        self.kill("etcd")
        shutil.rmtree(self.directory / "etcd")
        self.relaunch("etcd")
        self.restart_apiserver()

    # Credentials.

    def serve_by(self, issued: Pair) -> None:
        """Replaces the API server's certificate, which it reads again by itself; returns once it
        shows this one."""
        self._serving.key.write_bytes(issued.key)
        self._serving.certificate.write_bytes(issued.certificate)
        wanted = issued.certificate.decode().split()
        wait_until(
            "the certificate is shown",
            lambda: ssl.get_server_certificate(("127.0.0.1", self.port)).split() == wanted,
            deadline_s=90.0,
        )

    def write_kubeconfig(
        self, name: str, *, token: str | None = None, server: str | None = None
    ) -> Path:
        """A kubeconfig file: of the admin, or of the user that `token` names; `server` puts a proxy in
        the way."""
        user: dict[str, str] = {"token": token} if token else {
            "client-certificate": str(self.admin.certificate),
            "client-key": str(self.admin.key),
        }  # fmt: skip
        cluster = {"server": server or self.url, "certificate-authority": str(self.ca)}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "real", "cluster": cluster}],
            "users": [{"name": name, "user": user}],
            "contexts": [{"name": "real", "context": {"cluster": "real", "user": name}}],
            "current-context": "real",
        }
        path = self.directory / f"{name}.kubeconfig"
        path.touch(mode=0o600)
        path.write_text(json.dumps(config))
        return path

    def service_account_token(self, namespace: str, name: str, *, lifetime_s: int = 3600) -> str:
        """A token of that service account, which is made if there is none; it has no rights until
        `grant`."""
        accounts = f"/api/v1/namespaces/{namespace}/serviceaccounts"
        self._make(accounts, {"metadata": {"name": name}})
        wish = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest"}
        minted = self.request(
            "POST", f"{accounts}/{name}/token", {**wish, "spec": {"expirationSeconds": lifetime_s}}
        )
        return str(minted["status"]["token"])

    def grant(
        self, namespace: str, name: str, rules: Sequence[Mapping[str, Sequence[str]]]
    ) -> None:
        """Gives the service account exactly these rules cluster-wide, replacing those of an earlier
        call."""
        rbac = "/apis/rbac.authorization.k8s.io/v1"
        role = f"{namespace}:{name}"
        subject = {"kind": "ServiceAccount", "namespace": namespace, "name": name}
        reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role}
        made = self._make(f"{rbac}/clusterroles", {"metadata": {"name": role}, "rules": rules})
        if not made:
            self.request(
                "PUT", f"{rbac}/clusterroles/{role}", {"metadata": {"name": role}, "rules": rules}
            )
        binding = {"metadata": {"name": role}, "roleRef": reference, "subjects": [subject]}
        self._make(f"{rbac}/clusterrolebindings", binding)

    def _make(self, path: str, body: Mapping[str, Any]) -> bool:
        try:
            self.request("POST", path, body)
        except ApiError as refused:
            if refused.status != http.HTTPStatus.CONFLICT:
                raise
            return False
        return True

    # Words with it.

    def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        token: str | None = None,
        content_type: str | None = None,
        timeout_s: float = 10.0,
    ) -> Any:
        """The decoded answer to one request, as the admin or as the owner of `token`.

        JSON is decoded, anything else is text; PATCH sends a merge patch, or a JSON patch
        for a list.
        Raises: ApiError for answers of 400 and above; OSError or HTTPException when there is no
        answer.
        """
        context, headers = self._as_admin, {"Accept": "application/json"}
        if token is not None:
            context, headers["Authorization"] = self._as_anyone, f"Bearer {token}"
        if body is not None:
            patch = (
                "application/json-patch+json"
                if isinstance(body, list)
                else "application/merge-patch+json"
            )
            headers["Content-Type"] = content_type or (
                patch if method == "PATCH" else "application/json"
            )
        connection = http.client.HTTPSConnection(
            "127.0.0.1", self.port, context=context, timeout=timeout_s
        )
        answer, status = _exchange(connection, method, path, body, headers)
        if status >= http.HTTPStatus.BAD_REQUEST:
            raise ApiError(f"{method} {path}", status, answer)
        return answer

    # Made once: reading the certificates costs more than the handshake of a request.

    @functools.cached_property
    def _as_anyone(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(self.ca))

    @functools.cached_property
    def _as_admin(self) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=str(self.ca))
        context.load_cert_chain(self.admin.certificate, self.admin.key)
        return context

    def apply(self, path: str, body: Mapping[str, Any]) -> Any:
        """Creates or updates the object at `path` (its own path, name included) by server-side
        apply."""
        query = urllib.parse.urlencode({"fieldManager": "watchrelay-tests", "force": "true"})
        return self.request(
            "PATCH", f"{path}?{query}", body, content_type="application/apply-patch+yaml"
        )

    def kubectl(
        self, *arguments: str, stdin: str | None = None, kubeconfig: Path | None = None
    ) -> str:
        """What kubectl printed; raises PartError with its words on stderr when it fails."""
        argv = [
            str(program("kubectl")),
            f"--kubeconfig={kubeconfig or self.kubeconfig}",
            *arguments,
        ]
        # its discovery cache belongs to this server
        home = {"HOME": str(self.directory), "PATH": "/usr/bin:/bin"}
        done = subprocess.run(
            argv, input=stdin, capture_output=True, text=True, timeout=60, check=False, env=home
        )
        if done.returncode:
            raise PartError(
                f"kubectl {' '.join(arguments)}: exit code {done.returncode}: {done.stderr.strip()}"
            )
        return done.stdout

    def audit_entries(self) -> list[dict[str, Any]]:
        """Every audit event so far, oldest first: verb, requestURI, user, objectRef,
        responseStatus, stage.

        A watch appears at its start (stage ResponseStarted) and at its end, all else once
        (ResponseComplete).
        """
        text = self._audit_log.read_text() if self._audit_log.exists() else ""
        return [json.loads(line) for line in text.splitlines() if line.endswith("}")]

    def log_tail(self, component: Component = "apiserver", lines: int = 25) -> str:
        """The last lines of a process's log."""
        return self._processes[component].tail(lines)

    # Ready or not.

    def _etcd_call(self, path: str, body: Mapping[str, Any]) -> Any:
        connection = http.client.HTTPConnection("127.0.0.1", self._etcd_port, timeout=10.0)
        answer, status = _exchange(
            connection, "POST", path, body, {"Content-Type": "application/json"}
        )
        if status >= http.HTTPStatus.BAD_REQUEST:
            raise ApiError(f"etcd {path}", status, answer)
        return answer

    def _etcd_serves(self) -> bool:
        return _answers(lambda: self._etcd_call("/v3/maintenance/status", {}))

    def _api_serves(self) -> bool:
        return _answers(lambda: self.request("GET", "/readyz", timeout_s=2.0)) and _answers(
            lambda: self.request("GET", "/api/v1/namespaces/default", timeout_s=2.0)
        )

    def _controllers_work(self) -> bool:
        return _answers(
            lambda: self.request("GET", "/api/v1/namespaces/default/serviceaccounts/default")
        )

    def wait_for(
        self, claim: str, condition: Callable[[], object], *, deadline_s: float = 60.0
    ) -> Any:
        """`wait_until` for a condition that asks this API; requests that fail count as not yet."""

        def unless_refused() -> object:
            try:
                return condition()
            except (ApiError, OSError, http.client.HTTPException):
                return None

        return wait_until(claim, unless_refused, deadline_s=deadline_s)


def _answers(ask: Callable[[], Any]) -> bool:
    try:
        ask()
    except (ApiError, OSError, http.client.HTTPException):
        return False
    return True


def _exchange(
    connection: http.client.HTTPConnection,
    method: str,
    path: str,
    body: Any,
    headers: Mapping[str, str],
) -> tuple[Any, int]:
    try:
        connection.request(method, path, None if body is None else json.dumps(body), dict(headers))
        answer = connection.getresponse()
        raw = answer.read()
    finally:
        connection.close()
    if "json" in (answer.getheader("Content-Type") or ""):
        return json.loads(raw), answer.status
    return raw.decode(errors="replace"), answer.status


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
