"""The fakes of all providers in one form: the scene of a test, the truth, and what a request asks for.

Each fake serves on loopback and runs in the event loop of the proxies.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol
from urllib.parse import parse_qs, parse_qsl, urlsplit

from hub_testkit.addresses.cloud import CREDENTIAL, SimulatedCloud

from tests.support import remote_cloud
from tests.support.faults.proxy import Request

Kind = Literal["detach", "attach", "make room", "restore", "follow", "read"]
Run = Callable[[Coroutine[Any, Any, Any]], Any]
"""Runs a coroutine in the loop of the fakes."""


class Act(NamedTuple):
    """What a request asks the cloud for; ``address`` and ``node`` as far as the request names them."""

    kind: Kind
    address: str = ""
    node: str = ""

    @property
    def writes(self) -> bool:
        """Whether it changes something."""
        return self.kind not in ("follow", "read")


class Cloud(Protocol):
    """A provider's fake.

    Attributes:
        provider: the name in the registry.
        network: its addresses.
        port: of its API.
        environment: of a hub process that uses it.
        before: what an instance has in the place of an address, as the provider says it; "" = nothing.
        operations: whether writes take time.
    """

    provider: str
    network: str
    port: int
    environment: Mapping[str, str]
    before: str
    operations: bool

    def __init__(self, run: Run) -> None: ...

    def config(self, url: str, folder: Path) -> dict[str, Any]:
        """``config`` of an account whose API is at ``url``; writes files that it refers to into ``folder``."""
        ...

    def close(self) -> None:
        """Stop serving."""
        ...

    def reserve(self) -> str:
        """A new reserved address."""
        ...

    def add(self, name: str) -> tuple[str, str]:
        """A new instance with an ephemeral address; returns the Node's providerID and the instance's id."""
        ...

    def hold(self, address: str, name: str) -> None:
        """Give an address to an instance."""
        ...

    def release(self, address: str) -> None:
        """Take an address from its holder, as an operator would by hand."""
        ...

    def holder_of(self, address: str) -> str:
        """The name of the holder; "" if nothing has it."""
        ...

    def ephemeral(self, name: str) -> bool:
        """Whether an instance has an ephemeral address."""
        ...

    def changes(self) -> int:
        """How many changes were carried out on request."""
        ...

    def length(self, seconds: float) -> None:
        """Set how long operations take."""
        ...

    def act(self, request: Request, body: bytes) -> Act:
        """What a request asks for."""
        ...


class Simulated:
    """The simulated cloud of the test kit."""

    provider = remote_cloud.NAME
    network = "198.18.0.0/15"
    environment: Mapping[str, str] = {}
    before = "external-nat/PREMIUM"
    operations = True

    def __init__(self, run: Run) -> None:
        self.cloud = SimulatedCloud()
        self._server = remote_cloud.CloudServer(self.cloud)
        self._run = run
        run(self._server.__aenter__())
        self.port = self._server.port

    def close(self) -> None:
        self._run(self._server.__aexit__())

    def config(self, url: str, folder: Path) -> dict[str, Any]:
        (folder / "credential").write_text(CREDENTIAL)
        return {"cloud": url, "credential": {"file": "credential"}}

    def reserve(self) -> str:
        return self.cloud.reserve()

    def add(self, name: str) -> tuple[str, str]:
        return self.cloud.add_instance(name, ephemeral=True).provider_id, f"z1/{name}"

    def hold(self, address: str, name: str) -> None:
        self.cloud.hold(address, name)
        self.cloud.instance(name).ephemeral = ""

    def release(self, address: str) -> None:
        name = self.cloud.holder_of(address)
        self.cloud.hold(address, "")
        self.cloud.instance(name).ephemeral = self.cloud.instance("stranger").ephemeral

    def holder_of(self, address: str) -> str:
        return self.cloud.holder_of(address)

    def ephemeral(self, name: str) -> bool:
        return bool(self.cloud.instance(name).ephemeral)

    def changes(self) -> int:
        return self.cloud.changes

    def length(self, seconds: float) -> None:
        self.cloud.operations(seconds)

    def act(self, request: Request, body: bytes) -> Act:
        action, said = request.path.strip("/"), json.loads(body)
        if action in ("attach", "detach", "restore"):
            return Act(action, said.get("address", ""), said["instance"].rpartition("/")[2])  # type: ignore[arg-type]
        return Act("follow" if action == "operation" else "read")


class Gcp:
    """The fake of Google Cloud."""

    provider = "gcp"
    network = "203.0.113.0/24"
    environment: Mapping[str, str] = {}
    before = "PREMIUM/external-nat"
    operations = True

    def __init__(self, run: Run) -> None:
        from hub_provider_gcp.testing import GcpFake

        self.fake = run(GcpFake().__aenter__())
        self.port: int = self.fake.port
        self._run = run

    def close(self) -> None:
        self._run(self.fake.__aexit__())

    def config(self, url: str, folder: Path) -> dict[str, Any]:
        (folder / "key.json").write_text(self.fake.key_file())
        (folder / "key.json").chmod(0o600)
        credentials = {"file": "key.json"}
        return {
            "project": self.fake.cloud.project,
            "regions": ["us-west1"],
            "endpoint": url,
            "credentials": credentials,
        }

    def reserve(self) -> str:
        return str(self.fake.cloud.reserve())

    def add(self, name: str) -> tuple[str, str]:
        vm = self.fake.cloud.add_vm(name, ephemeral="external-nat")
        return f"gce://{self.fake.cloud.project}/{vm.zone}/{name}", vm.path

    def hold(self, address: str, name: str) -> None:
        self.fake.cloud.hold(address, name)

    def release(self, address: str) -> None:
        self.fake.cloud.release(address)

    def holder_of(self, address: str) -> str:
        self.fake.cloud.settle()
        users = self.fake.cloud.users(address)
        assert len(users) < 2, f"{address} is at {users}"
        return users[0].rpartition("/")[2] if users else ""

    def ephemeral(self, name: str) -> bool:
        self.fake.cloud.settle()
        access = self.fake.cloud.vms[name].access
        return access is not None and access["natIP"] not in self.fake.cloud.addresses

    def changes(self) -> int:
        return int(self.fake.cloud.changes)

    def length(self, seconds: float) -> None:
        self.fake.cloud.seconds = seconds

    def act(self, request: Request, body: bytes) -> Act:
        parts = urlsplit(request.path)
        *_, name, verb = parts.path.split("/")
        if verb == "addAccessConfig":
            address = json.loads(body).get("natIP", "")
            return Act("attach" if address else "restore", address, name)
        if verb == "deleteAccessConfig":
            access = self.fake.cloud.vms[name].access or {}
            address = access.get("natIP", "")
            config = parse_qs(parts.query)["accessConfig"][0]
            ours = address in self.fake.cloud.addresses and config == access.get("name")
            return Act("detach", address, name) if ours else Act("make room", "", name)
        return Act("follow" if "/operations/" in parts.path else "read")


class Aws:
    """moto's server."""

    provider = "aws"
    network = "198.51.100.0/24"
    before = ""
    operations = False

    def __init__(self, run: Run) -> None:
        from hub_provider_aws.testing import ACCESS_KEY, SECRET_KEY, FakeAws

        del run
        self.fake = FakeAws().__enter__()
        self.port = int(self.fake.url.rpartition(":")[2])
        self.environment: Mapping[str, str] = {"FAKE_ID": ACCESS_KEY, "FAKE_SECRET": SECRET_KEY}

    def close(self) -> None:
        self.fake.__exit__()

    def config(self, url: str, folder: Path) -> dict[str, Any]:
        from hub_provider_aws.testing import REGION

        del folder
        pair = {"accessKeyId": {"env": "FAKE_ID"}, "secretAccessKey": {"env": "FAKE_SECRET"}}
        return {"region": REGION, "endpoint": url, "credentials": pair}

    def reserve(self) -> str:
        return str(self.fake.reserve())

    def add(self, name: str) -> tuple[str, str]:
        found = self.fake.add_instance(name).provider_id
        return found, found.rpartition("/")[2]

    def hold(self, address: str, name: str) -> None:
        self.fake.hold(address, name)

    def release(self, address: str) -> None:
        self.fake.release(address)

    def holder_of(self, address: str) -> str:
        return str(self.fake.holder_of(address))

    def ephemeral(self, name: str) -> bool:
        del name
        return False

    def changes(self) -> int:
        return int(self.fake.changes)

    def length(self, seconds: float) -> None:
        del seconds

    def act(self, request: Request, body: bytes) -> Act:
        del request
        said = dict(parse_qsl(body.decode()))
        kinds: dict[str, Kind] = {"AssociateAddress": "attach", "DisassociateAddress": "detach"}
        return Act(kinds.get(said["Action"], "read"))


