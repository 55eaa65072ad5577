"""Selects the Services that have views, by an annotation or a CEL expression."""

from __future__ import annotations

import logging
from typing import Final

from hub.cel import CelError, Expression
from hub.model import Service
from hub.registry.spec import ViewsSpec

log = logging.getLogger(__name__)

LOGGED: Final = 20
"""Most different problems of one expression that are logged; an expression may fail differently for every Service."""


class Selector:
    """Selects Services; a Service for which the expression fails is not selected, and the log names it."""

    def __init__(self, spec: ViewsSpec) -> None:
        self._annotation = spec.annotation
        self._expression = Expression(spec.select) if spec.select else None
        self._logged: set[str] = set()

    def selects(self, cluster: str, service: Service) -> bool:
        """Whether this Service has views."""
        if self._expression is None:
            return self._annotation in service.annotations
        try:
            return self._expression.matches(service, cluster)
        except CelError as error:
            if str(error) not in self._logged and len(self._logged) < LOGGED:
                self._logged.add(str(error))
                log.warning("views.select failed for Service %s of %s: %s", service.key, cluster, error)
            return False
