"""The values for the Helm chart that belong to an imported registry."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import yaml

from hub.cli.importers import environment, script
from hub.cli.importers.chart import values
from hub.cli.importers.document import Document, Noted
from hub.cli.importers.variables import Variables, from_texts

SCRIPT = {
    "IONOS_DATACENTER_ID": "0b6a1d3e-0000-4000-8000-000000000001",
    "IONOS_PRIVATE_LAN_ID": "2",
    "IONOS_TOKEN": "very-secret",
    "SECURED_KUBECONFIG": "/etc/secured/kubeconfig",
}
TARGET = {"TARGET_NAMESPACE": "edge", "TARGET_SERVICE_NAME": "payments", "TARGET_PORT": "30443"}
COMMAND = TARGET | {"SOURCE_KIND": "command", "INVENTORY_COMMAND": "/app/list"}
SECURED = {"name": "secured", "secret": {"secretName": "remote"}}


def manifest(variables: dict[str, str], *env: dict[str, Any], namespace: str = "", volume: Any = SECURED) -> Variables:
    """The variables of a Deployment whose container has a volume at /etc/secured."""
    container = {
        "env": [*({"name": name, "value": value} for name, value in variables.items()), *env],
        "volumeMounts": [{"name": "secured", "mountPath": "/etc/secured", "readOnly": True}],
    }
    pod = {"spec": {"containers": [container], "volumes": [volume] if volume else []}}
    meta = {"name": "controller"} | ({"namespace": namespace} if namespace else {})
    text = yaml.safe_dump({"kind": "Deployment", "metadata": meta, "spec": {"template": pod}})
    return from_texts([("d.yaml", text)], [*TARGET, *SCRIPT])


def of_secret(name: str, secret: str, key: str) -> dict[str, Any]:
    """A variable whose value is in a Secret."""
    return {"name": name, "valueFrom": {"secretKeyRef": {"name": secret, "key": key}}}


def loaded(document: Document) -> Any:
    """The data of a document."""
    return yaml.safe_load(document.text)


def of_command(variables: Variables, *, dry_run: bool = False) -> Any:
    """The values for the controller's environment."""
    return loaded(values(environment.build(variables).document, variables, dry_run=dry_run))


def of_script(variables: Variables) -> Any:
    """The values for the script's environment."""
    return loaded(values(script.build(variables), variables))


def test_registry_is_a_value_without_version_and_owner() -> None:
    """The registry becomes registry.data; its owner is a value of its own, or is left to the chart."""
    both = Variables(SCRIPT | TARGET)
    registry = loaded(script.build(both))

    found = of_script(both)

    assert registry.pop("version") == 1
    assert found["owner"] == registry.pop("owner") == "edge.payments"
    assert found["registry"] == {"data": registry}
    assert "owner" not in of_script(Variables(SCRIPT))


def test_comments_are_kept() -> None:
    """Every comment of the registry is in the values, and so is its heading; but not which options to start it with."""
    variables = Variables(COMMAND | SCRIPT)
    registry = environment.build(variables).document

    printed = " ".join(re.sub(r"^ *#", "", values(registry, variables).text, flags=re.MULTILINE).split())

    comments = [*registry.heading.splitlines(), *notes(registry.tree)]
    expected = [note for note in comments if not note.startswith(environment.ALLOW_EXEC)]
    assert len(expected) > 8
    assert [note for note in expected if " ".join(note.split()) not in printed] == []
    assert "--from-env" not in printed


def notes(tree: Any) -> Iterator[str]:
    """The comments in a tree."""
    if isinstance(tree, Noted):
        yield from tree.note.splitlines()
        tree = tree.value
    for item in tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ():
        yield from notes(item)


def test_named_secrets_may_be_read() -> None:
    """The Secrets of the kubeconfig and the token are in the manifest's namespace, and the hub need not change them."""
    variables = {name: value for name, value in SCRIPT.items() if name != "IONOS_TOKEN"}
    token = of_secret("IONOS_TOKEN", "ionos", "token")

    found = of_script(manifest(variables, token, namespace="ops"))
    alone = manifest(variables, token)

    assert found["secrets"] == {"namespace": "ops", "names": ["ionos", "remote"], "renewTokens": False}
    [cluster] = found["registry"]["data"]["clusters"]
    assert cluster["kubeconfig"] == {"secret": "remote", "key": "kubeconfig"}
    assert not {"hub", "extraVolumes"} & found.keys()
    assert of_script(alone)["secrets"]["namespace"] == "default"
    assert "The manifest names no namespace" in values(script.build(alone), alone).text


