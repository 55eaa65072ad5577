"""Turns answers of EC2 that are not good into errors of the plugin API."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from hub.plugin import ProviderError, TerminalProviderError, TransientProviderError
from hub.plugin.addresses import AddressConflict, QuotaExceeded, UnsupportedInstance
from hub_provider_aws.answers import text

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

REFUSED: Final = frozenset(
    (
        "AuthFailure",
        "ExpiredToken",
        "ExpiredTokenException",
        "IncompleteSignature",
        "InvalidClientTokenId",
        "MissingAuthenticationToken",
        "RequestExpired",
        "SignatureDoesNotMatch",
        "UnrecognizedClientException",
    )
)
"""The credential or the signature is not accepted."""

FORBIDDEN: Final = frozenset(
    (
        "AccessDenied",
        "AccessDeniedException",
        "Blocked",
        "OptInRequired",
        "PendingVerification",
        "UnauthorizedOperation",
    )
)
"""The credential lacks a permission."""

THROTTLED: Final = frozenset(
    (
        "BandwidthLimitExceeded",
        "EC2ThrottledException",
        "RequestLimitExceeded",
        "RequestThrottled",
        "RequestThrottledException",
        "Throttling",
        "ThrottlingException",
        "TooManyRequestsException",
    )
)
"""The account sends more requests than EC2 allows; EC2 says so with status 503."""

CONFLICTS: Final = frozenset(
    (
        "IncorrectInstanceState",
        "InvalidAddress.NotFound",
        "InvalidAllocationID.NotFound",
        "InvalidAssociationID.NotFound",
        "InvalidIPAddress.InUse",
        "InvalidInstanceID",
        "InvalidInstanceID.NotFound",
        "InvalidNetworkInterface.InUse",
        "InvalidNetworkInterfaceID.NotFound",
        "Resource.AlreadyAssociated",
    )
)
"""The address or the instance changed between reading and writing."""


class Answer(NamedTuple):
    """An answer of EC2.

    Attributes:
        status: The HTTP status.
        root: The root of the body, without namespaces; None if the body is not XML.
        retry_after: The seconds of the header Retry-After; None without one.
    """

    status: int
    root: Element | None = None
    retry_after: float | None = None

    @property
    def code(self) -> str:
        """The code of EC2's error; "" if the body is not an error of EC2."""
        return "" if self.root is None else text(self.root, ".//Error/Code")[:100]

    @property
    def message(self) -> str:
        """The text of EC2's error."""
        return "" if self.root is None else text(self.root, ".//Error/Message")

    @property
    def refused(self) -> bool:
        """Whether the credential is not accepted."""
        return self.status == 401 or self.code in REFUSED


def error_for(answer: Answer, action: str, what: str, said: str) -> ProviderError:
    """Returns the error to raise for an answer.

    Args:
        answer: The answer.
        action: The API's action.
        what: The account, the request and the answer's status, in words.
        said: The text of EC2's error, fit to be shown; "" if there is none.
    """
    status, code = answer.status, answer.code
    told = f"{what}: {said}" if said else what
    if code in THROTTLED or status == 429:
        wait = f"; asking again in {answer.retry_after:.0f} s" if answer.retry_after else ""
        return QuotaExceeded(f"{what}; the account sends more requests than EC2 allows{wait}", answer.retry_after)
    if answer.refused:
        return TerminalProviderError(f"{what}; renew the account's credential, and check the hub's clock")
    if code in FORBIDDEN or (status == 403 and not code):
        return TerminalProviderError(f"{what}; allow the account's credential ec2:{action}")
    if code in CONFLICTS:
        return AddressConflict(told)
    if status == 200:
        return TransientProviderError(f"{what}: the answer is not a {action}Response")
    if 300 <= status <= 399:
        return TerminalProviderError(f"{what}; redirects are not followed, correct endpoint")
    if status < 500 and code and action == "AssociateAddress":
        # For example Gateway.NotAttached. A code that is not known here must not stop the other addresses.
        return UnsupportedInstance(f"{told}; the hub takes another node")
    return TransientProviderError(told, answer.retry_after)
