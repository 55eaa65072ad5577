"""What the conformance rules need of an author's fake cloud.

The fake is stateful: a write changes what later reads show. Its methods below set the scene, state the truth without
the provider under test, and make the fake fail. They are synchronous, bypass the cloud's API, and name an instance by
the name of its Node. The fake may run in the test's event loop or in a thread; it listens on loopback only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from hub.model import Node
from hub_testkit.contexts import LocalHub

__all__ = ["Ability", "AddressFake", "Fault", "Request", "World"]

Fault = Literal["error", "garbage", "no-key", "lost-page", "lost-answer", "unauthorized", "throttled", "silent"]
"""How the fake fails:

- error: a 5xx without effect; its text repeats the credential of the request.
- garbage: a success status with a body that cannot be parsed.
- no-key: a success status with a well-formed body in which the part with the result is missing, such as ``{}``.
- lost-page: a listing has at least two pages, and a page after the first is an error or has no list.
- lost-answer: the request has its whole effect, then the connection breaks without an answer.
- unauthorized: a 401, or the cloud's own answer to an expired credential. The request has no effect.
- throttled: a 429, or the cloud's own answer to too many requests. The request has no effect.
- silent: no answer until :meth:`AddressFake.heal`.
"""

Ability = Literal[
    "error",
    "garbage",
    "no-key",
    "lost-page",
    "lost-answer",
    "unauthorized",
    "throttled",
    "silent",
    "retry-after",
    "operations",
    "changing",
    "elsewhere",
    "occupy",
    "ephemeral",
    "restore",
]
"""What a fake, or the cloud itself, may be unable to do; see :attr:`AddressFake.cannot`.

The faults, and: retry-after = say how long to wait when throttled; operations = accept a write and complete it later;
changing = show, where addresses are read, that an attach is under way;
elsewhere = an address held by something other than an instance; occupy = an instance that has no room because of
somebody else's static address; ephemeral = an instance that has something in the place of a reserved address;
restore = give that back.
"""


@dataclass(frozen=True, slots=True)
class Request:
    """One request that the fake received.

    Attributes:
        kind: "write" for a request that may change an address or an instance; "login" for one that only gets a
            credential, such as an access token; otherwise "read", also for looking at an operation.
        text: method and path, or action, for a test's message. Equal for repetitions of the same request.
        status: the HTTP status of the answer; 401 for a refused credential whatever the cloud's own status is; 0 if
            there was no answer.
    """

    kind: Literal["read", "write", "login"]
    text: str
    status: int = 200


class AddressFake(Protocol):
    """A fake cloud, as the rules use it."""

    @property
    def cannot(self) -> Mapping[Ability, str]:
        """What the fake or its cloud cannot do -> the reason. Rules that need it are skipped with the reason."""
        ...

    @property
    def requests(self) -> Sequence[Request]:
        """All requests so far, oldest first, including refused and failed ones; one appears as soon as it arrives."""
        ...

    @property
    def changes(self) -> int:
        """How many changes of addresses and interfaces the cloud has carried out or accepted on request.

        A request that the cloud takes for the repetition of an earlier one is no change. A request that sets what is
        set already is one. The methods of this protocol do not count.
        """
        ...

    @property
    def running(self) -> int:
        """How many operations have not ended yet."""
        ...

    def reserve(self) -> str:
        """Reserves another address in the account, held by nothing, and returns it."""
        ...

    def add_instance(self, name: str, *, ephemeral: bool = False, running: bool = True) -> Node:
        """Creates an instance where all addresses of the account can be attached.

        Args:
            name: the name of its Node.
            ephemeral: whether its primary interface has something in the place of a reserved address, such as an
                ephemeral address.
            running: whether it is not stopped.

        Returns:
            A Node, with the providerID that the cloud's own controller sets, that leads to the instance.
        """
        ...

    def hold(self, address: str, name: str) -> None:
        """Attaches a reserved address to an instance without ephemeral address, at once."""
        ...

    def hold_elsewhere(self, address: str) -> None:
        """Gives a reserved address to something other than an instance, such as a load balancer."""
        ...

    def occupy(self, name: str) -> str:
        """Attaches somebody else's static address, so that the instance has no room, and returns that address."""
        ...

    def holder_of(self, address: str) -> str:
        """The name of the Node whose instance has the address, "" if nothing has it, "elsewhere" for anything else."""
        ...

    def extras_of(self, name: str) -> object:
        """Everything else on the instance's interfaces, as a value that can be compared and shown.

        All properties of all interfaces, also unknown ones, without reserved addresses of the account that are
        attached, without what stands in the place of a reserved address, and without versions such as an etag.
        """
        ...

    def operations(self, seconds: float, *, ill: bool = False) -> None:
        """From now on the cloud accepts writes at once and completes them after so many seconds.

        Args:
            seconds: length of an operation; 0 = as short as the cloud's own way allows.
            ill: whether operations end with an error, and without effect.
        """
        ...

    def fail(self, fault: Fault, *, times: int | None = 1, on: Literal["any", "read", "write"] = "any") -> None:
        """Makes the next requests fail; requests of kind "login" always work.

        Args:
            fault: how.
            times: how many requests; None = all until :meth:`heal`. With "throttled", the fake says to wait one second,
                if the cloud says how long to wait.
            on: which requests fail.
        """
        ...

    def heal(self) -> None:
        """Ends all faults, and lets go of requests that :meth:`fail` with "silent" holds."""
        ...


@dataclass(frozen=True, slots=True)
class World:
    """A running fake, and how a provider reaches it.

    Attributes:
        fake: the fake.
        config: ``allocations.clouds[].config`` of an account of the fake.
        hub: the hub's context, with the secrets that ``config`` refers to and the hosts that may be contacted.
        secrets: texts that must never be shown: credentials, and access tokens that the fake issues.
    """

    fake: AddressFake
    config: Mapping[str, Any]
    hub: LocalHub = field(default_factory=LocalHub)
    secrets: Sequence[str] = ()
