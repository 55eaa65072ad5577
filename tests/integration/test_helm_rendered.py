"""The chart rendered by the real helm with unusual values. No API server is needed."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from click import Context

from hub.cli import cli
from hub.cli.options import VARIABLE
from tests.support.api import Object
from tests.support.helm import CHART, EXAMPLES, FULLNAME, NAMESPACE, OWNER, Helm, HelmFailed, arguments, find
from tests.support.prometheus import ALERTS

EU: Object = {"name": "eu", "allowedCIDRs": ["10.7.0.0/16"], "provider": {"name": "node-addresses"}}
WEB: Object = {"name": "web", "namespace": "edge", "sources": [{"cluster": "eu"}]}


@pytest.fixture
def helm(tmp_path: Path) -> Helm:
    """Helm without a cluster."""
    return Helm(tmp_path)


def registry(cluster: Object | None = None, service: Object | None = None, **more: object) -> Object:
    """Values with a registry of one cluster and one Service, each with additional keys."""
    return {"registry": {"data": {"clusters": [EU | (cluster or {})], "services": [WEB | (service or {})], **more}}}


def probed(objects: list[Object]) -> list[str]:
    """The CIDRs that the NetworkPolicy allows on all TCP ports."""
    rules = find(objects, "NetworkPolicy")["spec"]["egress"]
    return [to["ipBlock"]["cidr"] for rule in rules for to in rule.get("to", ())]


@pytest.mark.parametrize(
    "given",
    [
        registry(service={"health": {"mode": "tcp"}}),
        registry(defaults={"unreachable": {"after": "1m", "probe": "tcp"}}),
        registry({"unreachable": {"after": "1m", "probe": "tcp"}}),
    ],
)
def test_probed_nodes_can_be_reached(helm: Helm, given: Object) -> None:
    """The NetworkPolicy allows health checks, and the probes of an unreachable cluster."""
    assert probed(helm.template(given)) == ["10.7.0.0/16"]


def test_network_policy_omits_nodes_without_probes(helm: Helm) -> None:
    """Without probes the NetworkPolicy has no node CIDRs, even if something else is called health."""
    assert probed(helm.template(registry(service={"name": "health"}))) == []


REF = {"secret": "token", "key": "token"}


@pytest.mark.parametrize(
    "given",
    [
        registry({"provider": {"name": "acme", "config": {"token": REF}}}),
        registry({"provider": {"name": "acme", "config": {"logins": [{"deep": {"token": REF}}]}}}),
        registry(service={"sources": [{"cluster": "eu", "provider": {"name": "acme", "config": {"token": REF}}}]}),
    ],
)
def test_provider_secrets_are_found_anywhere_in_configuration(helm: Helm, given: Object) -> None:
    """Secrets are found at any depth in the configuration of a cluster's or a source's provider."""
    with pytest.raises(HelmFailed, match=r"registry\.data names the Secrets token, and the hub may read none"):
        helm.template(given)


def test_provider_key_is_not_taken_for_a_secret(helm: Helm) -> None:
    """A value is a reference to a Secret only if it has a name and a key."""
    assert helm.template(registry({"provider": {"name": "acme", "config": {"secret": "text"}}}))


def notes(helm: Helm, folder: Path, values: Object, *more: str) -> str:
    """The rendered NOTES.txt. Helm renders it only for a cluster, so it is copied to a template."""
    copy, given = folder / "chart", folder / "values.json"
    shutil.copytree(CHART, copy)
    text = (copy / "templates" / "NOTES.txt").read_text()
    (copy / "templates" / "_notes.tpl").write_text(f'{{{{ define "notes" }}}}{text}{{{{ end }}}}')
    (copy / "templates" / "notes.yaml").write_text('{kind: Notes, text: {{ include "notes" . | toJson }}}')
    given.write_text(json.dumps(values))
    where = ("--values", str(given), "--show-only", "templates/notes.yaml")
    rendered = helm.run("template", "rel", str(copy), *where, *more)
    return str(yaml.safe_load(rendered)["text"])


@pytest.mark.parametrize("wheels", [{}, {"volume": {"emptyDir": {}}, "install": ["acme"]}])
def test_commands_in_the_notes_are_the_hub_of_the_pod(helm: Helm, tmp_path: Path, wheels: Object) -> None:
    """The notes run `hub plan` with the installed providers, and without options, since the environment has them."""
    values = registry() | {"providers": {"wheels": wheels}}
    [container] = find(helm.template(values), "Deployment")["spec"]["template"]["spec"]["containers"]
    lines = [line for line in notes(helm, tmp_path, values).splitlines() if " exec deployment/" in line]
    commands = [words[words.index("--") + 1 :] for words in map(shlex.split, lines)]
    assert commands == [["hub", "status"], [*container.get("command", ["hub"]), "plan"]]


@pytest.mark.parametrize("scope", ["cluster", "namespaced"])
def test_environment_gives_options_their_values(helm: Helm, scope: str) -> None:
    """Every ENDPOINTSLICE_HUB_ variable of the container gives the default of an option, with its values."""
    values = registry() | {
        "hub": {"allowExec": ["/bin/aws", "gke"], "allowApiHosts": ["api.example.com"]},
        "rbac": {"scope": scope, "namespaces": ["edge", "shop"]},
        "secrets": {"namespace": "hub-clusters"},
    }
    [container] = find(helm.template(values), "Deployment")["spec"]["template"]["spec"]["containers"]
    given = {each["name"]: each["value"] for each in container["env"] if each["name"].startswith(VARIABLE)}
    options: dict[str, object] = {}
    for name in ("run", "status", "plan"):
        command = cli.get_command(Context(cli), name)
        assert command is not None
        with pytest.MonkeyPatch.context() as patch:
            for variable, value in given.items():
                patch.setenv(variable, value)
            options |= {
                str(option.envvar): context.params[str(option.name)]
                for context in [command.make_context(name, [], resilient_parsing=True)]
                for option in command.params
                if option.envvar is not None
            }
    assert given.keys() <= options.keys()
    assert options[f"{VARIABLE}ALLOW_EXEC"] == ("/bin/aws", "gke")
    assert options[f"{VARIABLE}ALLOW_API_HOST"] == ("api.example.com",)
    assert options[f"{VARIABLE}TARGET_NAMESPACE"] == (("edge", "shop") if scope == "namespaced" else ())
    assert options[f"{VARIABLE}SECRETS_NAMESPACE"] == "hub-clusters"
    assert options[f"{VARIABLE}OWNER"] == OWNER
    assert options[f"{VARIABLE}SERVER"] == "http://127.0.0.1:8080"


@pytest.mark.parametrize("given", [{"fullnameOverride": "f" * 63}, {"nameOverride": "n" * 63}])
def test_names_of_services_fit(helm: Helm, given: Object) -> None:
    """Names of Services have at most 63 characters, suffixes included."""
    objects = helm.template({**given, "page": {"expose": True}})
    names = [manifest["metadata"]["name"] for manifest in objects if manifest["kind"] == "Service"]
    assert [name.rpartition("-")[2] for name in names] == ["metrics", "page"]
    assert max(map(len, names)) <= 63


RULE: Object = {"enabled": True}


def runbooks(objects: list[Object]) -> dict[str, str]:
    """Alert -> URL of its runbook, in the PrometheusRule."""
    [group] = find(objects, "PrometheusRule")["spec"]["groups"]
    return {rule["alert"]: rule["annotations"]["runbook_url"] for rule in group["rules"]}


def test_prometheus_rule_is_the_rules_file(helm: Helm) -> None:
    """Without a value, the chart renders files/alerts.yaml as it is."""
    rule = find(helm.template({"metrics": {"prometheusRule": RULE}}), "PrometheusRule")
    assert rule["spec"] == yaml.safe_load(ALERTS.read_text())


@pytest.mark.parametrize("url", ["https://wiki.example.com/#/runbooks", "http://wiki.example.com:8080/$1/"])
def test_runbooks_are_at_the_url_of_the_values(helm: Helm, url: str) -> None:
    """The chart puts `runbookUrl` in front of the name of each alert, with one slash in between."""
    found = runbooks(helm.template({"metrics": {"prometheusRule": {**RULE, "runbookUrl": url}}}))
    assert len(found) > 15
    assert found == {alert: f"{url.removesuffix('/')}/{alert}.md" for alert in found}


@pytest.mark.parametrize("url", ["", "docs/runbooks", "https://wiki.example.com/our runbooks", None])
def test_url_of_the_runbooks_is_absolute(helm: Helm, url: str | None) -> None:
    """A relative or missing URL is refused with the name of the value."""
    with pytest.raises(HelmFailed, match="runbookUrl"):
        helm.template({"metrics": {"prometheusRule": {**RULE, "runbookUrl": url}}})


NUMBERS: Object = {
    "nameOverride": "1",
    "fullnameOverride": "2",
    "serviceAccount": {"name": "3"},
    "registry": {"existingConfigMap": "4", "key": "5"},
    "page": {"expose": True, "tlsSecret": "6"},
    "priorityClassName": "7",
    "rbac": {"scope": "namespaced", "namespaces": ["8"]},
    "secrets": {"namespace": "9"},
    "metrics": {"serviceMonitor": {"enabled": True}, "prometheusRule": {"enabled": True}},
}


@pytest.mark.parametrize("more", [{}, {"registry": {"existingConfigMap": "", "key": "5"}}, {"rbac": {}}])
def test_names_like_numbers_are_text(helm: Helm, tmp_path: Path, more: Object) -> None:
    """Names such as 123 are rendered as text."""
    values = tmp_path / "values.json"
    values.write_text(json.dumps(NUMBERS | more))
    text = helm.run("template", "10", str(CHART), "-n", "11", "--values", str(values))
    objects = [manifest for manifest in yaml.safe_load_all(text) if manifest]
    assert len(objects) > 10
    for manifest in objects:
        assert {key for key in manifest.get("data", {}) if not isinstance(key, str)} == set()
        for where, value in leaves(manifest):
            if where[-1] in TEXTS or where[-2:-1] in (("labels",), ("matchLabels",), ("resourceNames",)):
                assert isinstance(value, str), where


TEXTS = {"name", "namespace", "key", "secretName", "serviceAccountName", "priorityClassName", "policyName"}


def leaves(node: object, *where: str) -> list[tuple[tuple[str, ...], object]]:
    """(path, value) of everything except maps and lists."""
    if isinstance(node, dict):
        return [leaf for key, value in node.items() for leaf in leaves(value, *where, str(key))]
    if isinstance(node, list):
        return [leaf for n, value in enumerate(node) for leaf in leaves(value, *where, str(n))]
    return [(where, node)]


SECTIONS = {
    **dict.fromkeys(("admission", "hub", "metrics", "podDisruptionBudget", "rbac", "registry", "serviceAccount"), ""),
    "wheels": "providers",
    "podMonitor": "metrics",
    "data": "registry",
}


@pytest.mark.parametrize("name", SECTIONS)
def test_a_section_that_is_null_is_named(helm: Helm, name: str) -> None:
    """The schema's error names a section that is null."""
    section = SECTIONS[name]
    with pytest.raises(HelmFailed, match=rf"at '{f'/{section}' * bool(section)}': missing property '{name}'"):
        helm.template({section: {name: None}} if section else {name: None})


