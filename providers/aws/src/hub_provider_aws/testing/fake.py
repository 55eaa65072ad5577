"""moto's EC2 behind a server that checks signatures, fails on demand, and keeps a log.

Two answers of moto differ from EC2's and are corrected here: DescribeAddresses does not show the instance of an address
that was associated by network interface, and DescribeInstances shows auto-assigned addresses as the account's own.
"""
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import itertools
import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Final, Literal, NamedTuple, Self
from urllib.parse import parse_qsl, urlencode
from xml.etree import ElementTree
from xml.sax.saxutils import escape

from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from moto.ec2.models import ec2_backends
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server
from werkzeug.test import Client
from werkzeug.wrappers import Request, Response

from hub.plugin import Node
from hub_provider_aws.answers import parse, text

REGION: Final = "eu-west-1"
ACCESS_KEY: Final = "AKIDFAKEAWS000000001"
SECRET_KEY: Final = "fake/aws+secret+key+0000000000000000000001"  # noqa: S105 - not a secret
WRITES: Final = frozenset(("AssociateAddress", "DisassociateAddress"))

_numbers = itertools.count(1)


class Served(NamedTuple):
    """One request that the fake received.

    Attributes:
        kind: "write" for an action that changes an association.
        text: The action and its parameters.
        status: The status of the answer; 0 if there is none.
    """

    kind: Literal["read", "write"]
    text: str
    status: int = 0


