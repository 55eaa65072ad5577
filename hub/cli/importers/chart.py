"""Turns an imported registry into values for the Helm chart.

The chart writes ``version`` and ``owner`` into clusters.yaml. The values also have what the hub's Pods need for this
registry: Secrets, programs, hosts, environment variables, and the volumes of the other tool's manifest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any, Final

from hub.cli.importers.document import Document, Noted, plain, render
from hub.cli.importers.environment import ALLOW_EXEC
from hub.cli.importers.script import SECRET, VARIABLES, host
from hub.cli.importers.variables import Variables

PUBLIC: Final = frozenset(VARIABLES) - frozenset(SECRET)
"""Variables whose values are printed; the value of any other variable may be a secret."""

_HEADING = "Values for the Helm chart: helm install RELEASE helm/endpointslice-hub -n NAMESPACE -f FILE"
_SECRETS = "The hub may read these Secrets. In the chart, all Secrets that a registry names are in one namespace."
_NO_NAMESPACE = "The manifest names no namespace: write the one it was applied to."
_PROGRAM = "The chart's image has neither kubectl nor scripts: build an image that has what this program needs."
_MISSING = "Add to extraEnv; NOT HERE, since unknown or possibly secret:"
_ENVIRONMENT = "Secrets must be in the release's namespace."
_CRD = "The kind exists already. Apply its new version: hub allocations crd | kubectl apply -f -"
_WORKLOADS = "Name the namespaces of the workloads: the hub may then list their Pods."
_METADATA = "The NetworkPolicy lets the hub ask the metadata server for the credential."
_VOLUMES = "As in the manifest. Secrets and ConfigMaps must be in the release's namespace."


def values(registry: Document, variables: Variables, *, dry_run: bool = False) -> Document:
    """The values for a registry that an importer built.

    Args:
        registry: the registry, with at most one cluster.
        variables: the variables that it was built from.
        dry_run: the hub must write nothing.
    """
    cluster: Mapping[str, Any] = next(iter(plain(registry.tree.get("clusters", []))), {})
    kubeconfig, config = cluster.get("kubeconfig", {}), cluster.get("provider", {}).get("config", {})
    credentials = [config[key] for key in ("token", "password") if key in config]
    names = [each["env"] for each in credentials if "env" in each] + config.get("environment", [])
    files = [each[key] for each, key in ((kubeconfig, "path"), (config, "file")) if key in each]
    used = [*config.get("command", ()), *(variables.values.get(name, "") for name in names if name in PUBLIC)]
    extra = {name: _variable(name, variables) for name in names}
    missing = ", ".join(name for name, entry in extra.items() if entry is None)
    notes = [_HEADING, registry.heading, *([f"{_MISSING} {missing}."] if missing else [])]
    entries = [entry for entry in extra.values() if entry is not None]
    content = {key: value for key, value in registry.tree.items() if key not in ("version", "owner")}
    tree = {
        "owner": registry.tree.get("owner"),
        "secrets": _secrets([each["secret"] for each in (kubeconfig, *credentials) if "secret" in each], variables),
        "registry": {"data": _without_options(content)},
        "allocations": _allocations(plain(registry.tree.get("allocations")), variables),
        "hub": _allowed(config),
        "extraArgs": _arguments(files, dry_run),
        "extraEnv": Noted(entries, _ENVIRONMENT) if names else None,
        **_volumes(files, used, variables),
    }
    return render(tree, "\n".join(notes))


def _allocations(section: Mapping[str, Any] | None, variables: Variables) -> dict[str, Any] | None:
    if section is None:
        return None
    return {
        "enabled": True,
        "crd": Noted(value=False, note=_CRD),
        "namespaces": Noted([], _WORKLOADS),
        **({"clusterName": name} if (name := variables.values.get("CLUSTER_NAME")) else {}),
        **({"interlock": section["interlock"]} if "interlock" in section else {}),
        "metadataServer": Noted(value=True, note=_METADATA),
    }


def _without_options(value: Any) -> Any:
    """The tree without comments about options of ``hub run``, which the values set."""
    if isinstance(value, Noted):
        kept = [line for line in value.note.split("\n") if not line.startswith(ALLOW_EXEC)]
        return replace(value, value=_without_options(value.value), note="\n".join(kept))
    if isinstance(value, Mapping):
        return {key: _without_options(item) for key, item in value.items()}
    return [_without_options(item) for item in value] if isinstance(value, list) else value


def _secrets(names: Sequence[str], variables: Variables) -> Noted | None:
    if not names:
        return None
    namespace = Noted(variables.namespace or "default", "" if variables.namespace else _NO_NAMESPACE)
    return Noted({"namespace": namespace, "names": sorted(set(names)), "renewTokens": False}, _SECRETS)


def _arguments(files: Sequence[str], dry_run: bool) -> list[str] | None:
    folders = [f"--credentials-dir={PurePosixPath(file).parent}" for file in files if file.startswith("/")]
    return [*folders, *(["--dry-run"] if dry_run else [])] or None


def _allowed(config: Mapping[str, Any]) -> dict[str, Any] | None:
    found = {
        "allowExec": _program(config["command"][0]) if "command" in config else None,
        "allowApiHosts": [host(config["apiUrl"])] if "apiUrl" in config else None,
    }
    return {key: value for key, value in found.items() if value is not None} or None


def _program(program: str) -> Noted:
    if program.startswith("/"):
        return Noted([program], _PROGRAM)
    return Noted([], f"{_PROGRAM} Write the absolute path of {program} in that image here.")


def _variable(name: str, variables: Variables) -> dict[str, Any] | None:
    """The item of ``extraEnv``; None if the variable's value is unknown or may be secret."""
    reference, value = variables.references.get(name), variables.values.get(name)
    if reference is not None and reference.secret:
        return {"name": name, "valueFrom": {"secretKeyRef": {"name": reference.secret, "key": reference.key}}}
    return {"name": name, "value": value} if value is not None and name in PUBLIC else None


def _volumes(files: Sequence[str], used: Sequence[str], variables: Variables) -> dict[str, Any]:
    """The volumes with the files that the hub reads, and with those that its program may use."""
    mounts = {mount.path: mount for path in (*files, *used) if (mount := variables.mount(path)) is not None}
    missing = ", ".join(file for file in files if variables.mount(file) is None)
    if not (mounts or missing):
        return {}
    volumes = {str(mount.volume.get("name")): dict(mount.volume) for mount in mounts.values()}
    note = f"NOT HERE, since no volume of a manifest has it: {missing}." if missing else _VOLUMES
    entries = [dict(mount.entry) for mount in mounts.values()]
    return {"extraVolumes": Noted(list(volumes.values()), note), "extraVolumeMounts": entries}
