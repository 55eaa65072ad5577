"""Resource ids of Azure Resource Manager, checked before they become part of a URL.

Ids come from Nodes and from answers. Azure ignores the case of ids and answers with varying case, so the provider uses
them in lower case.
"""

from __future__ import annotations

import re
from typing import Final

_NAME: Final = r"[a-z0-9_()-][a-z0-9_.()-]{0,89}"  # never "." or ".."


def _kind(rest: str) -> re.Pattern[str]:
    return re.compile(rf"/subscriptions/([0-9a-f-]{{36}})/{rest}")


_GROUP: Final = f"resourcegroups/{_NAME}/providers"

VIRTUAL_MACHINE: Final = _kind(f"{_GROUP}/microsoft.compute/virtualmachines/{_NAME}")
UNIFORM_INSTANCE: Final = _kind(
    f"{_GROUP}/microsoft.compute/virtualmachinescalesets/{_NAME}/virtualmachines/[0-9]{{1,10}}"
)
INTERFACE: Final = _kind(f"{_GROUP}/microsoft.network/networkinterfaces/{_NAME}")
ADDRESS: Final = _kind(f"{_GROUP}/microsoft.network/publicipaddresses/{_NAME}")
OPERATION: Final = _kind(r"providers/microsoft\.network/locations/[a-z0-9]{1,40}/operations/[a-z0-9-]{1,80}")


def checked(text: object, kind: re.Pattern[str], subscription: str) -> str:
    """Returns an id in lower case; "" if it is not of this kind or of another subscription."""
    if not isinstance(text, str) or len(text) > 1024 or not text.isascii():
        return ""
    found = kind.fullmatch(text.lower())
    return found[0] if found and found[1] == subscription else ""


def interface_of(configuration: str, subscription: str) -> str:
    """Returns the id of the network interface that has an IP configuration; "" if something else has it."""
    interface, slash, name = configuration.rpartition("/ipconfigurations/")
    return checked(interface, INTERFACE, subscription) if slash and re.fullmatch(_NAME, name) else ""


def title(resource: str) -> str:
    """Returns kind and name of a resource for a message, such as ``loadbalancers kubernetes``."""
    parts = resource.split("/")
    shown = " ".join(parts[7:9]) if len(parts) > 8 else resource
    return "".join(char if char.isprintable() else "?" for char in shown[:120])
