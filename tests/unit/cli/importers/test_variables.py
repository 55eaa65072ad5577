"""Reading variables from manifests, ConfigMaps and files of assignments."""

from __future__ import annotations

import pytest

from hub.cli.importers.variables import Reference, Variables, from_texts
from hub.errors import HubError

DEPLOYMENT = """\
apiVersion: apps/v1
kind: Deployment
metadata: {name: controller}
spec:
  template:
    spec:
      containers:
        - name: proxy
          env: [{name: LISTEN, value: "8080"}]
        - name: controller
          envFrom:
            - configMapRef: {name: settings}
            - secretRef: {name: hidden}
          env:
            - {name: TARGET_PORT, value: "30443"}
            - {name: EMPTY}
            - name: IONOS_TOKEN
              valueFrom: {secretKeyRef: {name: ionos, key: token}}
            - name: TARGET_NAMESPACE
              valueFrom: {configMapKeyRef: {name: settings, key: namespace}}
            - name: POD_NAME
              valueFrom: {fieldRef: {fieldPath: metadata.name}}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: settings}
data: {namespace: edge, TARGET_SERVICE_NAME: payments, TARGET_PORT: "1"}
"""


def test_a_manifests_container_is_found_by_its_variables() -> None:
    """The right container is found, ConfigMaps are read, Secrets are references, and env overrides envFrom."""
    found = from_texts([("d.yaml", DEPLOYMENT)], ["TARGET_PORT"])

    assert found.values["TARGET_PORT"] == "30443"
    assert found.values["TARGET_SERVICE_NAME"] == "payments"
    assert found.values["TARGET_NAMESPACE"] == "edge"
    assert found.values["EMPTY"] == ""
    assert found.references == {"IONOS_TOKEN": Reference("ionos", "token"), "POD_NAME": Reference()}
    assert "LISTEN" not in found.values
    assert found.declared


def test_missing_env_from_sources_are_listed() -> None:
    """Secrets and missing ConfigMaps in envFrom are listed as unread."""
    alone = DEPLOYMENT.partition("---")[0]

    found = from_texts([("d.yaml", alone)], ["TARGET_PORT"])

    assert list(found.unread) == ["ConfigMap settings", "Secret hidden"]
    assert "ConfigMap settings, Secret hidden" in found.unread_note
    assert list(from_texts([("d.yaml", DEPLOYMENT)], ["TARGET_PORT"]).unread) == ["Secret hidden"]
    assert Variables({}).unread_note == ""


def test_env_wins_over_env_from_where_its_value_is_a_reference_too() -> None:
    """A variable in env overrides envFrom, also if its value is a reference."""
    text = DEPLOYMENT.replace('value: "30443"', "valueFrom: {secretKeyRef: {name: ports, key: port}}")

    found = from_texts([("d.yaml", text)], ["TARGET_PORT"])

    assert "TARGET_PORT" not in found.values
    assert found.references["TARGET_PORT"] == Reference("ports", "port")
    assert from_texts([("d.yaml", text), ("x", "TARGET_PORT=5")], ["TARGET_PORT"]).values["TARGET_PORT"] == "5"


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("--in $(TARGET_NAMESPACE)/$(TARGET_SERVICE_NAME)", "--in edge/payments"),
        ("$(NOBODY) $$(TARGET_PORT) $", "$(NOBODY) $(TARGET_PORT) $"),
        ("$(LATER)", "$(LATER)"),
    ],
)
def test_a_variable_may_be_made_of_others(written: str, meant: str) -> None:
    """References to variables that were defined earlier are expanded, as in Kubernetes."""
    more = f"            - {{name: ARGS, value: '{written}'}}\n            - {{name: LATER, value: x}}\n---"

    found = from_texts([("d.yaml", DEPLOYMENT.replace("---", more))], ["TARGET_PORT"])

    assert found.values["ARGS"] == meant


def test_value_made_from_a_reference_is_a_reference() -> None:
    """A value made from a reference is itself a reference."""
    more = "            - {name: ARGS, value: '--token=$(IONOS_TOKEN)'}\n---"

    found = from_texts([("d.yaml", DEPLOYMENT.replace("---", more))], ["TARGET_PORT"])

    assert "ARGS" not in found.values
    assert found.references["ARGS"] == Reference()


def test_a_value_that_is_nothing_is_empty_and_a_zero_is_a_zero() -> None:
    """A missing value is an empty text, and an unquoted number is kept."""
    text = DEPLOYMENT.replace("namespace: edge,", "namespace: ,").replace('value: "30443"', "value: 0")

    found = from_texts([("d.yaml", text)], ["TARGET_PORT"]).values

    assert (found["TARGET_NAMESPACE"], found["TARGET_PORT"]) == ("", "0")


@pytest.mark.parametrize(
    "text", ["kind: Pod\nspec: {containers: 5}", "kind: ConfigMap\nmetadata: {name: a}\ndata: [b]"]
)
def test_malformed_manifest_has_no_values(text: str) -> None:
    """A malformed manifest has no container and no values."""
    pod = "kind: Pod\nspec: {containers: [{envFrom: [{configMapRef: {name: a}}], env: [{name: B}]}]}"

    assert from_texts([("-", f"{text}\n---\n{pod}")], ["B"]).values == {"B": ""}


def test_lists_and_cron_jobs_are_manifests_too() -> None:
    """Lists, as kubectl prints them, and CronJobs are read."""
    text = """\
kind: List
items:
  - kind: CronJob
    spec: {jobTemplate: {spec: {template: {spec: {containers: [{env: [{name: TARGET_PORT, value: "1"}]}]}}}}}
"""
    assert from_texts([("-", text)], ["TARGET_PORT"]).values == {"TARGET_PORT": "1"}


