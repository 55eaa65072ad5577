"""Turns the environment of the single-target controller into a registry, which ``hub import env`` prints.

``hub run --from-env`` runs the same text. Every variable has the controller's meaning; where the controller's
documentation leaves the meaning open, the comment says what the hub does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from hub.cli.importers import script
from hub.cli.importers.document import Document, Noted, render
from hub.cli.importers.target import CLUSTER, POLL, UNMANAGED, VARIABLES, owner, service
from hub.cli.importers.variables import Variables
from hub.errors import HubError
from hub.registry import values

EVERYTHING: Final = ["0.0.0.0/0", "::/0"]
SHORTEST, LONGEST = 1.0, 86_400.0
"""Seconds between two polls of an inventory."""

_HEADING = "The registry of one single-target controller, from its environment."
_USAGE = "Run it with: hub run --registry FILE, or without a file, in that environment, with: hub run --from-env."
_SCRIPT = (
    "render_inventory.py runs kubectl, which the hub's image does not contain: 'hub import inventory-script' prints a "
    "registry that needs no program."
)
_MEMORY = "STORE_KIND=memory writes nothing: hub run --dry-run."
ALLOW_EXEC: Final = "With --registry, the hub must be started with: --allow-exec"
"""Begins a line that the chart's values leave out, since they have ``hub.allowExec``."""
PASSED: Final = ("IONOS_", "SECURED_", "KUBECONFIG", "HOME", "HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY")
"""Prefixes of this process's variables that the program gets. It gets all variables of a manifest."""


@dataclass(frozen=True, slots=True)
class Imported:
    """The result of importing an environment.

    Attributes:
        document: the registry.
        dry_run: run without writing anything.
        program: the program that the inventory runs; "" = none.
        folder: absolute path of the inventory file's folder; "" = no inventory file.
    """

    document: Document
    dry_run: bool = False
    program: str = ""
    folder: str = ""


def build(variables: Variables, *, complete: bool = False) -> Imported:
    """The registry of an environment.

    Args:
        variables: the variables of the controller and of its inventory.
        complete: the document must run without changes, with nothing left for a reader to fill in.

    Raises:
        HubError: variables are missing or invalid; the message names all of them.
    """
    kind = _kind(variables)
    if complete and kind == "static":
        hint = "no variable lists its addresses; write them into what 'hub import env' prints"
        variables.problem("SOURCE_KIND", f"static cannot be run from the environment: {hint}")
    store = variables.one_of("STORE_KIND", "memory", "kubectl", default="kubectl")
    entry = service(variables)
    cluster = _cluster(variables, kind)
    variables.check()
    passed = {"command": _passed(variables), "ionos": script.VARIABLES}.get(kind, ())
    unused = variables.unused_note([*VARIABLES, *passed])
    notes = [_HEADING, *filter(None, [variables.unread_note, unused])]
    if entry["adopt"] is None:
        notes.append(UNMANAGED)
    if store == "memory":
        notes.append(_MEMORY)
    tree = {"version": 1, "owner": owner(variables), "clusters": [cluster], "services": [entry]}
    file = variables.text("INVENTORY_FILE_PATH") if kind == "file" else ""
    return Imported(
        render(tree, "\n".join(notes), _USAGE),
        dry_run=store == "memory",
        program=variables.text("INVENTORY_COMMAND") if kind == "command" else "",
        folder=str(Path(file).absolute().parent) if file else "",
    )


def _kind(variables: Variables) -> str:
    """``SOURCE_KIND``; if it is unset, the kind follows from the inventory's variables."""
    kinds = ("static", "file", "command", "ionos")
    if variables.text("SOURCE_KIND"):
        return variables.one_of("SOURCE_KIND", *kinds)
    found = [
        kind
        for kind, name in (("file", "INVENTORY_FILE_PATH"), ("command", "INVENTORY_COMMAND"))
        if variables.has(name)
    ]
    if len(found) != 1:
        variables.problem("SOURCE_KIND", f"is required: one of {', '.join(kinds)}")
    return found[0] if found else ""


def _cluster(variables: Variables, kind: str) -> dict[str, Any]:
    sources: dict[str, Callable[[Variables], dict[str, Any]]] = {"static": _static, "file": _file, "command": _command}
    if kind == "ionos":
        return script.cluster(variables)
    config = sources[kind](variables) if kind else {}
    config["interval"] = _interval(variables)
    note = (
        "Records with worker: true and an address inside allowedCIDRs are published. A record with ready: false is "
        "published as not ready; the controller left it out. A record with a mistake is rejected, and nothing is "
        "removed until it is fixed."
    )
    return {
        "name": Noted(CLUSTER, "Becomes a label of the slices; the name is free."),
        "allowedCIDRs": _cidrs(variables),
        "provider": Noted({"name": "inventory", "config": config}, note),
    }


def _static(_: Variables) -> dict[str, Any]:
    note = (
        "No variable lists the addresses of SOURCE_KIND=static. Write them here: "
        '- {"name": "node-a", "private_ip": "10.0.0.11", "ready": true, "worker": true}'
    )
    return {"static": Noted([], note, "SOURCE_KIND")}


def _file(variables: Variables) -> dict[str, Any]:
    note = "Must be in the registry's folder or in --credentials-dir."
    found = variables.text("INVENTORY_FILE_PATH", required="SOURCE_KIND is file")
    return {"file": Noted(found, note, "INVENTORY_FILE_PATH")}


def _command(variables: Variables) -> dict[str, Any]:
    program = variables.text("INVENTORY_COMMAND", required="SOURCE_KIND is command")
    arguments = variables.words("INVENTORY_COMMAND_ARGS")
    if "/" in program and not program.startswith("/"):
        variables.problem("INVENTORY_COMMAND", f"must be absolute or a bare name, not {values.shown(program)}")
    path = program if program.startswith("/") else f"and the absolute path of {program}"
    note = f"Runs without a shell.\n{ALLOW_EXEC} {path}"
    if variables.has("IONOS_DATACENTER_ID"):
        note += f"\n{_SCRIPT}"
    config: dict[str, Any] = {"command": Noted([program, *arguments], note, "INVENTORY_COMMAND")}
    if names := _passed(variables):
        note = "Variables of the hub that the program gets, in addition to PATH; set those that it needs for the hub."
        config["environment"] = Noted(names, note)
    return config


def _passed(variables: Variables) -> list[str]:
    names = sorted({*variables.values, *variables.references} - {*VARIABLES, "PATH"})
    return names if variables.declared else [name for name in names if name.upper().startswith(PASSED)]


def _interval(variables: Variables) -> Noted:
    text = variables.duration("SOURCE_POLL_INTERVAL", POLL)
    seconds = values.duration(text)
    if seconds > LONGEST:
        variables.problem("SOURCE_POLL_INTERVAL", f"must be at most 24h, not {values.shown(text)}")
    short = seconds < SHORTEST
    note = f"SOURCE_POLL_INTERVAL is {text}; an inventory is read once a second at most." if short else ""
    return Noted("1s" if short else text, note, "SOURCE_POLL_INTERVAL")


def _cidrs(variables: Variables) -> Noted:
    text = variables.text("SECURED_SUBNET_CIDR")
    if not text:
        return Noted(EVERYTHING, "SECURED_SUBNET_CIDR is empty: every address is allowed. Better list your networks.")
    try:
        found = script.network(text)
    except HubError as error:
        variables.problem("SECURED_SUBNET_CIDR", str(error))
        return Noted(EVERYTHING)
    note = "" if found == text else f"SECURED_SUBNET_CIDR is {text}: the same network."
    return Noted([found], note, "SECURED_SUBNET_CIDR")