@pytest.mark.parametrize("path", ["admission.deniedCIDRs", "admission.previousOwners", "networkPolicy.probeCIDRs"])
def test_a_list_that_is_null_is_empty(helm: Helm, path: str) -> None:
    """A list that is null is treated as empty."""
    section, _, name = path.partition(".")
    assert helm.template({section: {name: None}}) == helm.template()


@pytest.mark.parametrize("path", ["commonLabels", "podLabels"])
def test_selected_labels_stay(helm: Helm, path: str) -> None:
    """Additional labels are added; selector labels are refused with the value's name."""
    pods = find(helm.template({path: {"team": "edge"}}), "Deployment")["spec"]["template"]
    assert pods["metadata"]["labels"]["team"] == "edge"
    with pytest.raises(HelmFailed, match=f"at '/{path}/app.kubernetes.io~1instance': false schema"):
        helm.template({path: {"app.kubernetes.io/instance": "other"}})


def test_owner_of_long_names_ends_the_name_of_a_lease(helm: Helm) -> None:
    """The registry accepts the owner that the chart makes from long names."""
    command = cli.get_command(Context(cli), "run")
    assert command is not None
    [option] = [param for param in command.params if param.name == "owner"]
    for namespace, release in (
        (NAMESPACE, FULLNAME),
        ("n" * 53, "r" * 53),
        ("n" * 52 + "-n", "r.s"),
        ("n" * 63, "r-1"),
    ):
        text = helm.run("template", release, str(CHART), "-n", namespace)
        [owner] = set(re.findall(r"ENDPOINTSLICE_HUB_OWNER, value: \"(\S+)\"}", text))
        assert option.type.convert(owner, option, None) == owner
    with pytest.raises(HelmFailed, match="at '/owner'"):
        helm.template({"owner": "Edge_1"})


