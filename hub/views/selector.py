"""Which Services have views: those with an annotation, or those a CEL expression says yes to."""

from __future__ import annotations

import logging
from typing import Final

from hub.cel import CelError, Expression
from hub.model import Service
from hub.registry.spec import ViewsSpec

log = logging.getLogger(__name__)

SAID: Final = 20
"""Different problems of one expression that are logged; more would be the same again."""


class Selector:
    """Chooses Services.

    Attributes:
        unanswered: (cluster, namespace, name) -> why the expression gives no answer; such a Service is not chosen.
    """

    def __init__(self, spec: ViewsSpec) -> None:
        self._annotation = spec.annotation
        self._expression = Expression(spec.select) if spec.select else None
        self._said: set[str] = set()
        self.unanswered: dict[tuple[str, str, str], str] = {}

    def chooses(self, cluster: str, service: Service) -> bool:
        """Whether this Service has views."""
        if self._expression is None:
            return self._annotation in service.annotations
        key = (cluster, service.namespace, service.name)
        try:
            chosen = self._expression.matches(service, cluster)
        except CelError as error:
            self.unanswered[key] = str(error)
            if str(error) not in self._said and len(self._said) < SAID:
                self._said.add(str(error))
                log.warning("views.select: no answer for Service %s/%s of %s: %s", *key[1:], cluster, error)
            return False
        self.unanswered.pop(key, None)
        return chosen
