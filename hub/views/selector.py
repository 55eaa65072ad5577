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
    """Chooses Services; one that the expression gives no answer for is not chosen, and named in the log."""

    def __init__(self, spec: ViewsSpec) -> None:
        self._annotation = spec.annotation
        self._expression = Expression(spec.select) if spec.select else None
        self._said: set[str] = set()

    def chooses(self, cluster: str, service: Service) -> bool:
        """Whether this Service has views."""
        if self._expression is None:
            return self._annotation in service.annotations
        try:
            return self._expression.matches(service, cluster)
        except CelError as error:
            if str(error) not in self._said and len(self._said) < SAID:
                self._said.add(str(error))
                log.warning("views.select: no answer for Service %s of %s: %s", service.key, cluster, error)
            return False