def test_a_parent_chart_may_pass_its_own_keys(helm: Helm) -> None:
    """`global` and the `enabled` of a condition come from a parent chart, and change nothing."""
    assert helm.template({"global": {"any": "thing"}, "enabled": True}) == helm.template()


# --- values that other charts have too ---------------------------------------------------------------

POD = ("template", "spec")
HUB = (*POD, "containers", 0)
MONITOR: Object = {
    "scrapeTimeout": "10s",
    "relabelings": [{"action": "labeldrop", "regex": "pod"}],
    "metricRelabelings": [{"action": "drop", "regex": "python_gc_.*"}],
}
FIELDS: list[tuple[Object, str, tuple[str | int, ...], object]] = [
    ({"deploymentAnnotations": {"a": "b"}}, "Deployment", ("metadata", "annotations"), {"a": "b"}),
    ({"strategy": {"type": "Recreate"}}, "Deployment", ("spec", "strategy"), {"type": "Recreate"}),
    ({"revisionHistoryLimit": 0}, "Deployment", ("spec", "revisionHistoryLimit"), 0),
    ({"dnsPolicy": "Default"}, "Deployment", ("spec", *POD, "dnsPolicy"), "Default"),
    ({"dnsConfig": {"searches": ["a.b"]}}, "Deployment", ("spec", *POD, "dnsConfig"), {"searches": ["a.b"]}),
    (
        {"hostAliases": [{"ip": "10.7.0.1", "hostnames": ["a.b"]}]},
        "Deployment",
        ("spec", *POD, "hostAliases"),
        [{"ip": "10.7.0.1", "hostnames": ["a.b"]}],
    ),
    ({"runtimeClassName": "gvisor"}, "Deployment", ("spec", *POD, "runtimeClassName"), "gvisor"),
    ({"terminationGracePeriodSeconds": 30}, "Deployment", ("spec", *POD, "terminationGracePeriodSeconds"), 30),
    ({"podSecurityContext": {"fsGroup": 1}}, "Deployment", ("spec", *POD, "securityContext", "fsGroup"), 1),
    ({"podSecurityContext": {"fsGroup": 1}}, "Deployment", ("spec", *POD, "securityContext", "runAsNonRoot"), True),
    ({"securityContext": {"runAsUser": 5}}, "Deployment", ("spec", *HUB, "securityContext", "runAsUser"), 5),
    (
        {"securityContext": {"readOnlyRootFilesystem": False}},
        "Deployment",
        ("spec", *HUB, "securityContext", "readOnlyRootFilesystem"),
        False,
    ),
    ({"extraEnv": [{"name": "A", "value": "b"}]}, "Deployment", ("spec", *HUB, "env", -1), {"name": "A", "value": "b"}),
    (
        {"envFrom": [{"secretRef": {"name": "a"}}]},
        "Deployment",
        ("spec", *HUB, "envFrom"),
        [{"secretRef": {"name": "a"}}],
    ),
    ({"extraArgs": ["--credentials-dir=/a"]}, "Deployment", ("spec", *HUB, "args", -1), "--credentials-dir=/a"),
    ({"startupProbe": {"failureThreshold": 9}}, "Deployment", ("spec", *HUB, "startupProbe", "failureThreshold"), 9),
    ({"startupProbe": {"failureThreshold": 9}}, "Deployment", ("spec", *HUB, "startupProbe", "periodSeconds"), 2),
    ({"livenessProbe": {"timeoutSeconds": 9}}, "Deployment", ("spec", *HUB, "livenessProbe", "timeoutSeconds"), 9),
    ({"readinessProbe": {"periodSeconds": 9}}, "Deployment", ("spec", *HUB, "readinessProbe", "periodSeconds"), 9),
    ({"podDisruptionBudget": {"maxUnavailable": "50%"}}, "PodDisruptionBudget", ("spec", "maxUnavailable"), "50%"),
    ({"metrics": {"service": {"annotations": {"a": "b"}}}}, "Service", ("metadata", "annotations"), {"a": "b"}),
    (
        {"metrics": {"serviceMonitor": {"enabled": True, **MONITOR}}},
        "ServiceMonitor",
        ("spec", "endpoints", 0),
        {"port": "metrics", "interval": "30s", **MONITOR},
    ),
    (
        {"metrics": {"podMonitor": {"enabled": True, **MONITOR}}},
        "PodMonitor",
        ("spec", "podMetricsEndpoints", 0),
        {"port": "metrics", "interval": "30s", **MONITOR},
    ),
    (
        {"metrics": {"service": {"enabled": False}}, "page": {"expose": True, "service": {"annotations": {"a": "b"}}}},
        "Service",
        ("metadata", "annotations"),
        {"a": "b"},
    ),
]


