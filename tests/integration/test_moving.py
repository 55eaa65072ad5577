"""docs/moving: the pages show what ``hub import`` prints, and the real chart makes the registries that they show."""

from __future__ import annotations

import base64
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from click.testing import CliRunner

from hub.cli import cli
from hub.model import LABEL_OWNER, LABEL_SERVICE_NAME
from hub.registry.load import loads
from hub.registry.spec import LABEL_COPIER_SOURCE, Registry
from hub.report.auth import right_of
from tests.support.api import Object
from tests.support.apiserver.server import ApiServer
from tests.support.helm import (
    CHART,
    FULLNAME,
    NAMESPACE,
    OWNER,
    Helm,
    arguments,
    environment,
    find,
    pods,
    policy_in_force,
    slice_of,
)
from tests.support.hub import NODE_RULES, ROOT, World, add_node
from tests.support.page import blocks, is_values
from tests.support.registry import strict
from tests.support.waiting import eventually

MOVING = ROOT / "docs" / "moving"
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
SLICES = "/apis/discovery.k8s.io/v1/namespaces/edge/endpointslices"
THEIRS = f"!{LABEL_OWNER}"
IONOS, COPIER = "ionoscloud-endpointslice-controller", "endpoint-copier-operator"
CRONJOB, VIEWS = "endpointslice-cronjob", "dcontroller-endpointslice"
IMPORTS = [("inventory-script", IONOS, 0), ("env", IONOS, 1), ("endpoint-copier", COPIER, 0)]
"""Command, page, and which of the page's values it prints from the page's first manifest."""

ASSIGNMENTS = "TARGET_NAMESPACE=edge\nTARGET_SERVICE_NAME=payments\nTARGET_PORT=30443\n"
SCRIPT = "IONOS_DATACENTER_ID=10000000-0000-4000-8000-000000000001\nIONOS_PRIVATE_LAN_ID=2\nSECURED_KUBECONFIG=/k/f\n"
ANNOTATED = (
    "{kind: Service, metadata: {name: b, namespace: edge, annotations: "
    '{endpoint-copier/enabled: "true", endpoint-copier/default-service-name: api}}}'
)


@pytest.fixture
def helm(tmp_path: Path) -> Helm:
    """The program, without a cluster."""
    return Helm(tmp_path)


def yaml_of(page: Path) -> list[str]:
    """The yaml blocks of a page."""
    return [text for kind, text in blocks(page.read_text()) if kind == "yaml"]


def manifest(page: str) -> str:
    """What a page moves from: its first manifest."""
    return next(text for text in yaml_of(MOVING / f"{page}.md") if text.startswith("apiVersion:"))


def values(page: str, number: int = 0) -> Object:
    """Values that a page shows."""
    found = [text for text in yaml_of(MOVING / f"{page}.md") if is_values(text)]
    return dict(yaml.safe_load(found[number]))


def registry(page: str) -> str:
    """The first registry that a page shows."""
    text, *_ = [text for text in yaml_of(MOVING / f"{page}.md") if text.startswith("version:")]
    return text


def printed(command: str, text: str, *options: str) -> str:
    """What ``hub import`` prints for this text."""
    done = CliRunner().invoke(cli, ["import", command, "-f", "-", *options], input=text)
    assert done.exit_code == 0, done.output
    return done.stdout


def loaded(text: str) -> Registry:
    """A registry without its digest, and without an owner that it does not state."""
    found = msgspec.structs.replace(strict(loads(text.encode(), "clusters.yaml")), digest="")
    return found if "owner" in yaml.safe_load(text) else msgspec.structs.replace(found, owner=OWNER)


def rendered(objects: list[Object]) -> Registry:
    """The registry in the chart's ConfigMap."""
    return loaded(find(objects, "ConfigMap", f"{FULLNAME}-registry")["data"]["clusters.yaml"])


@pytest.mark.parametrize(("command", "page", "number"), IMPORTS)
def test_values_of_a_page_are_imported(command: str, page: str, number: int) -> None:
    """The page's manifest goes through ``hub import --helm``; the result is the values on the page."""
    assert yaml.safe_load(printed(command, manifest(page), "--helm")) == values(page, number)


