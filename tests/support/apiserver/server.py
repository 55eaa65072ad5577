"""A real kube-apiserver with its own etcd on loopback, which tests may break.

Each server has its own certificate authority, so that a client notices if it connects to another server on a reused
port. All processes listen only on 127.0.0.1.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import secrets
import shutil
import ssl
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import yaml

from tests.support.api import Api, ApiRefused, Object
from tests.support.apiserver import audit, binaries
from tests.support.apiserver.audit import BEGINNING, Mark
from tests.support.apiserver.pki import Authority, Key
from tests.support.apiserver.process import Process, as_flags
from tests.support.ports import free_port
from tests.support.waiting import eventually

SERVICE_CIDRS = ("10.96.0.0/16", "fd00:10:96::/112")
START_TIMEOUT = 60.0
"""Seconds. Two are enough on an idle machine; four servers that start together on two busy cores take more."""
START_ATTEMPTS = 5


@dataclass(frozen=True, slots=True)
class User:
    """A line of the token file. A user without groups and bindings has almost no rights."""

    name: str
    groups: tuple[str, ...] = ()
    token: str = field(default_factory=lambda: secrets.token_urlsafe(24), repr=False)

    @property
    def line(self) -> str:
        """The line in the format of kube-apiserver's ``--token-auth-file``."""
        return f'{self.token},{self.name},{self.name},"{",".join(self.groups)}"\n'


DEFAULT_USERS = (User("admin", ("system:masters",)), User("hub"), User("nobody"), User("reader"))


