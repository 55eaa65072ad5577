"""Authentication by bearer token, and simple authorization: everything is allowed that is not forbidden."""

from __future__ import annotations

from dataclasses import dataclass, field

from hub_testkit.simulator import answers
from hub_testkit.simulator.answers import Refusal
from hub_testkit.simulator.checks import Place


@dataclass(slots=True)
class Rights:
    """User names by token, and forbidden requests by (user, verb, resource), where "*" is any."""

    tokens: dict[str, str] = field(default_factory=dict[str, str])
    forbidden: set[tuple[str, str, str]] = field(default_factory=set[tuple[str, str, str]])

    def user(self, authorization: str) -> str | None:
        """Returns the user of an Authorization header; None = anonymous.

        Raises:
            Refusal: 401: the token is unknown.
        """
        if not authorization:
            return None
        scheme, _, token = authorization.partition(" ")
        if scheme.lower() != "bearer" or token.strip() not in self.tokens:
            raise answers.unauthorized()
        return self.tokens[token.strip()]

    def check(self, user: str | None, verb: str, place: Place) -> None:
        """Refuses a forbidden request with 403. Anonymous users may do nothing."""
        kind = place.kind
        resource = f"{kind.resource}/{place.subresource}" if place.subresource else kind.resource
        if user is not None and not any(
            (who, what, which) in self.forbidden
            for who in (user, "*")
            for what in (verb, "*")
            for which in (resource, "*")
        ):
            return
        where = f'in the namespace "{place.namespace}"' if place.namespace else "at the cluster scope"
        subject = f'{kind.qualified} "{place.name}"' if place.name else kind.qualified
        raise Refusal(
            403,
            f'{subject} is forbidden: User "{user or "system:anonymous"}" cannot {verb} resource "{resource}" '
            f'in API group "{kind.group}" {where}',
            details=answers.details_of(place.name, kind.group, kind.resource),
        )