@pytest.mark.parametrize(("command", "page"), [("inventory-script", IONOS), ("endpoint-copier", COPIER)])
def test_registry_of_a_page_is_imported(command: str, page: str) -> None:
    """The page's manifest goes through ``hub import``; the result is the registry on the page."""
    assert yaml.safe_load(printed(command, manifest(page))) == yaml.safe_load(registry(page))


@pytest.mark.parametrize("page", [IONOS, COPIER, VIEWS, CRONJOB])
def test_values_of_a_page_make_its_registry(helm: Helm, page: str) -> None:
    """The chart renders the values on the page into the registry on the page."""
    assert rendered(helm.template(values(page))) == loaded(registry(page))


@pytest.mark.parametrize(
    "text", [pytest.param(text, id=page.stem) for page in PAGES for text in yaml_of(page) if is_values(text)]
)
def test_values_of_every_page_are_rendered(helm: Helm, text: str) -> None:
    """The chart accepts the values on every page, and the registry in its ConfigMap has no problem."""
    found = rendered(helm.template(yaml.safe_load(text)))
    assert found.targets or found.views or found.allocations


@pytest.mark.parametrize(
    ("command", "text"),
    [
        ("env", manifest(IONOS)),
        ("env", f"{ASSIGNMENTS}SOURCE_KIND=file\nINVENTORY_FILE_PATH=/i/nodes.json\nTARGET_MANAGED_BY=old\n"),
        ("env", f"{ASSIGNMENTS}SOURCE_KIND=static\nSTORE_KIND=memory\nHEALTH_CHECK_MODE=tcp\n"),
        ("env", f"{ASSIGNMENTS}SOURCE_KIND=command\nINVENTORY_COMMAND=list\nSOURCE_POLL_INTERVAL=1m\n"),
        ("inventory-script", manifest(IONOS)),
        ("inventory-script", f"{SCRIPT}IONOS_TOKEN=very-secret\nIONOS_CONTRACT_NUMBER=31234567\n"),
        ("inventory-script", f"{SCRIPT}{ASSIGNMENTS}IONOS_USERNAME=off\nIONOS_PASSWORD=s\nIONOS_API_URL=api.example\n"),
        ("endpoint-copier", manifest(COPIER)),
        ("endpoint-copier", ANNOTATED),
        ("ip-address-controller", "LEASE_NAME=old\nCLUSTER_NAME=gke-prod\n"),
    ],
)
def test_chart_makes_the_registry_that_is_printed_without_helm(helm: Helm, command: str, text: str) -> None:
    """The values that --helm prints become, in the chart's ConfigMap, the registry that is printed without it."""
    found = printed(command, text, "--helm")

    assert rendered(helm.template(yaml.safe_load(found))) == loaded(printed(command, text))
    assert "very-secret" not in found


def test_pods_may_do_what_the_registry_needs(helm: Helm) -> None:
    """Secrets, programs, variables and volumes of the values reach the hub's Pods and the roles of its account."""
    script = helm.template(values(IONOS))
    program = helm.template(values(IONOS, 1))
    [container] = find(program, "Deployment")["spec"]["template"]["spec"]["containers"]

    role = find(script, "Role", f"{FULLNAME}-secrets")
    assert role["metadata"]["namespace"] == "edge"
    assert [(rule["resourceNames"], rule["verbs"]) for rule in role["rules"]] == [
        (["ionos", "secured-kubeconfig"], ["get", "list", "watch"])
    ]
    assert environment(script)["ENDPOINTSLICE_HUB_SECRETS_NAMESPACE"] == "edge"
    assert environment(program)["ENDPOINTSLICE_HUB_ALLOW_EXEC"] == "/usr/bin/python3"
    assert {"IONOS_TOKEN", "SECURED_KUBECONFIG"} <= {entry["name"] for entry in container["env"]}
    assert "/etc/secured" in [mount["mountPath"] for mount in container["volumeMounts"]]


