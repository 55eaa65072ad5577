"""Turns the single-target controller's inventory script into a cluster with provider ``ionos``.

The script printed the Ready workers of a remote cluster with the addresses of their IONOS servers on one LAN. Its
variables become a kubeconfig and the configuration of provider ``ionos``; its text prefix of
addresses becomes networks.
"""

from __future__ import annotations

import re
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import Any, Final
from urllib.parse import urlsplit

from hub.cli.importers import target
from hub.cli.importers.document import Document, Noted, render
from hub.cli.importers.prefix import networks
from hub.cli.importers.variables import Variables
from hub.errors import HubError
from hub.registry import values

VARIABLES: Final = (
    "IONOS_TOKEN",
    "IONOS_USERNAME",
    "IONOS_PASSWORD",
    "IONOS_DATACENTER_ID",
    "IONOS_PRIVATE_LAN_ID",
    "IONOS_CONTRACT_NUMBER",
    "IONOS_API_URL",
    "SECURED_KUBECONFIG",
    "SECURED_KUBECTL_CONTEXT",
    "SECURED_SUBNET_PREFIX",
)
"""Every variable of the script, including those that the IONOS SDK reads."""

SECRET: Final = ("IONOS_TOKEN", "IONOS_PASSWORD")
"""Those of them whose values are never printed."""

PREFIX: Final = "10.0.0."
"""The script's default."""

_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")

_HEADING = (
    "The inventory script as a registry: the hub itself reads the Nodes and asks the IONOS API.\n"
    "Needs the provider of the distribution endpointslice-hub-ionos."
)
_NO_SERVICE = (
    "No service: the script's variables name none. Give the controller's variables (TARGET_…) too, to have its "
    "Service printed; or write one, as in clusters.example.yaml, with sources: [{cluster: secured}]."
)


def build(variables: Variables) -> Document:
    """The registry of the script's environment, with the controller's Service if its variables are there too.

    Raises:
        HubError: variables are missing or invalid; the message names all of them.
    """
    entry = cluster(variables)
    unused = variables.unused_note([*VARIABLES, *target.VARIABLES])
    notes = [_HEADING, *filter(None, [variables.unread_note, unused])]
    tree: dict[str, Any] = {"version": 1}
    if variables.has("TARGET_SERVICE_NAME"):
        services = [target.service(variables)]
        tree["owner"] = target.owner(variables)
        if services[0]["adopt"] is None:
            notes.append(target.UNMANAGED)
    else:
        services = []
        notes.append(_NO_SERVICE)
    variables.check()
    return render(tree | {"clusters": [entry], "services": services}, "\n".join(notes))


def cluster(variables: Variables) -> dict[str, Any]:
    """The entry of ``clusters:``."""
    kubeconfig = variables.text("SECURED_KUBECONFIG", required="the kubeconfig of the remote cluster")
    context = variables.text("SECURED_KUBECTL_CONTEXT")
    secret = variables.secret_of(kubeconfig)
    if secret is None:
        access: dict[str, Any] = {"path": Noted(kubeconfig, "", "SECURED_KUBECONFIG")}
    else:
        note = f"The Secret that the manifest mounts as {kubeconfig}. It may not refer to files, nor run programs."
        access = {"secret": Noted(secret.secret, note, "SECURED_KUBECONFIG"), "key": secret.key}
    if context:
        access["context"] = Noted(context, "", "SECURED_KUBECTL_CONTEXT")
    nodes = (
        "Ready workers, as in the script. notReadyGrace: the script dropped a node as soon as it was not Ready; the "
        "hub waits, and keeps all nodes while more than half of them are not Ready."
    )
    provider = (
        "A node's server is found by the node's providerID, then its systemUUID, then its name if only one server has "
        "it; if two servers match, the node is left alone and reported."
    )
    return {
        "name": Noted(target.CLUSTER, "Becomes a label of the slices; the name is free."),
        "kubeconfig": access,
        "allowedCIDRs": _cidrs(variables),
        "provider": Noted({"name": "ionos", "config": _config(variables)}, provider),
        "nodes": Noted({"controlPlane": False, "notReadyGrace": "30s"}, nodes),
    }