@pytest.mark.parametrize(("given", "kind", "where", "expected"), FIELDS)
def test_value_is_in_its_field(
    helm: Helm, given: Object, kind: str, where: tuple[str | int, ...], expected: object
) -> None:
    """A value is in the field of the object that it is named after. The default is something else."""

    def found(values: Object) -> object:
        node: Any = next((each for each in helm.template(values) if each["kind"] == kind), None)
        for key in where:
            node = node[key] if isinstance(key, int) and node else (node or {}).get(key)
        return node

    assert found(given) == expected
    assert found({}) != expected or where[-1] in (
        "runAsNonRoot",
        "periodSeconds",
    )  # defaults that stay beside the value


@pytest.mark.parametrize(("level", "verbose"), [("info", False), ("debug", True)])
def test_log_level_debug_is_the_flag_v(helm: Helm, level: str, verbose: bool) -> None:
    """Debug is the argument `-v`, and info is its absence."""
    assert ("-v" in arguments(helm.template({"logLevel": level}))) is verbose


def test_null_removes_a_key_of_a_security_context(helm: Helm) -> None:
    """As OpenShift needs it: the platform chooses user and groups, and the other settings stay."""
    chosen = {"runAsUser": None, "runAsGroup": None, "fsGroup": None}
    spec = find(helm.template({"podSecurityContext": chosen}), "Deployment")["spec"]["template"]["spec"]
    assert spec["securityContext"] == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}