class FakeAws:
    """One account of AWS in the region :data:`REGION`. A context manager: it serves from enter to exit.

    Args:
        show: Called with each request after it was answered.
        latency: Seconds before each answer.

    Attributes:
        requests: All requests so far, oldest first.
        changes: How many associations were made or ended by requests.
        keys: The secret of each access key that is accepted.
        arrived: Called with the action of each request before it is answered.
        page: The most instances on a page of DescribeInstances; 0 = all.
    """

    def __init__(self, show: Callable[[Served], None] = lambda _: None, latency: float = 0.0) -> None:
        self.requests: list[Served] = []
        self.changes = 0
        self.keys = {ACCESS_KEY: SECRET_KEY}
        self.page = 0
        self.arrived: Callable[[str], object] = lambda _: None
        self.running = 0
        self.latency = latency
        self._show = show
        self._account = f"{next(_numbers):012d}"
        self._nodes: dict[str, tuple[str, str]] = {}
        self._spare = (f"198.51.100.{number}" for number in range(1, 255))
        self._faults: list[tuple[Callable[[str], bool], Callable[[Request, str], Response]]] = []
        self._lock = threading.RLock()
        self._healed = threading.Event()
        self._moto = DomainDispatcherApplication(create_backend_app)
        self._server = make_server("127.0.0.1", 0, self._serve, threaded=True, request_handler=_Quiet)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), name="fake-aws", daemon=True)
        self._subnet = text(self._ask("DescribeSubnets"), "subnetSet/item/subnetId")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.heal()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        ec2_backends.pop(self._account, None)

    @property
    def url(self) -> str:
        """The value for ``endpoint``."""
        return f"http://127.0.0.1:{self._server.server_port}"

    # --- the scene -------------------------------------------------------------------------------------

    def reserve(self) -> str:
        """Allocates another Elastic IP and returns it."""
        address = next(self._spare)
        self._ask("AllocateAddress", Domain="vpc", Address=address)
        return address

    def add_instance(self, name: str, *, ephemeral: bool = False, running: bool = True) -> Node:
        """Starts an instance with one network interface; ``ephemeral`` = with an auto-assigned public address."""
        answer = self._ask(
            "RunInstances",
            ImageId="ami-12c6146b",
            MinCount="1",
            MaxCount="1",
            InstanceType="m5.large",
            **{
                "NetworkInterface.1.DeviceIndex": "0",
                "NetworkInterface.1.SubnetId": self._subnet,
                "NetworkInterface.1.AssociatePublicIpAddress": str(ephemeral).lower(),
            },
        )
        instance = text(answer, ".//instancesSet/item/instanceId")
        self._nodes[name] = instance, text(answer, ".//networkInterfaceSet/item/networkInterfaceId")
        if not running:
            self.stop(name)
        zone = text(answer, ".//placement/availabilityZone")
        return Node(name=name, provider_id=f"aws:///{zone}/{instance}")

    def stop(self, name: str) -> None:
        """Stops the instance of a node."""
        self._ask("StopInstances", **{"InstanceId.1": self._nodes[name][0]})

    def terminate(self, name: str) -> None:
        """Terminates the instance of a node."""
        self._ask("TerminateInstances", **{"InstanceId.1": self._nodes[name][0]})

    def hold(self, address: str, name: str) -> None:
        """Associates an Elastic IP with the primary network interface of a node's instance, wherever it was before."""
        self._associate(address, self._nodes[name][1])

    def hold_elsewhere(self, address: str) -> None:
        """Associates an Elastic IP with a network interface of no instance, as a NAT gateway does."""
        answer = self._ask("CreateNetworkInterface", SubnetId=self._subnet)
        self._associate(address, text(answer, "networkInterface/networkInterfaceId"))

    def hold_secondary(self, address: str, name: str) -> None:
        """Associates an Elastic IP with a second network interface of a node's instance."""
        answer = self._ask("CreateNetworkInterface", SubnetId=self._subnet)
        interface = text(answer, "networkInterface/networkInterfaceId")
        self._ask(
            "AttachNetworkInterface", NetworkInterfaceId=interface, InstanceId=self._nodes[name][0], DeviceIndex="1"
        )
        self._associate(address, interface)

    def occupy(self, name: str) -> str:
        """Associates another Elastic IP with a node's instance and returns it."""
        address = self.reserve()
        self.hold(address, name)
        return address

    def release(self, address: str) -> None:
        """Ends the association of an Elastic IP, if it has one."""
        if association := self._elastic(address).association_id:
            self._ask("DisassociateAddress", AssociationId=association)

    # --- the truth -------------------------------------------------------------------------------------

    def holder_of(self, address: str) -> str:
        """Returns the node that has an address, "" if nothing has it, "elsewhere" for anything else."""
        with self._lock:
            interface = self._elastic(address).network_interface_id
        names = {primary: name for name, (_, primary) in self._nodes.items()}
        return names.get(interface, "elsewhere") if interface else ""

    def extras_of(self, name: str) -> object:
        """Returns everything else on the network interfaces of a node's instance, as text."""
        answer = self._ask("DescribeInstances", **{"InstanceId.1": self._nodes[name][0]})
        found = answer.find(".//networkInterfaceSet")
        assert found is not None  # noqa: S101 - for type checkers; moto always has it
        for parent in list(found.iter()):
            for child in parent.findall("association"):
                parent.remove(child)
        return ElementTree.tostring(found, "unicode")

    # --- faults ----------------------------------------------------------------------------------------

    def operations(self, seconds: float, *, ill: bool = False) -> None:
        """Does nothing: all actions of EC2 that the provider uses are synchronous."""

    def fail(self, fault: str, *, times: int | None = 1, on: Literal["any", "read", "write"] = "any") -> None:
        """Makes the next requests fail, see ``hub_testkit.addresses.fake.Fault``."""
        self.fail_with(partial(self._faulty, fault), times=times, on=on)

    def answer(
        self,
        status: int,
        body: str,
        headers: Mapping[str, str] | None = None,
        *,
        action: str = "",
        times: int | None = 1,
    ) -> None:
        """Answers the next requests, of one action if it is given, with a canned answer and without effect."""

        def canned(_request: Request, _action: str) -> Response:
            return Response(body, status, dict(headers or {}), content_type="text/xml;charset=UTF-8")

        self.fail_with(canned, times=times, action=action)

    def refuse(
        self,
        status: int,
        code: str,
        *,
        headers: Mapping[str, str] | None = None,
        action: str = "",
        times: int | None = 1,
    ) -> None:
        """Answers the next requests, of one action if it is given, with an error of EC2."""
        self.answer(status, error_xml(code, "no"), headers, action=action, times=times)

    def fail_with(
        self,
        answer: Callable[[Request, str], Response],
        *,
        times: int | None = 1,
        on: Literal["any", "read", "write"] = "any",
        action: str = "",
    ) -> None:
        """Lets a function answer the next requests."""
        left = itertools.count() if times is None else iter(range(times))

        def applies(asked: str) -> bool:
            kind = "write" if asked in WRITES else "read"
            return on in ("any", kind) and action in ("", asked) and next(left, None) is not None

        self._healed.clear()
        self._faults.append((applies, answer))

    def heal(self) -> None:
        """Ends all faults, and lets go of requests that wait."""
        self._faults.clear()
        self._healed.set()

    # --- serving ---------------------------------------------------------------------------------------

    def _serve(self, environ: dict[str, Any], start: Any) -> Iterable[bytes]:
        request = Request(environ)
        body = request.get_data()
        parameters = dict(parse_qsl(body.decode()))
        action = parameters.pop("Action", "")
        parameters.pop("Version", None)
        told = " ".join([action, *(f"{name}={value}" for name, value in parameters.items())])
        with self._lock:
            fault = next((answer for applies, answer in self._faults if applies(action)), None)
            number = len(self.requests)
            self.requests.append(Served("write" if action in WRITES else "read", told))
        self.arrived(action)
        time.sleep(self.latency)
        if refused := self._refused(request, body):
            answer = Response(error_xml("AuthFailure", refused), 401)
        else:
            answer = fault(request, action) if fault else self.forward(request)
        status = 0 if answer.headers.pop("X-No-Answer", "") else answer.status_code
        self.requests[number] = self.requests[number]._replace(status=status)
        self._show(self.requests[number])
        if "X-Cut" in answer.headers:
            answer.headers["Content-Length"] = str(len(answer.get_data()) + 1)
        if status == 0:
            environ["werkzeug.socket"].shutdown(2)
            return []
        return answer(environ, start)

    def _refused(self, request: Request, body: bytes) -> str:
        """Returns why the signature of a request is not accepted, "" if it is."""
        found = re.fullmatch(
            r"AWS4-HMAC-SHA256 Credential=(\w+)/\d{8}/([\w-]+)/ec2/aws4_request, "
            r"SignedHeaders=([\w;-]+), Signature=(\w+)",
            request.headers.get("Authorization", ""),
        )
        if found is None or found[1] not in self.keys or found[2] != REGION:
            return "AWS was not able to validate the provided access credentials"
        signed = {name: request.headers[name] for name in found[3].split(";") if name != "host"}
        again = AWSRequest(request.method, request.url, data=body, headers=signed)
        again.context["timestamp"] = request.headers["X-Amz-Date"]
        auth = SigV4Auth(Credentials(found[1], self.keys[found[1]]), "ec2", REGION)
        expected = auth.signature(auth.string_to_sign(again, auth.canonical_request(again)), again)
        return "" if expected == found[4] else "the signature does not match"

    def forward(self, request: Request, page: int = 0) -> Response:
        """Lets moto carry a request out.

        Args:
            request: The request.
            page: The most instances on a page; 0 = :attr:`page`.
        """
        body = request.get_data().decode()
        action = dict(parse_qsl(body))["Action"]
        size = page or self.page
        paged = f"&MaxResults={size}" if size and action == "DescribeInstances" else ""
        answer = self._post(body + paged, request.headers.get("Authorization", ""))
        self.changes += action in WRITES and answer.status_code == 200
        return answer

    def _post(self, form: str, authorization: str) -> Response:
        """Asks moto, and corrects its answer."""
        headers = {"Authorization": authorization, "x-moto-account-id": self._account}
        with self._lock:
            answer = Client(self._moto, Response).post(
                "/", data=form, headers=headers, content_type="application/x-www-form-urlencoded; charset=utf-8"
            )
            addresses: Any = ec2_backends[self._account][REGION].addresses
            for address in addresses:
                address.instance = address.eni.instance if address.eni else None
            elastic = {address.public_ip for address in addresses}

        def owned(found: re.Match[str]) -> str:
            public = re.search("<publicIp>(.*?)</publicIp>", found[0])
            auto = public is not None and public[1] not in elastic
            return re.sub(f">{self._account}<", ">amazon<", found[0]) if auto else found[0]

        answer.set_data(re.sub("<association>.*?</association>", owned, answer.get_data(as_text=True)))
        return answer

    def _ask(self, action: str, **parameters: str) -> ElementTree.Element:
        """Asks moto without the server."""
        form = urlencode({"Action": action, "Version": "2016-11-15", **parameters})
        scope = f"AWS4-HMAC-SHA256 Credential={ACCESS_KEY}/20260101/{REGION}/ec2/aws4_request, "
        answer = self._post(form, f"{scope}SignedHeaders=host, Signature=0")
        root = parse(answer.get_data())
        if answer.status_code != 200 or root is None:
            raise RuntimeError(f"{action}: {answer.get_data(as_text=True)}")
        return root

    def _associate(self, address: str, interface: str) -> None:
        self.release(address)
        self._ask("AssociateAddress", AllocationId=self._elastic(address).allocation_id, NetworkInterfaceId=interface)

    def _elastic(self, address: str) -> Any:
        (found,) = (one for one in ec2_backends[self._account][REGION].addresses if one.public_ip == address)
        return found

    def _faulty(self, fault: str, request: Request, action: str) -> Response:
        match fault:
            case "error":
                return Response(error_xml("InternalError", f"failed: {request.headers.get('Authorization')}"), 500)
            case "garbage":
                return Response("<DescribeAddressesResponse><addressesSet>", 200)
            case "no-key":
                return Response(f"<{action}Response><requestId>1</requestId></{action}Response>", 200)
            case "unauthorized":
                return Response(error_xml("AuthFailure", "not able to validate the provided access credentials"), 401)
            case "throttled":
                return Response(error_xml("RequestLimitExceeded", "Request limit exceeded."), 503, {"Retry-After": "1"})
            case "lost-page":
                return Response("", 502) if b"NextToken=" in request.get_data() else self.forward(request, page=2)
            case "lost-answer":
                self.forward(request)
            case "silent":
                self._healed.wait()
            case _:
                raise ValueError(fault)
        return Response("", headers={"X-No-Answer": "1"})


def error_xml(code: str, message: str) -> str:
    """Returns the body of an error of EC2."""
    error = f"<Error><Code>{escape(code)}</Code><Message>{escape(message)}</Message></Error>"
    return (
        f'<?xml version="1.0" encoding="UTF-8"?>\n<Response><Errors>{error}</Errors><RequestID>1</RequestID></Response>'
    )


class _Quiet(WSGIRequestHandler):
    def log(self, type: str, message: str, *args: Any) -> None:  # noqa: A002 - the name of werkzeug
        """Prints nothing: :class:`FakeAws` keeps a log."""