class ApiServer:
    """One API server: start it, use ``api`` (the admin), write kubeconfigs, break it, repair it.

    Args:
        name: name in kubeconfigs and messages.
        folder: for its data, logs and certificates; created if missing.
        users: users besides ``admin`` (system:masters), and ``hub``, ``nobody`` and ``reader`` (no rights).
        flags: additional flags of kube-apiserver.
    """

    def __init__(self, name: str, folder: Path, users: Sequence[User] = (), flags: Sequence[str] = ()) -> None:
        self.name = name
        self.folder = folder
        self.users = {user.name: user for user in (*DEFAULT_USERS, *users)}
        self.port = 0
        self._etcd_port = 0
        self.authority = Authority(f"{name}-ca")
        self._flags = flags
        self._apis: list[Api] = []
        self._api: Api | None = None
        self._etcd: Process | None = None
        self._apiserver: Process | None = None

    @property
    def url(self) -> str:
        """Its address, which a restart does not change."""
        return f"https://127.0.0.1:{self.port}"

    @property
    def ca_pem(self) -> str:
        """The authority that signed its serving certificate."""
        return self.authority.pem

    @property
    def api(self) -> Api:
        """A client as the admin."""
        if self._api is None:
            self._api = self.api_as("admin")
        return self._api

    @property
    def etcd(self) -> Process:
        """Its etcd process, for tests that stop, pause or kill it."""
        if self._etcd is None:
            raise RuntimeError(f"{self.name} was never started")
        return self._etcd

    @property
    def process(self) -> Process:
        """The kube-apiserver process."""
        if self._apiserver is None:
            raise RuntimeError(f"{self.name} was never started")
        return self._apiserver

    # Starting and stopping

    def start(self) -> None:
        """Start both processes on new ports and wait until the API is ready.

        Raises:
            KitUnavailable: the programs are missing and cannot be built.
            RuntimeError: it does not start; the message has the ends of the logs.
        """
        programs = binaries.ensure("etcd", "kube-apiserver")
        self._prepare()
        for attempt in range(START_ATTEMPTS):
            self._compose(programs, free_port(), free_port())
            self.etcd.start()
            self.process.start()
            try:
                self.wait_ready()
                break
            except RuntimeError as error:
                self.kill()
                self.etcd.kill()
                if attempt + 1 == START_ATTEMPTS or "address already in use" not in str(error):
                    raise
                self._forget_connections()
                shutil.rmtree(self.folder / "data", ignore_errors=True)

    def stop(self) -> None:
        """Stop both processes and remove the data; logs stay."""
        self._forget_connections()
        if self._apiserver is not None:
            self._apiserver.kill()  # SIGTERM would wait for open watches
        if self._etcd is not None:
            self._etcd.kill()
        shutil.rmtree(self.folder / "data", ignore_errors=True)

    def kill(self) -> None:
        """Send SIGKILL to the API server; from now on its port refuses connections."""
        self.process.kill()

    def restart(self, *flags: str) -> None:
        """Restart the API server on the same port with the same data, whether or not it runs.

        Args:
            flags: flags for this run only. They come last, so they override the usual ones.
        """
        self.process.kill()
        self.process.start(*flags)
        self.wait_ready()

    def pause(self) -> None:
        """Pause the API server: its port accepts connections, but no request is answered."""
        self.process.pause()

    def resume(self) -> None:
        """Continue after :meth:`pause`."""
        self.process.resume()

    def ensure_running(self) -> None:
        """Undo what a test broke: resume paused processes, restart dead ones and those with extra flags."""
        for process in (self.etcd, self.process):
            if process.extra:
                process.kill()
            if process.alive:
                process.resume()
            else:
                process.start()
        self.wait_ready()

    def wait_ready(self, timeout: float = START_TIMEOUT) -> None:
        """Wait until ``/readyz`` is ok and the namespaces ``default`` and ``kube-system`` exist."""
        deadline = time.monotonic() + timeout
        while True:
            problem = self._problem()
            if not problem:
                return
            dead = [process for process in (self.etcd, self.process) if not process.alive]
            if dead or time.monotonic() > deadline:
                logs = "\n".join(f"--- {p.log}\n{p.log_tail()}" for p in dead or (self.etcd, self.process))
                raise RuntimeError(f"API server {self.name} is not ready: {problem}\n{logs}")
            time.sleep(0.05)

    def forget_history(self) -> None:
        """Compact etcd and restart the API server, so that every older resourceVersion is expired (410).

        Without the restart, the watch cache would still answer from memory.
        """
        now = self.api.get("/api/v1/namespaces", limit=1)["metadata"]["resourceVersion"]
        etcd = http.client.HTTPConnection("127.0.0.1", self._etcd_port, timeout=10)
        with contextlib.closing(etcd):
            etcd.request("POST", "/v3/kv/compaction", json.dumps({"revision": now, "physical": True}))
            with etcd.getresponse() as answer:
                if answer.status != http.client.OK:
                    raise RuntimeError(f"etcd of {self.name} does not compact: {answer.read()!r}")
        self.restart()

    # Users

    def token(self, user: str = "admin") -> str:
        """The bearer token of a user in the token file."""
        return self.users[user].token

    def api_as(self, user: str) -> Api:
        """A client as a user of the token file, closed with the server."""
        return self.api_with(self.token(user))

    def api_with(self, token: str | None) -> Api:
        """A client with any bearer token, or anonymous for None, closed with the server."""
        api = Api(self.url, ssl.create_default_context(cadata=self.ca_pem), token)
        self._apis.append(api)
        return api

    def service_account_token(self, namespace: str, name: str, seconds: int = 3600) -> str:
        """Request a token for a ServiceAccount, which is created if missing. The API refuses less than 600 seconds."""
        accounts = f"/api/v1/namespaces/{namespace}/serviceaccounts"
        if not self.api.exists(f"{accounts}/{name}"):
            self.api.post(accounts, {"metadata": {"name": name}})
        request = {"spec": {"expirationSeconds": seconds}}
        answer = self.api.post(f"{accounts}/{name}/token", request)
        return str(answer["status"]["token"])

    def grant(self, user: str, *rules: Object, namespace: str | None = None) -> None:
        """Bind rules to a user, in one namespace or cluster-wide. They are deleted after the test, like any object.

        Returns when the rules are in force: the API server applies a role and a binding with a delay.

        Example:
            ``server.grant("hub", {"apiGroups": [""], "resources": ["nodes"], "verbs": ["list", "watch"]})``
        """
        base = "/apis/rbac.authorization.k8s.io/v1" + (f"/namespaces/{namespace}" if namespace else "")
        prefix = "" if namespace else "cluster"
        name = f"{user}-{secrets.token_hex(4)}"
        kind = "Role" if namespace else "ClusterRole"
        self.api.post(f"{base}/{prefix}roles", {"metadata": {"name": name}, "rules": list(rules)})
        binding = {
            "metadata": {"name": name},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}],
        }
        self.api.post(f"{base}/{prefix}rolebindings", binding)
        [*_, last] = rules
        eventually(lambda: self.allows(user, last, namespace), every=0.01)

    def allows(self, user: str, rule: Object, namespace: str | None = None) -> bool:
        """Whether the API server applies a rule yet; checks the first verb on the first resource."""
        verb = rule["verbs"][0]
        if paths := rule.get("nonResourceURLs"):
            asked = {"nonResourceAttributes": {"path": paths[0].replace("*", "any"), "verb": verb}}
        else:
            resource, _, subresource = rule["resources"][0].partition("/")
            what = {"group": rule["apiGroups"][0], "resource": resource, "subresource": subresource}
            name = next(iter(rule.get("resourceNames", ())), "")
            asked = {"resourceAttributes": {**what, "verb": verb, "name": name, "namespace": namespace or ""}}
        path = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
        answer = self.api.post(path, {"spec": {"user": user, **asked}})
        return bool(answer["status"]["allowed"])

    def kubeconfig(self, path: Path, user: str = "admin", *, token: str | None = None) -> Path:
        """Write a kubeconfig with inline CA and the user's token, or ``token``. The context has the server's name."""
        return self._write_kubeconfig(path, user, {"token": token or self.token(user)})

    def certificate_kubeconfig(
        self, path: Path, user: str, groups: Sequence[str] = (), lifetime: timedelta = timedelta(days=1)
    ) -> Path:
        """Write a kubeconfig with an inline client certificate; a negative lifetime makes it expired."""
        certificate = self.authority.client(user, groups, lifetime)
        pems = {"client-certificate-data": certificate.pem, "client-key-data": certificate.key_pem}
        return self._write_kubeconfig(path, user, {key: _base64(pem) for key, pem in pems.items()})

    # The audit log

    def audit_mark(self) -> Mark:
        """The present moment, for :meth:`requests`."""
        return Mark(self._audit_log.stat().st_size, time.time())

    def requests(self, since: Mark = BEGINNING, user: str | None = None) -> list[audit.Request]:
        """The answered requests since a mark, of one user if given. A watch counts from its start.

        A request is logged shortly after its answer: wait for requests that must be there, and wait a moment before
        asserting that there is none.
        """
        return [request for request in audit.read(self._audit_log, since) if user in (None, request.user)]

    @property
    def _audit_log(self) -> Path:
        return self.folder / "audit.log"

    def _prepare(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        account_key = Key()
        serving = self.authority.server("127.0.0.1", "localhost")
        files = {
            "ca.crt": self.ca_pem,
            "server.crt": serving.pem,
            "server.key": serving.key_pem,
            "accounts.key": account_key.pem,
            "accounts.pub": account_key.public_pem,
            "tokens.csv": "".join(user.line for user in self.users.values()),
            "audit.json": json.dumps(audit.POLICY),
            "audit.log": "",
        }
        for name, content in files.items():
            (self.folder / name).write_text(content)

    def _compose(self, programs: Mapping[str, Path], etcd_port: int, port: int) -> None:
        self.port = port
        self._etcd_port = etcd_port
        etcd_url = f"http://127.0.0.1:{etcd_port}"
        etcd_flags = {
            "data-dir": self.folder / "data",
            "listen-client-urls": etcd_url,
            "advertise-client-urls": etcd_url,
            "listen-peer-urls": "http://127.0.0.1:0",
            "log-level": "warn",
            "unsafe-no-fsync": "true",
        }
        api_flags = {
            "etcd-servers": etcd_url,
            "bind-address": "127.0.0.1",
            "secure-port": port,
            "cert-dir": self.folder,
            "tls-cert-file": self.folder / "server.crt",
            "tls-private-key-file": self.folder / "server.key",
            "client-ca-file": self.folder / "ca.crt",
            "token-auth-file": self.folder / "tokens.csv",
            "authorization-mode": "RBAC",
            "service-account-issuer": self.url,
            "service-account-key-file": self.folder / "accounts.pub",
            "service-account-signing-key-file": self.folder / "accounts.key",
            "service-cluster-ip-range": ",".join(SERVICE_CIDRS),
            "disable-admission-plugins": "ServiceAccount",  # no controller creates the accounts that Pods need
            "endpoint-reconciler-type": "none",
            "allow-privileged": "true",
            "audit-policy-file": self.folder / "audit.json",
            "audit-log-path": self._audit_log,
        }
        self._etcd = Process(
            f"etcd of {self.name}", [str(programs["etcd"]), *as_flags(etcd_flags)], self.folder / "etcd.log"
        )
        self._apiserver = Process(
            f"kube-apiserver {self.name}",
            [str(programs["kube-apiserver"]), *as_flags(api_flags), *self._flags],
            self.folder / "kube-apiserver.log",
        )

    def _problem(self) -> str:
        try:
            self.api.get("/readyz")
            for namespace in ("default", "kube-system"):
                self.api.get(f"/api/v1/namespaces/{namespace}")
        except ApiRefused as refused:
            return str(refused)
        return ""

    def _forget_connections(self) -> None:
        for api in self._apis:
            api.close()
        self._apis.clear()
        self._api = None

    def _write_kubeconfig(self, path: Path, user: str, credentials: Object) -> Path:
        cluster = {"server": self.url, "certificate-authority-data": _base64(self.ca_pem)}
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": self.name, "cluster": cluster}],
            "users": [{"name": user, "user": credentials}],
            "contexts": [{"name": self.name, "context": {"cluster": self.name, "user": user}}],
            "current-context": self.name,
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o600)
        path.write_text(yaml.safe_dump(content, sort_keys=False))
        return path


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()