class Azure:
    """The fake of Azure."""

    provider = "azure"
    network = "20.50.0.0/16"
    before = ""
    operations = True

    def __init__(self, run: Run) -> None:
        from hub_provider_azure.testing import FakeAzure

        self.fake = run(FakeAzure().__aenter__())
        self.port = int(self.fake.host.rpartition(":")[2])
        self.environment: Mapping[str, str] = {"AZURE_CLIENT_SECRET": self.fake.client_secret}
        self._run = run

    def close(self) -> None:
        self._run(self.fake.__aexit__())

    def config(self, url: str, folder: Path) -> dict[str, Any]:
        del folder
        return {**self.fake.config, "endpoint": url}

    def reserve(self) -> str:
        return str(self.fake.reserve())

    def add(self, name: str) -> tuple[str, str]:
        found = self.fake.add_instance(name).provider_id
        return found, found.removeprefix("azure://").lower()

    def hold(self, address: str, name: str) -> None:
        self.fake.hold(address, name)

    def release(self, address: str) -> None:
        self.fake.release(address)

    def holder_of(self, address: str) -> str:
        return str(self.fake.holder_of(address))

    def ephemeral(self, name: str) -> bool:
        del name
        return False

    def changes(self) -> int:
        return int(self.fake.changes)

    def length(self, seconds: float) -> None:
        self.fake.operations(seconds)

    def act(self, request: Request, body: bytes) -> Act:
        if request.verb == "update":
            return Act("attach" if b"publicIPAddress" in body else "detach")
        return Act("follow" if "/operations/" in request.path else "read")