def test_file_is_mounted_as_in_the_manifest() -> None:
    """A kubeconfig that is not in a Secret's volume is mounted, and its folder is the folder of credentials."""
    volume = {"name": "secured", "hostPath": {"path": "/srv/secured"}}

    found = of_script(manifest(SCRIPT, volume=volume))

    assert found["extraVolumes"] == [volume]
    assert found["extraVolumeMounts"] == [{"name": "secured", "mountPath": "/etc/secured", "readOnly": True}]
    assert found["extraArgs"] == ["--credentials-dir=/etc/secured"]


def test_file_without_a_volume_is_named() -> None:
    """A file that no volume holds is named in a comment."""
    unmounted = manifest(SCRIPT, volume=None)
    relative = Variables(TARGET | {"SOURCE_KIND": "file", "INVENTORY_FILE_PATH": "nodes.json"})

    assert of_script(unmounted)["extraVolumes"] == []
    assert "no volume of a manifest has it: /etc/secured/kubeconfig" in values(script.build(unmounted), unmounted).text
    assert of_command(relative)["extraVolumes"] == []
    assert "hub" not in of_command(relative)


def test_program_has_its_permission_variables_and_files() -> None:
    """A program may run, and gets the variables and files of the manifest."""
    variables = manifest(COMMAND | {"SECURED_KUBECONFIG": "/etc/secured/kubeconfig"}, of_secret("LOGIN", "s", "k"))

    found = of_command(variables)

    assert found["hub"]["allowExec"] == ["/app/list"]
    assert found["extraEnv"] == [
        of_secret("LOGIN", "s", "k"),
        {"name": "SECURED_KUBECONFIG", "value": "/etc/secured/kubeconfig"},
    ]
    assert found["extraVolumes"] == [SECURED]


def test_program_without_a_path_is_asked_for() -> None:
    """The hub runs a bare name only if the path is allowed, which depends on the image."""
    variables = Variables(COMMAND | {"INVENTORY_COMMAND": "python3"})

    assert of_command(variables)["hub"]["allowExec"] == []
    assert "absolute path of python3" in values(environment.build(variables).document, variables).text


def test_values_that_may_be_secret_are_named_only() -> None:
    """The values of a token and of an unknown variable are not printed; a comment names both."""
    variables = manifest(COMMAND | {"IONOS_TOKEN": "very-secret", "OTHER": "also-secret", "IONOS_PRIVATE_LAN_ID": "2"})

    text = values(environment.build(variables).document, variables).text

    assert yaml.safe_load(text)["extraEnv"] == [{"name": "IONOS_PRIVATE_LAN_ID", "value": "2"}]
    assert "NOT HERE, since unknown or possibly secret: IONOS_TOKEN, OTHER." in text.partition("owner:")[0]
    assert "very-secret" not in text
    assert "also-secret" not in text


def test_options_that_the_values_set_are_not_asked_for() -> None:
    """The comment about --allow-exec is in clusters.yaml only, since the values have hub.allowExec."""
    variables = manifest(COMMAND)
    document = environment.build(variables).document

    assert "--allow-exec" in document.text
    assert "--allow-exec" not in values(document, variables).text
    assert "Runs without a shell." in values(document, variables).text


def test_token_in_a_variable_is_asked_for() -> None:
    """A token that the manifest has as plain text must be set by hand."""
    variables = Variables(SCRIPT)

    assert of_script(variables)["extraEnv"] == []
    assert "NOT HERE, since unknown or possibly secret: IONOS_TOKEN." in values(script.build(variables), variables).text


def test_another_api_may_be_contacted() -> None:
    """The host of another API is allowed."""
    found = of_script(Variables(SCRIPT | {"IONOS_API_URL": "https://api.example.com:8443/cloudapi/v6"}))

    assert found["hub"]["allowApiHosts"] == ["api.example.com"]


def test_dry_run_is_an_argument() -> None:
    """A store in memory becomes the argument --dry-run."""
    assert of_command(Variables(COMMAND), dry_run=True)["extraArgs"] == ["--dry-run"]
    assert "extraArgs" not in of_command(Variables(COMMAND))