def test_dry_run_and_other_hosts_reach_the_hub(helm: Helm) -> None:
    """A store in memory and the folder of a file are arguments of the hub; the API's host is in its environment."""
    file = f"{ASSIGNMENTS}SOURCE_KIND=file\nINVENTORY_FILE_PATH=/i/nodes.json\nSTORE_KIND=memory\n"
    api = f"{SCRIPT}IONOS_TOKEN=t\nIONOS_API_URL=https://api.example.com:8443\n"

    found = [helm.template(yaml.safe_load(printed(*each, "--helm"))) for each in (("env", file), ("env", SOURCE + api))]

    assert {"--dry-run", "--credentials-dir=/i"} <= set(arguments(found[0]))
    assert "--credentials-dir=/k" in arguments(found[1])
    assert environment(found[1])["ENDPOINTSLICE_HUB_ALLOW_API_HOST"] == "api.example.com"


SOURCE = f"{ASSIGNMENTS}SOURCE_KIND=ionos\n"


@pytest.mark.parametrize("page", [IONOS, COPIER, CRONJOB])
def test_policy_lets_the_hub_delete_the_old_slices(helm: Helm, page: str) -> None:
    """The admission policy allows the deletion of slices that the registry adopts, those of annotated Services too."""
    given = values(page)
    data = given["registry"]["data"]
    for service in data["services"] if page == COPIER else ():
        service.pop("adopt")  # annotated Services do not need it
    policy = yaml.safe_dump(find(helm.template(given), "ValidatingAdmissionPolicy"), width=10_000)
    manager = {COPIER: "'endpoint-copier/source' in", IONOS: "'ionoscloud-endpointslice-controller'"}
    assert manager.get(page, "'cluster-admins'") in policy


def slice_of_the_script(folder: Path) -> Any:
    """The slice that the script on the CronJob's page writes, with a kubectl that prints two addresses."""
    script, _ = yaml.safe_load_all(manifest(CRONJOB))
    (folder / "update.sh").write_text(script["data"]["update.sh"])
    fake = folder / "kubectl"
    fake.write_text('#!/bin/sh\ncase "$*" in *"get nodes"*) echo 10.7.0.1 10.7.0.2;; *) cat > slice.yaml;; esac\n')
    fake.chmod(0o755)
    subprocess.run(["sh", "update.sh"], cwd=folder, env={"PATH": f"{folder}:/usr/bin:/bin"}, check=True, timeout=20)
    return yaml.safe_load((folder / "slice.yaml").read_text())


def test_registry_has_what_the_cronjob_had() -> None:
    """The selector and the Secret of the CronJob are those of the registry."""
    script, cronjob = yaml.safe_load_all(manifest(CRONJOB))
    [cluster] = yaml.safe_load(registry(CRONJOB))["clusters"]
    volumes = cronjob["spec"]["jobTemplate"]["spec"]["template"]["spec"]["volumes"]

    assert f"-l {cluster['nodes']['selector']} " in script["data"]["update.sh"]
    assert cluster["kubeconfig"]["secret"] in [volume.get("secret", {}).get("secretName") for volume in volumes]


def test_views_are_served_to_the_cluster(helm: Helm) -> None:
    """The chart makes the Service that the page names, and the page's role has the path of the views."""
    text = helm.run("template", "hub", str(CHART), "-n", "endpointslice-hub", "--set", "page.expose=true")
    service = find([each for each in yaml.safe_load_all(text) if each], "Service", "hub-endpointslice-hub-page")
    page = MOVING / f"{VIEWS}.md"
    [role] = [yaml.safe_load(text) for text in yaml_of(page) if "kind: ClusterRole" in text]

    assert values(VIEWS)["page"] == {"expose": True}
    assert [port["port"] for port in service["spec"]["ports"]] == [80]
    assert f"http://{service['metadata']['name']}.{service['metadata']['namespace']}/api/" in page.read_text()
    assert role["rules"] == [{"nonResourceURLs": [right_of("/api/v1/endpoints")], "verbs": ["get"]}]