def test_assignments_are_read_as_a_shell_reads_them() -> None:
    """Quotes, comments and export are read as by a shell; nothing is expanded."""
    text = "# the controller\nexport TARGET_PORT=30443\nA='b c' # why\nD=$HOME\n\n"

    assert from_texts([(".env", text)], ["TARGET_PORT"]).values == {"TARGET_PORT": "30443", "A": "b c", "D": "$HOME"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("TARGET_PORT", "f:1: is neither a manifest nor an assignment NAME=value"),
        ("A=1\nB='", "f:2: No closing quotation"),
        ("A=1", "f: no container has a variable such as TARGET_PORT"),
        ("", "f: has no Deployment or other workload; "),
        ("kind: ConfigMap\nmetadata: {name: a}", "f: has no Deployment or other workload; "),
        ("kind: Deployment\nspec: {template: 1}", "f: Deployment: has no containers; "),
        ("kind: Pod\nmetadata: {name: a, namespace: b}\nspec: {containers: []}", "f: Pod b/a: has no containers; "),
        ("kind: Deployment\nspec: [", "f:3:1: is not YAML: "),
        ("kind: Pod\nspec: {containers: [1, {env: 5, envFrom: {}}]}", "f: no container has a variable"),
    ],
)
def test_unrecognized_line_is_an_error_with_its_place(text: str, message: str) -> None:
    """A line that is neither a manifest nor an assignment is an error with its place."""
    with pytest.raises(HubError) as caught:
        from_texts([("f", text)], ["TARGET_PORT"])

    assert str(caught.value).startswith(message)


def test_several_matching_containers_are_refused() -> None:
    """Two Deployments with the tool's variables, in one file or in two, are refused by name."""
    one, two = (DEPLOYMENT.replace("name: controller}", f"name: {name}, namespace: edge}}") for name in ("a", "b"))

    for texts in ([("d", f"{one}\n---\n{two}")], [("d", one), ("d", two)]):
        with pytest.raises(HubError, match=r"Deployment edge/a \(controller\), Deployment edge/b .*one at a time"):
            from_texts(texts, ["TARGET_PORT"])


def test_pods_of_a_deployment_are_not_further_deployments() -> None:
    """The Pods that a Deployment owns repeat its container and are ignored."""
    pod = """
---
kind: Pod
metadata: {name: p, ownerReferences: [{kind: ReplicaSet}]}
spec: {containers: [{env: [{name: TARGET_PORT, value: "2"}]}]}
"""
    assert from_texts([("d", DEPLOYMENT + pod)], ["TARGET_PORT"]).values["TARGET_PORT"] == "30443"


def test_unused_variables_are_named_without_values() -> None:
    """Declared variables that nothing uses are named; those of this process are not."""
    found = {"STORE_KINDS": "hidden", "FOO_BAR": "hidden", "TARGET_PORT": "1"}

    assert Variables(found, declared=True).unused_note(["TARGET_PORT"]) == "not used: FOO_BAR, STORE_KINDS"
    assert Variables(found).unused_note(["TARGET_PORT"]) == ""


def test_all_mistakes_are_reported_at_once() -> None:
    """All mistakes are reported at once, with the names of the variables."""
    variables = Variables(
        {"A": "x", "B": "1.5", "C": "5", "D": "'"}, references={"E": Reference("secret", "key")}, declared=True
    )
    variables.one_of("A", "y", "z")
    variables.number("B")
    variables.duration("C", "1s")
    variables.words("D")
    variables.text("E")
    variables.text("F", required="it matters")

    with pytest.raises(HubError) as caught:
        variables.check()

    assert str(caught.value).split("; ") == [
        'A: must be y or z, not "x"',
        'B: must be a whole number, not "1.5"',
        'C: is not a duration: "5" (such as 300ms, 30s or 1h30m)',
        "D: cannot be split into words: No closing quotation",
        "E: its value is not in the manifest (valueFrom): give the value itself",
        "F: is required: it matters",
    ]


MOUNTED = """\
kind: CronJob
metadata: {name: controller, namespace: ops}
spec:
  jobTemplate:
    spec:
      template:
        spec:
          containers:
            - env: [{name: TARGET_PORT, value: "1"}]
              volumeMounts:
                - {name: whole, mountPath: /etc}
                - {name: items, mountPath: /etc/items/}
                - {name: whole, mountPath: /etc/file, subPath: kubeconfig}
                - {name: map, mountPath: /etc/map}
                - {name: nosuch, mountPath: /etc/nosuch}
          volumes:
            - {name: whole, secret: {secretName: one}}
            - {name: items, secret: {secretName: two, items: [{key: remote, path: sub/kubeconfig}]}}
            - {name: map, configMap: {name: one}}
            - {secret: {secretName: unnamed}}
"""


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/etc/kubeconfig", Reference("one", "kubeconfig")),
        ("/etc/items/sub/kubeconfig", Reference("two", "remote")),
        ("/etc/items/other", None),
        ("/etc/file", Reference("one", "kubeconfig")),
        ("/etc/map/kubeconfig", None),
        ("/var/kubeconfig", None),
        ("kubeconfig", None),
        ("", None),
    ],
)
def test_file_in_a_volume_is_found_in_its_secret(path: str, expected: Reference | None) -> None:
    """The innermost volume of a path says which key of which Secret a file is."""
    found = from_texts([("f", MOUNTED)], ["TARGET_PORT"])

    assert found.secret_of(path) == expected
    assert found.namespace == "ops"