def _config(variables: Variables) -> dict[str, Any]:
    datacenter = variables.text("IONOS_DATACENTER_ID", required="the UUID of the data center")
    lan = variables.number("IONOS_PRIVATE_LAN_ID", required="the number of the LAN")
    if datacenter and not _UUID.fullmatch(datacenter):
        variables.problem("IONOS_DATACENTER_ID", f"must be a UUID, not {values.shown(datacenter)}")
    if lan is not None and lan < 1:
        variables.problem("IONOS_PRIVATE_LAN_ID", f"must be at least 1, not {lan}")
    contract = variables.number("IONOS_CONTRACT_NUMBER")
    config: dict[str, Any] = {
        "datacenters": Noted([datacenter], "", "IONOS_DATACENTER_ID"),
        "lan": Noted(lan, "", "IONOS_PRIVATE_LAN_ID"),
        **_credentials(variables),
    }
    if contract is not None:
        config["contractNumber"] = Noted(contract, "", "IONOS_CONTRACT_NUMBER")
    if url := variables.text("IONOS_API_URL"):
        config["apiUrl"] = Noted(url, f"Needs: hub run --allow-api-host {host(url)}", "IONOS_API_URL")
    if variables.text("SOURCE_POLL_INTERVAL"):
        note = (
            "SOURCE_POLL_INTERVAL was the time between runs of the script. The hub watches the Nodes; this is the time "
            "between requests to the API, once for all clusters of a data center. The default, 30s, stays further "
            "below the API's rate limit."
        )
        config["refresh"] = Noted(_refresh(variables), note, "SOURCE_POLL_INTERVAL")
    config["families"] = Noted(["IPv4"], "The script compared texts of IPv4 addresses.")
    return config


def host(url: str) -> str:
    """The host of an API's address, which may lack a scheme."""
    return urlsplit(url if "://" in url else f"https://{url}").hostname or url


def _credentials(variables: Variables) -> dict[str, Any]:
    note = "Never the secret itself: {env: …}, {file: …} below --credentials-dir, or {secret: …, key: …}."
    if variables.has("IONOS_TOKEN") or not variables.has("IONOS_USERNAME"):
        if not variables.has("IONOS_TOKEN"):
            variables.problem("IONOS_TOKEN", "is required, or IONOS_USERNAME and IONOS_PASSWORD")
        return {"token": Noted(_reference(variables, "IONOS_TOKEN"), note, "IONOS_TOKEN")}
    if not variables.has("IONOS_PASSWORD"):
        variables.problem("IONOS_PASSWORD", "is required: IONOS_USERNAME is set")
    return {
        "username": Noted(variables.text("IONOS_USERNAME"), "", "IONOS_USERNAME"),
        "password": Noted(_reference(variables, "IONOS_PASSWORD"), note, "IONOS_PASSWORD"),
    }


def _reference(variables: Variables, name: str) -> dict[str, str]:
    known = variables.references.get(name)
    return {"secret": known.secret, "key": known.key} if known is not None and known.secret else {"env": name}


def _refresh(variables: Variables) -> str:
    text = variables.duration("SOURCE_POLL_INTERVAL", "30s")
    seconds = values.duration(text)
    return "1s" if seconds < 1 else "1h" if seconds > 3600 else text


def _cidrs(variables: Variables) -> Noted:
    """The networks of the prefix, cut to the controller's network if that is given."""
    name = "SECURED_SUBNET_PREFIX"  # an empty prefix does not mean the default: every address starts with it
    given = name in {*variables.values, *variables.references}
    prefix = variables.text(name) if given else PREFIX
    cidr = variables.text("SECURED_SUBNET_CIDR")
    try:
        inside = [IPv4Network(found) for found in networks(prefix)]
    except HubError as error:
        variables.problem("SECURED_SUBNET_PREFIX", str(error))
        return Noted([])
    note = f"Addresses whose text starts with {prefix!r} (SECURED_SUBNET_PREFIX)"
    if cidr:
        try:
            outer = ip_network(network(cidr))
        except HubError as error:
            variables.problem("SECURED_SUBNET_CIDR", str(error))
            return Noted([])
        inside = [both for inner in inside if (both := _both(inner, outer)) is not None]
        note += f", and inside {cidr} (SECURED_SUBNET_CIDR)"
        if not inside:
            unset = "" if given else f", the default of {name}, which is not set: set {name}"
            variables.problem("SECURED_SUBNET_CIDR", f"has no address that starts with {values.shown(prefix)}{unset}")
    return Noted([str(found) for found in inside], f"{note}.", "SECURED_SUBNET_PREFIX")


def _both(one: IPv4Network, other: IPv4Network | IPv6Network) -> IPv4Network | None:
    """The network of the addresses that are in both; None if there are none."""
    if not isinstance(other, IPv4Network) or not one.overlaps(other):
        return None
    return one if one.prefixlen >= other.prefixlen else other


def network(text: str) -> str:
    """A network as Go parses it: bits outside the mask are cleared.

    Raises:
        HubError: the text is not a network.
    """
    try:
        values.cidr(text)
    except values.BadValue as bad:
        if "/" not in text:
            raise HubError(f"{bad.message} ({bad.hint})") from None
    try:
        return str(ip_network(text, strict=False))
    except ValueError:
        raise HubError(f"is not a network: {values.shown(text)} (such as 10.7.0.0/16)") from None