def test_hub_replaces_the_slice_of_the_cronjob(
    tmp_path: Path, hub_cluster: ApiServer, remote_clusters: tuple[ApiServer, ...]
) -> None:
    """Installed with the page's values, the hub replaces the script's slice; the steps to roll back restore it."""
    api, remote = hub_cluster.api, remote_clusters[0]
    remote.grant("hub", *NODE_RULES)
    for name, address, pool in (("n1", "10.7.0.1", "ingress"), ("n2", "10.7.0.2", "ingress"), ("n3", "10.7.0.3", "x")):
        add_node(remote, name, address, labels={"pool": pool})
    kubeconfig = base64.b64encode(remote.kubeconfig(tmp_path / "remote", "hub").read_bytes()).decode()
    secret = {"metadata": {"name": "payments-eu"}, "data": {"kubeconfig": kubeconfig}}
    api.post("/api/v1/namespaces/edge/secrets", secret)
    world = World(tmp_path, hub_cluster, {})
    world.add_service()
    old = slice_of_the_script(tmp_path)
    api.post(SLICES, old)

    with installed(tmp_path, hub_cluster, values(CRONJOB)):
        eventually(lambda: world.published() == ["10.7.0.1", "10.7.0.2"], 30)
        eventually(lambda: not world.slices(selector=THEIRS), 30)
    api.post(SLICES, old)
    purge(hub_cluster.kubeconfig(tmp_path / "admin"), "edge")

    assert world.slices() == []
    assert [slice_["metadata"]["name"] for slice_ in world.slices(selector=THEIRS)] == [old["metadata"]["name"]]


def test_hub_replaces_the_copy_of_endpoint_copier(tmp_path: Path, hub_cluster: ApiServer) -> None:
    """The plan has the copy that a Service asks for. Installed with the page's values, the hub replaces the old one."""
    api = hub_cluster.api
    _, service = yaml.safe_load_all(manifest(COPIER))
    api.post("/api/v1/namespaces", {"metadata": {"name": "team-a"}})
    api.post("/api/v1/namespaces/edge/services", service)
    source = slice_of("web-1", "10.8.0.1", labels={LABEL_SERVICE_NAME: "web"})
    api.post(SLICES.replace("edge", "team-a"), source)
    copied = {LABEL_SERVICE_NAME: "team-a-web", LABEL_COPIER_SOURCE: "web-1"}
    old = slice_of("team-a-web", "10.8.0.1", labels=copied, ports=[{"name": "http", "port": 8080, "protocol": "TCP"}])
    api.post(SLICES, old)
    world = World(tmp_path, hub_cluster, {})
    world.write_text(registry(COPIER))

    admin = hub_cluster.kubeconfig(tmp_path / "admin")
    plan = CliRunner().invoke(cli, ["plan", "--registry", str(world.path), "--kubeconfig", str(admin), "-o", "yaml"])
    with installed(tmp_path, hub_cluster, values(COPIER)):
        eventually(lambda: world.published("team-a-web") == ["10.8.0.1"], 30)
        eventually(lambda: not world.slices("team-a-web", selector=THEIRS), 30)
    api.post(SLICES, old)
    purge(admin, OWNER)

    assert "10.8.0.1" in plan.stdout, plan.output
    assert world.slices("team-a-web") == []
    assert [slice_["metadata"]["name"] for slice_ in world.slices("team-a-web", selector=THEIRS)] == ["team-a-web"]


@contextmanager
def installed(folder: Path, server: ApiServer, given: Object) -> Iterator[None]:
    """Install the chart with these values, and run the hub as its Pod would, held to the admission policy."""
    helm = Helm(folder, server)
    helm.install(given)
    policy_in_force(server.api, server.api_with(server.service_account_token(NAMESPACE, FULLNAME)))
    with pods(server, helm.manifests(), folder, 1):
        yield


def purge(kubeconfig: Path, owner: str) -> None:
    """Remove the slices of an owner, as the pages say."""
    done = CliRunner().invoke(cli, ["purge", "--owner", owner, "--yes", "--kubeconfig", str(kubeconfig)])
    assert done.exit_code == 0, done.output