WEAKER: dict[str, Object] = {
    "runAsNonRoot is not true": {
        "podSecurityContext": {"runAsNonRoot": None},
        "securityContext": {"runAsNonRoot": None},
    },
    "allowPrivilegeEscalation is not false": {"securityContext": {"allowPrivilegeEscalation": True}},
    "privileged is true": {"securityContext": {"privileged": True}},
    "readOnlyRootFilesystem is not true": {"securityContext": {"readOnlyRootFilesystem": False}},
    "capabilities.drop lacks ALL": {"securityContext": {"capabilities": None}},
    "capabilities.add is not empty": {"securityContext": {"capabilities": {"add": ["NET_RAW"]}}},
    "seccompProfile.type is neither RuntimeDefault nor Localhost": {
        "securityContext": {"seccompProfile": {"type": "Unconfined"}}
    },
}


@pytest.mark.parametrize("said", ["", *WEAKER])
def test_notes_list_weaker_security_settings(helm: Helm, tmp_path: Path, said: str) -> None:
    """The notes list each setting that is weaker than the default, and are silent about the defaults."""
    text = notes(helm, tmp_path, WEAKER.get(said, {}))
    found = re.findall(r"NOTE: your security contexts allow more than the hub needs: (.*)\.\n", text)
    assert found == ([said] if said else [])


def test_false_of_a_container_overrides_its_pod(helm: Helm, tmp_path: Path) -> None:
    """A container's runAsNonRoot wins over that of its Pod, also in the notes."""
    assert "runAsNonRoot is not true" in notes(helm, tmp_path, {"securityContext": {"runAsNonRoot": False}})


# --- the admission policy and the versions of Kubernetes ---------------------------------------------

POLICY = "admissionregistration.k8s.io/v1/ValidatingAdmissionPolicy"


def has_policy(objects: list[Object]) -> bool:
    """Whether the policy and its binding are among objects; fails if only one of them is."""
    kinds = {each["kind"] for each in objects}
    policy, binding = ("ValidatingAdmissionPolicy" + end in kinds for end in ("", "Binding"))
    assert policy == binding
    assert "Deployment" in kinds
    return policy


