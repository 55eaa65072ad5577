"""CEL expressions that select Services: each is compiled once and returns a bool.

The CEL library is imported when the first expression is compiled, so a hub without expressions does not load it. The
library counts the steps of comprehensions and fails after 10,000, so no expression can block the event loop.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from typing import Any, Final

from hub.errors import HubError
from hub.model import Service, ServicePort

MAX_LENGTH: Final = 4096
"""The longest expression accepted, in characters. The longest one known in use has 600."""
MAX_MESSAGE: Final = 200
"""The number of characters shown of an error message of the CEL library."""
_PLACE = re.compile(r"ERROR: <input>:(\d+):(\d+): ([^\n]*)")


class CelError(HubError):
    """An expression is not usable, or its evaluation for one Service failed."""


class Expression:
    """A compiled expression.

    Args:
        text: CEL over ``service`` (as in the API: ``metadata`` and ``spec``) and ``cluster`` (a name).

    Raises:
        CelError: the text is too long, does not parse, uses an unknown variable, cannot return a bool, or exceeds
            the step budget even for a minimal Service.
    """

    def __init__(self, text: str) -> None:
        if len(text) > MAX_LENGTH:
            raise CelError(f"is longer than {MAX_LENGTH} characters")
        from cel_expr_python import cel

        self.text = text
        self._cel = cel
        environment = _environment()
        try:
            self._compiled = environment.compile(text)
        except RuntimeError as error:
            raise CelError(f"does not parse: {_in_words(str(error))}") from None
        kind = self._compiled.return_type()
        if kind not in (cel.Type.BOOL, cel.Type.DYN):
            raise CelError(f"returns {kind.name().lower()}, not a bool")
        try:
            self.matches(SAMPLE, "local")
        except CelError as error:
            if "budget" in str(error):
                raise
            # Any other error is specific to the sample, such as a missing label.

    def matches(self, service: Service, cluster: str) -> bool:
        """Whether the expression is true for a Service of a cluster.

        Raises:
            CelError: the evaluation fails or does not return a bool.
        """
        return self.evaluate({"service": as_api(service), "cluster": cluster})

    def evaluate(self, variables: Mapping[str, Any]) -> bool:
        """Whether the expression is true for these values of its variables.

        Raises:
            CelError: the evaluation fails or does not return a bool.
        """
        try:
            found = self._compiled.eval(data=variables)
        except RuntimeError as error:
            raise CelError(_in_words(str(error))) from None
        if found.type() == self._cel.Type.BOOL:
            return bool(found.value())
        if found.type() == self._cel.Type.ERROR:
            raise CelError(_in_words(str(found.plain_value())))
        raise CelError(f"it returned {found.type().name().lower()}, not a bool")


@functools.cache
def _environment() -> Any:
    from cel_expr_python import cel

    return cel.NewEnv(variables={"service": cel.Type.DYN, "cluster": cel.Type.STRING})


def as_api(service: Service) -> dict[str, Any]:
    """The parts of a Service that an expression can read, under the API's field names."""
    return {
        "metadata": {
            "name": service.name,
            "namespace": service.namespace,
            "labels": service.labels,
            "annotations": service.annotations,
        },
        "spec": {
            "type": service.kind,
            "ports": [_port(port) for port in service.ports],
            "ipFamilies": list(service.families),
            "clusterIPs": list(service.cluster_ips),
            "publishNotReadyAddresses": service.publish_not_ready,
        },
    }


def _port(port: ServicePort) -> dict[str, Any]:
    found: dict[str, Any] = {"name": port.name, "port": port.port, "protocol": port.protocol}
    if port.target_port is not None:
        found["targetPort"] = port.target_port
    if port.app_protocol is not None:
        found["appProtocol"] = port.app_protocol
    if port.node_port is not None:
        found["nodePort"] = port.node_port
    return found


def _in_words(message: str) -> str:
    """The first problem in a message of the library, with its position in the expression if the message has one."""
    place = _PLACE.search(message)
    if place is not None:
        line, column, what = place.groups()
        where = f"column {column}" if line == "1" else f"line {line}, column {column}"
        return f"{where}: {what[:MAX_MESSAGE]}"
    if "budget exceeded" in message:
        return "it loops over too much: its budget of 10,000 steps is exceeded"
    return message.partition("\n")[0][:MAX_MESSAGE]


SAMPLE: Final = Service("default", "sample", ports=(ServicePort(80, "http", target_port=80),))
"""The Service that every new expression is evaluated for, to find those that always exceed the budget."""