class Ionos:
    """The fake of IONOS Cloud."""

    provider = "ionos"
    network = "203.0.113.0/24"
    before = ""
    operations = True

    def __init__(self, run: Run) -> None:
        from hub_provider_ionos.testing import IonosFake

        self.fake = run(IonosFake().__aenter__())
        self.port = int(self.fake.port)
        self.environment: Mapping[str, str] = {"IONOS_TOKEN": self.fake.token}
        self._run = run

    def close(self) -> None:
        self._run(self.fake.__aexit__())

    def config(self, url: str, folder: Path) -> dict[str, Any]:
        from hub_provider_ionos.testing import DATACENTER

        del folder
        path = urlsplit(self.fake.url).path
        return {"datacenters": [DATACENTER], "apiUrl": f"{url}{path}", "token": {"env": "IONOS_TOKEN"}}

    def reserve(self) -> str:
        return str(self.fake.cloud.reserve())

    def add(self, name: str) -> tuple[str, str]:
        found = str(self.fake.cloud.add_server(name))
        return f"ionos://{found}", found

    def hold(self, address: str, name: str) -> None:
        self.fake.cloud.hold(address, name)

    def release(self, address: str) -> None:
        self.fake.cloud.release(address)

    def holder_of(self, address: str) -> str:
        self.fake.cloud.settle()
        holders = [row["serverId"] for row in self.fake.cloud.consumers(address)]
        assert len(holders) < 2, f"{address} is at {holders}"
        return self._name(holders[0]) if holders else ""

    def _name(self, server: str) -> str:
        servers = [one.servers[server] for one in self.fake.cloud.datacenters.values() if server in one.servers]
        return str(servers[0]["properties"]["name"])

    def ephemeral(self, name: str) -> bool:
        del name
        return False

    def changes(self) -> int:
        return int(self.fake.cloud.changes)

    def length(self, seconds: float) -> None:
        self.fake.cloud.seconds = seconds

    def act(self, request: Request, body: bytes) -> Act:
        parts = urlsplit(request.path).path.split("/")
        if request.verb != "patch":
            return Act("follow" if "requests" in parts else "read")
        name = self._name(parts[parts.index("servers") + 1])
        wanted, has = json.loads(body)["ips"], self.fake.cloud.nics(name)[0]["properties"]["ips"]
        added, gone = [ip for ip in wanted if ip not in has], [ip for ip in has if ip not in wanted]
        return Act("attach", added[0], name) if added else Act("detach", gone[0] if gone else "", name)


CLOUDS: dict[str, type[Cloud]] = {
    "simulated": Simulated,
    "gcp": Gcp,
    "aws": Aws,
    "azure": Azure,
    "ionos": Ionos,
}