@pytest.mark.parametrize(
    ("enabled", "flags", "installed"),
    [
        ("auto", "", True),
        ("auto", "--kube-version 1.31.0", True),
        ("auto", "--kube-version 1.30.14", False),
        ("auto", f"--api-versions v1/Service --api-versions {POLICY}", True),
        ("auto", f"--kube-version 1.30.14 --api-versions v1/Service --api-versions {POLICY}", False),
        ("auto", "--api-versions v1/Service", False),
        (True, "--api-versions v1/Service", True),
        (False, f"--api-versions v1/Service --api-versions {POLICY}", False),
        (False, "--kube-version 1.22.0", False),
    ],
)
def test_the_policy_is_installed_where_it_can_be_evaluated(
    helm: Helm, tmp_path: Path, enabled: object, flags: str, installed: bool
) -> None:
    """`auto` follows the version of the API server and the kinds that it offers. The notes tell of an absent policy."""
    values: Object = {"admission": {"enabled": enabled}}
    assert has_policy(helm.template(values, *flags.split())) is installed
    said = "only RBAC keeps this account from changing slices of others, because admission.enabled is"
    text = notes(helm, tmp_path, values, *flags.split())
    assert (f"NOTE: {said} {str(enabled).lower()}" in text) is not installed
    assert ("Run helm upgrade after" in text) is (enabled == "auto" and not installed)


# --- the Pod of `helm test` ----------------------------------------------------------------------------


def selects(selector: Object, labels: Object) -> bool:
    """Whether a selector of matchLabels and of matchExpressions with In selects labels."""
    expressions = selector.get("matchExpressions", ())
    assert all(each["operator"] == "In" for each in expressions)
    return all(labels.get(key) == value for key, value in selector.get("matchLabels", {}).items()) and all(
        labels.get(each["key"]) in each["values"] for each in expressions
    )


@pytest.mark.parametrize("name", ["", "n" * 63])
def test_only_the_network_policy_selects_the_pod_of_helm_test(helm: Helm, name: str) -> None:
    """No Service, Deployment or PodDisruptionBudget counts it as a hub, and it may reach what the hub may reach."""
    objects = helm.template(
        {"nameOverride": name, "page": {"expose": True}, "metrics": {"podMonitor": {"enabled": True}}}
    )
    hub = find(objects, "Deployment")["spec"]["template"]["metadata"]["labels"]
    test = find(objects, "Pod")["metadata"]["labels"]
    selectors = [
        (each["kind"], each["spec"].get("podSelector", each["spec"].get("selector")))
        for each in objects
        if each["kind"] in ("Service", "Deployment", "PodDisruptionBudget", "NetworkPolicy", "PodMonitor")
    ]
    assert len(selectors) == 6
    for kind, selector in selectors:
        whole = {"matchLabels": selector} if kind == "Service" else selector
        assert selects(whole, hub), kind
        assert selects(whole, test) is (kind == "NetworkPolicy"), kind


def test_the_pod_of_helm_test_is_a_hubs_in_all_but_its_arguments(helm: Helm) -> None:
    """Image, command, environment, files, account, placement and security are those of the hub's Pods."""
    [example] = [path for path in EXAMPLES if path.stem == "everything"]
    objects = helm.template(example)
    pod, template = find(objects, "Pod"), find(objects, "Deployment")["spec"]["template"]
    [check], [hub] = pod["spec"].pop("containers"), template["spec"].pop("containers")
    assert pod["metadata"]["annotations"] == {
        "helm.sh/hook": "test",
        "helm.sh/hook-delete-policy": "before-hook-creation",
        **template["metadata"]["annotations"],
    }
    assert pod["spec"].pop("restartPolicy") == "Never"
    assert template["spec"].pop("topologySpreadConstraints")
    assert template["spec"].pop("terminationGracePeriodSeconds")
    assert pod["spec"] == template["spec"]
    own = {"name", "args", "ports", "startupProbe", "livenessProbe", "readinessProbe"}
    assert {key: check[key] for key in check.keys() - own} == {key: hub[key] for key in hub.keys() - own}
    assert check.keys() & own == {"name", "args"}
