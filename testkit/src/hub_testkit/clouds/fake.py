"""What the conformance rules need of an author's fake cloud.

The fake is stateful: a write changes what later reads show. Its methods below set the scene, state the truth without
the plugin under test, and make the fake fail. They are synchronous and bypass the cloud's API. The fake listens on
loopback only, and runs in the test's event loop or in a thread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from hub.plugin.clouds import CloudNode
from hub_testkit.addresses.fake import Request
from hub_testkit.contexts import LocalHub

__all__ = ["Ability", "CloudFake", "CloudObject", "Fault", "Request", "World"]

Fault = Literal[
    "error", "garbage", "no-key", "lost-page", "elsewhere", "unauthorized", "lost-request", "lost-answer", "silent"
]
"""How the fake fails:

- error: a 5xx without effect; its text repeats the credential of the request.
- garbage: a success status with a body that cannot be parsed.
- no-key: a success status with a well-formed body in which the part with the result is missing, such as ``{}``.
- lost-page: a list has at least two pages, and a page after the first is an error or has no list.
- elsewhere: answers name :attr:`CloudFake.elsewhere` wherever the cloud's answers name an address: redirects, links to
  the next page, links to objects. The request has no effect, or its usual one.
- unauthorized: a 401, or the cloud's own answer to an expired credential. The request has no effect.
- lost-request: the connection breaks before anything is made.
- lost-answer: the request has its whole effect, then the connection breaks without an answer.
- silent: no answer until :meth:`CloudFake.heal`.
"""


Ability = Literal[Fault, "marker"]
"""What a fake, or the cloud itself, may be unable to do: a fault, or marker = an object that carries a marker."""


@dataclass(frozen=True, slots=True)
class CloudObject:
    """One object of the cloud that may belong to a load balancer.

    Attributes:
        kind: the kind, as in ``Step.creates``.
        name: its name.
        state: everything else that a plugin may change, as a JSON value, such as ports, machines and settings. Ids of
            objects may be in it, as whole texts. Leave out what depends on the time or on how many objects were created
            before, such as the public IP address that the cloud chose.
    """

    kind: str
    name: str
    state: Any


class CloudFake(Protocol):
    """A fake cloud, as the rules use it."""

    @property
    def shuffled(self) -> bool:
        """Whether lists, and lists in objects, come in another order at each request; set by the rules."""
        ...

    @shuffled.setter
    def shuffled(self, value: bool, /) -> None: ...

    @property
    def elsewhere(self) -> str:
        """The URL for the fault "elsewhere"; set by the rules."""
        ...

    @elsewhere.setter
    def elsewhere(self, value: str, /) -> None: ...

    @property
    def cannot(self) -> Mapping[Ability, str]:
        """What the cloud cannot do -> why. Rules that need it are skipped with the reason."""
        ...

    @property
    def requests(self) -> Sequence[Request]:
        """All requests so far, oldest first, including refused and failed ones; one appears as soon as it arrives."""
        ...

    def objects(self) -> Mapping[str, CloudObject]:
        """The truth: id -> object, for all objects of all kinds that a plugin can create."""
        ...

    def add_machine(self, name: str) -> CloudNode:
        """Creates a running machine, and returns its Node as it is once it is initialised, with its addresses."""
        ...

    def remove_machine(self, node: CloudNode) -> None:
        """Deletes a machine."""
        ...

    def add_object(self, name: str, marker: str = "") -> None:
        """A person creates objects of this name: one of each kind, or with ``marker`` of each kind that can carry it.

        Args:
            name: their name.
            marker: the text of a :class:`hub.plugin.clouds.Marker`, in the field where the plugin writes it.
        """
        ...

    def fail(
        self, fault: Fault, *, times: int | None = 1, on: Literal["any", "read", "write"] = "any", skip: int = 0
    ) -> None:
        """Makes requests fail; requests of kind "login" always work.

        Args:
            fault: how.
            times: how many requests; None = all until :meth:`heal`.
            on: which requests fail.
            skip: so many of them work before.
        """
        ...

    def heal(self) -> None:
        """Ends all faults, and lets go of requests that :meth:`fail` with "silent" holds."""
        ...


@dataclass(frozen=True, slots=True)
class World:
    """A running fake, and how a plugin reaches it.

    Attributes:
        fake: the fake.
        config: ``clusters[].cloud.provider.config`` of an account of the fake.
        hub: the hub's context, with the secrets that ``config`` refers to and the hosts that may be contacted.
        secrets: texts that must never be shown: credentials, and access tokens that the fake issues.
        dns: host name -> addresses, for ``CloudContext.lookup``.
    """

    fake: CloudFake
    config: Mapping[str, Any]
    hub: LocalHub = field(default_factory=LocalHub)
    secrets: Sequence[str] = ()
    dns: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
