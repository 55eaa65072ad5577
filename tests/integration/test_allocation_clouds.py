"""Each provider in a whole hub: a move, drift, and what is not the hub's, on the provider's fake.

``make test ARGS="--nightly -n 0 -s -k 'serves_its_addresses and aws'"`` prints the requests that the cloud received.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pytest

from tests.support.apiserver.server import ApiServer
from tests.support.faults.proxy import Request
from tests.support.killing.stage import Stage, expected
from tests.support.waiting import eventually

MOVE: Final[Mapping[str, list[str]]] = {
    "gcp": ["detach", "make room", "attach", "restore"],
    "aws": ["detach", "attach"],
    "azure": ["detach", "attach"],
    "ionos": ["detach", "attach"],
}
"""The writes of a move, in order."""
UUID: Final = "[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_ZONE: Final = "/compute/v1/projects/team-project/zones/us-west1-a"
_ACCESS: Final = f"networkInterface=nic0&requestId={UUID}"
_GROUP: Final = f"/subscriptions/{UUID}/resource[gG]roups/[A-Za-z_]+/providers"
_NETWORK: Final = r"\?api-version=2024-05-01"
_NIC: Final = rf"{_GROUP}/microsoft\.network/networkinterfaces/n[123]-nic{_NETWORK}"
_PAGE: Final = "&offset=0&limit=1000"
_SITE: Final = f"/cloudapi/v6/datacenters/{UUID}"
_GUEST: Final = f"{_SITE}/servers/{UUID}/nics/{UUID}"
CALLS: Final[Mapping[str, Mapping[str, str]]] = {
    "gcp": {
        "describe": "GET /compute/v1/projects/team-project/regions/us-west1/addresses"
        r"\?filter=addressType%3DEXTERNAL&maxResults=500",
        "inspect": f"GET {_ZONE}/instances/n[123]",
        "detach": rf"POST {_ZONE}/instances/n1/deleteAccessConfig\?accessConfig=External\+NAT&{_ACCESS}",
        "make room": rf"POST {_ZONE}/instances/n[123]/deleteAccessConfig\?accessConfig=external-nat&{_ACCESS}",
        "attach": rf"POST {_ZONE}/instances/n[123]/addAccessConfig\?{_ACCESS} "
        r'{"type": "ONE_TO_ONE_NAT", "name": ".*", "natIP": ".*", "networkTier": "PREMIUM"}',
        "restore": rf"POST {_ZONE}/instances/n1/addAccessConfig\?{_ACCESS} "
        '{"type": "ONE_TO_ONE_NAT", "name": "external-nat", "networkTier": "PREMIUM"}',
        "follow": f"GET {_ZONE}/operations/operation-[0-9]+",
    },
    "aws": {
        "describe": r"POST / Action=DescribeAddresses&Version=2016-11-15&Filter\.1\.Name=public-ip"
        r"(&Filter\.1\.Value\.[12]=198\.51\.100\.[12])+",
        "inspect": r"POST / Action=DescribeInstances&Version=2016-11-15&Filter\.1\.Name=instance-id"
        r"(&Filter\.1\.Value\.[1-3]=i-[0-9a-f]+)+",
        "detach": "POST / Action=DisassociateAddress&Version=2016-11-15&AssociationId=eipassoc-[0-9a-f]+",
        "attach": "POST / Action=AssociateAddress&Version=2016-11-15&AllocationId=eipalloc-[0-9a-f]+"
        r"&NetworkInterfaceId=eni-[0-9a-f]+&PrivateIpAddress=[0-9.]+&AllowReassociation=false",
    },
    "azure": {
        "describe": rf"GET {_GROUP}/Microsoft\.Network/publicIPAddresses{_NETWORK}",
        "read address": rf"GET {_GROUP}/microsoft\.network/publicipaddresses/ip-[12]{_NETWORK}",
        "inspect": rf"GET {_GROUP}/microsoft\.compute/virtualmachines/n[123]"
        r"\?api-version=2024-07-01&\$expand=instanceView",
        "read interface": f"GET {_NIC}",
        "detach": f'PUT {_NIC} (?!.*"publicIPAddress"){{.*}}',
        "attach": f'PUT {_NIC} {{.*"publicIPAddress".*}}',
        "follow": rf"GET /subscriptions/{UUID}/providers/microsoft\.network/locations/westeurope"
        f"/operations/{UUID}{_NETWORK}",
    },
    "ionos": {
        "describe": rf"GET /cloudapi/v6/ipblocks\?depth=1{_PAGE}",
        "list servers": rf"GET {_SITE}/servers\?depth=3{_PAGE}",
        "list LANs": rf"GET {_SITE}/lans\?depth=1{_PAGE}",
        "read data center": rf"GET {_SITE}\?depth=1",
        "read interface": rf"GET {_GUEST}\?depth=1",
        "detach": rf'PATCH {_GUEST} {{"ips": \["198\.51\.100\.[0-9]+"\]}}',
        "attach": rf'PATCH {_GUEST} {{"ips": \["198\.51\.100\.[0-9]+", "203\.0\.113\.[0-9]+"\]}}',
        "follow": f"GET /cloudapi/v6/requests/{UUID}/status",
    },
}
"""All requests that a provider may send to the API, by what they are for. Logins go to another server."""
METHODS: Final = {"create": "POST", "update": "PUT"}


def logged(request: Request, body: bytes) -> str:
    """A line of the request log: method, path and body."""
    return f"{METHODS.get(request.verb, request.verb.upper())} {request.path} {body.decode()}".rstrip()


def call(kind: str, line: str) -> str:
    """What a request is for; fails if a provider must not send it."""
    found = [name for name, pattern in CALLS[kind].items() if re.fullmatch(pattern, line)]
    assert found, f"{kind}: not a documented request: {line}"
    return found[0]


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[] if kind == "gcp" else pytest.mark.nightly) for kind in CALLS]
)
def test_a_cloud_serves_its_addresses_and_nothing_else(hub_cluster: ApiServer, tmp_path: Path, kind: str) -> None:
    """An address leaves a cordoned node; one that is taken by hand comes back; a stranger's address stays.

    The cloud receives the writes of these two and no others, one in the name of each step. The request log has each
    documented request of the provider, and no other one.
    """
    with Stage(hub_cluster, tmp_path, kind) as stage:
        stage.start()
        stage.drain()
        assert stage.end(40) == expected(stage)
        assert [written.act.kind for written in stage.written] == MOVE[kind]
        moved = len(stage.written)
        stage.cloud.release(stage.staying)
        eventually(lambda: stage.cloud.holder_of(stage.staying) == "n2", 60)
        eventually(lambda: stage.status()["attached"] == 2, 20)
        calls = []
        for request, body in list(stage.asked):
            line = logged(request, body)
            calls.append(call(kind, line))
            sys.stdout.write(f"{calls[-1]:16} {line[:300]}\n")
        assert set(calls) == CALLS[kind].keys()
        assert [written.act.kind for written in stage.written[moved:]] == ["attach"]
        assert {written.act.address for written in stage.written} <= {stage.moving, stage.staying, ""}
        assert stage.cloud.holder_of(stage.foreign) == "stranger"
