"""The status page and its API in a real ``hub run``, used by a browser and the command line."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import BrowserContext, Page, Route, expect

from tests.support.apiserver.pki import Authority
from tests.support.apiserver.server import ApiServer
from tests.support.browser import DESKTOP, PHONE, chromium
from tests.support.hub import HUB_RULES, ROOT, HubProcess, World, add_node
from tests.support.waiting import eventually

SCREENSHOTS = ROOT / "docs" / "images"
REVIEW_RULES = (
    {"apiGroups": ["authentication.k8s.io"], "resources": ["tokenreviews"], "verbs": ["create"]},
    {"apiGroups": ["authorization.k8s.io"], "resources": ["subjectaccessreviews"], "verbs": ["create"]},
)
"""The rules that the hub needs to authenticate and authorize callers."""


@pytest.fixture
def world(tmp_path: Path, hub_cluster: ApiServer, remote_clusters: tuple[ApiServer, ...]) -> World:
    """Two clusters and a Service."""
    return World(tmp_path, hub_cluster, {"eu": remote_clusters[0], "us": remote_clusters[1]}).prepare()


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrowserContext]:
    """Chromium."""
    with chromium(tmp_path_factory.mktemp("chromium")) as context:
        yield context


@pytest.fixture
def page(browser: BrowserContext) -> Iterator[Page]:
    """An empty tab. The test fails if the page reports an error."""
    tab = browser.new_page()
    wrong: list[str] = []
    tab.on("pageerror", lambda error: wrong.append(str(error)))
    tab.on("console", lambda said: wrong.append(said.text) if "Content Security Policy" in said.text else None)
    yield tab
    tab.close()
    assert wrong == []


def url_of(hub: HubProcess) -> str:
    """The URL of the page, from the log."""

    def said() -> str:
        found = re.search(r"status page, API and metrics on (\S+)", hub.log.read_text())
        assert found is not None, hub.log.read_text()
        return found[1]

    return eventually(said, 20)


def fail(server: ApiServer, name: str) -> None:
    """Set a node's Ready condition to False."""
    condition = {"type": "Ready", "status": "False", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    server.api.patch(f"/api/v1/nodes/{name}/status", {"status": {"conditions": [condition]}}, STRATEGIC)


STRATEGIC = "application/strategic-merge-patch+json"


def prepare(world: World) -> None:
    """Two clusters with three nodes each, one of which has a hostile message."""
    world.add_service()
    for region, number in (("eu", 1), ("us", 2)):
        for last in (1, 2, 3):
            add_node(world.remotes[region], f"{region}-{last}", f"10.0.{number}.{last}")
    world.write(services=[world.service("payments", "eu", "us")])


def test_a_node_that_fails_is_seen_on_the_open_page(world: World, page: Page) -> None:
    """The row of the Service and the address's decisions change within seconds, without reloading."""
    prepare(world)
    with HubProcess(world, "--listen", "127.0.0.1:0") as hub:
        url = url_of(hub)
        world.awaits(*(f"10.0.{number}.{last}" for number in (1, 2) for last in (1, 2, 3)))
        page.goto(url)
        row = page.locator('[id="service:edge/payments"]')
        expect(row).to_contain_text("6 of 6 ready")
        expect(page.locator("#live")).to_contain_text("live")
        expect(page.locator("#replica")).to_contain_text("leads")
        loaded = page.evaluate("performance.timeOrigin")

        world.remotes["eu"].api.delete("/api/v1/nodes/eu-2")

        expect(row).to_contain_text("5 of 5 ready", timeout=10_000)
        assert page.evaluate("performance.timeOrigin") == loaded, "the page was loaded anew"

        page.locator("a", has_text="edge/payments").first.click()
        address = page.locator('[id="address:10.0.1.3"]')
        address.locator("summary").click()
        expect(address).to_contain_text("eu/eu-3")
        expect(address).to_contain_text("published")
        expect(page.locator("#live")).to_contain_text("live")
        fail(world.remotes["us"], "us-1")
        expect(page.locator('[id="address:10.0.2.1"]')).to_have_count(0, timeout=15_000)
        expect(address).to_have_attribute("open", "")


def test_a_withheld_removal_is_shown_with_its_command_everywhere(world: World, page: Page, tmp_path: Path) -> None:
    """The overview, the Service's page and a phone show the command without horizontal scrolling.

    The page works in dark mode, and loads nothing from other hosts. SCREENSHOTS=1 stores images.
    """
    folder = SCREENSHOTS if os.environ.get("SCREENSHOTS") else tmp_path
    prepare(world)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    with HubProcess(world, "--listen", "127.0.0.1:0") as hub:
        url = url_of(hub)
        world.awaits(*(f"10.0.{number}.{last}" for number in (1, 2) for last in (1, 2, 3)))
        for last in (1, 2):
            world.remotes["us"].api.delete(f"/api/v1/nodes/us-{last}")
        page.goto(url)
        expect(page.locator("#attention code")).to_contain_text("hub approve edge/payments")
        page.screenshot(path=folder / "status-overview.png", full_page=True)
        page.goto(f"{url}/services/edge/payments")
        expect(page.locator("p.warn code")).to_contain_text("hub approve edge/payments")
        page.locator("summary").first.click()
        page.screenshot(path=folder / "status-service.png", full_page=True)
        page.set_viewport_size(PHONE)
        page.emulate_media(color_scheme="dark")
        page.goto(url)
        expect(page.locator("#attention code")).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        page.screenshot(path=folder / "status-phone.png", full_page=True)
        page.set_viewport_size(DESKTOP)
    assert asked
    assert [address for address in asked if not address.startswith(f"{url}/")] == []


def test_page_reconnects_after_an_answer_that_is_no_stream(world: World, page: Page) -> None:
    """After an answer that is no stream, the browser does not reconnect, so the page does."""
    prepare(world)
    page.add_init_script("window.real = setTimeout; window.held = []; window.setTimeout = work => held.push(work)")
    turned: list[str] = []

    def turn_away(route: Route) -> None:
        turned.append(route.request.url)
        route.fulfill(status=503, headers={"Retry-After": "30"}, body="too many open pages")

    page.route("**/events", turn_away, times=1)
    with HubProcess(world, "--listen", "127.0.0.1:0") as hub:
        url = url_of(hub)
        world.awaits(*(f"10.0.{number}.{last}" for number in (1, 2) for last in (1, 2, 3)))
        page.goto(url)
        expect(page.locator("#live")).to_contain_text("connection lost")
        page.evaluate("window.setTimeout = real; held.forEach(work => work())")
        expect(page.locator("#live")).to_contain_text("live, as of", timeout=10_000)
        world.remotes["eu"].api.delete("/api/v1/nodes/eu-2")
        expect(page.locator('[id="service:edge/payments"]')).to_contain_text("5 of 5 ready", timeout=10_000)
    assert turned == [f"{url}/events"]


@pytest.mark.parametrize(("path", "name"), [("services/edge/nosuch", "edge/nosuch"), ("clusters/spare", "spare")])
def test_page_of_a_removed_object_is_marked(world: World, page: Page, path: str, name: str) -> None:
    """The page of an object that is gone is marked as such until it exists again."""
    prepare(world)
    clusters = [world.cluster("eu"), world.cluster("us")]
    services = [world.service("payments", "eu", "us")]
    spare = world.cluster("spare", kubeconfig={"path": "eu"}, state="frozen")
    world.write([*clusters, spare], [*services, world.service("nosuch", "us")])
    with HubProcess(world, "--listen", "127.0.0.1:0") as hub:
        url = url_of(hub)
        world.awaits(*(f"10.0.{number}.{last}" for number in (1, 2) for last in (1, 2, 3)))
        page.goto(f"{url}/{path}")
        live = page.locator("#live")
        expect(live).to_contain_text("live, as of")

        world.write(clusters, services)
        expect(live).to_contain_text("deleted, showing the state of", timeout=20_000)
        world.remotes["eu"].api.delete("/api/v1/nodes/eu-2")
        world.awaits("10.0.1.1", "10.0.1.3", "10.0.2.1", "10.0.2.2", "10.0.2.3")
        page.wait_for_timeout(3_000)
        expect(live).to_contain_text("deleted, showing the state of")
        expect(page.locator("h1")).to_have_text(name)

        world.write([*clusters, spare], [*services, world.service("nosuch", "us")])
        expect(live).to_contain_text("live, as of", timeout=20_000)


@pytest.mark.parametrize("path", ["services/edge/payments", "clusters/eu"])
def test_page_fetches_its_content_after_too_many_changes(world: World, page: Page, path: str) -> None:
    """If an event does not name the changed objects, as after too many changes, the page fetches its content again."""
    prepare(world)
    change = json.dumps({"version": "x", "html": {}, "gone": [], "touched": None, "clusters": []})
    told = f"retry: 600000\nevent: change\ndata: {change}\n\n"
    page.route("**/events", lambda route: route.fulfill(content_type="text/event-stream", body=told))
    with HubProcess(world, "--listen", "127.0.0.1:0") as hub:
        url = url_of(hub)
        world.awaits(*(f"10.0.{number}.{last}" for number in (1, 2) for last in (1, 2, 3)))
        with page.expect_request(lambda request: request.resource_type == "fetch", timeout=10_000) as read:
            page.goto(f"{url}/{path}")
        assert read.value.url == f"{url}/{path}"


def test_page_filter_keeps_rows_that_need_attention(world: World, page: Page) -> None:
    """A name filter, and a box that hides rows without problems, stay in effect while rows change."""
    prepare(world)
    world.add_service("orders")
    world.write(
        services=[world.service("payments", "eu"), world.service("orders", "us"), world.service("nosuch", "us")]
    )
    with HubProcess(world, "--listen", "127.0.0.1:0") as hub:
        world.awaits("10.0.1.1", "10.0.1.2", "10.0.1.3")
        world.awaits("10.0.2.1", "10.0.2.2", "10.0.2.3", service="orders")
        page.goto(url_of(hub))
        rows = page.locator("#services tr:visible")
        expect(rows).to_have_count(3)
        page.locator("#worse").check()
        expect(rows).to_have_count(1)
        expect(rows.first).to_contain_text("edge/nosuch")
        page.locator("#worse").uncheck()
        page.locator("#filter").fill("orders")
        expect(rows).to_have_count(1)
        world.remotes["us"].api.delete("/api/v1/nodes/us-3")
        expect(rows.first).to_contain_text("2 of 2 ready", timeout=10_000)
        expect(rows).to_have_count(1)


def test_page_and_status_require_authorization(world: World) -> None:
    """The real API server's TokenReview and SubjectAccessReview apply, over TLS; hub status sends its token."""
    prepare(world)
    server = world.hub_cluster
    server.grant("hub", *HUB_RULES, *REVIEW_RULES)
    server.grant("reader", {"nonResourceURLs": ["/endpointslice-hub/api/*"], "verbs": ["get"]})
    authority = Authority("page-ca")
    made = authority.server("localhost", "127.0.0.1")
    files = {"tls.crt": made.pem, "tls.key": made.key_pem, "ca.crt": authority.pem}
    files |= {name: server.token(name) for name in ("reader", "nobody")}
    for name, text in files.items():
        (world.folder / name).write_text(text)
    tls = ("--tls-cert-file", str(world.folder / "tls.crt"), "--tls-private-key-file", str(world.folder / "tls.key"))
    with HubProcess(world, "--listen", "127.0.0.1:0", "--listen-authenticate", *tls) as hub:
        url = url_of(hub)
        assert url.startswith("https://")
        world.awaits(*(f"10.0.{number}.{last}" for number in (1, 2) for last in (1, 2, 3)))
        told = {name: status(world, url, name) for name in ("reader", "nobody", "")}
    assert told["reader"].returncode == 0, told["reader"].stderr
    assert "edge/payments   followed" in told["reader"].stdout
    assert ": leader" in told["reader"].stdout
    assert "403" in told["nobody"].stderr
    assert "nobody may not get /endpointslice-hub/api/v1/status" in told["nobody"].stderr
    assert "401" in told[""].stderr
    assert all("edge/payments" not in told[name].stdout + told[name].stderr for name in ("nobody", ""))


def status(world: World, url: str, token: str) -> subprocess.CompletedProcess[str]:
    """Run ``hub status --server``."""
    argv = [sys.executable, "-m", "hub", "status", "--server", url, "--server-ca-file", str(world.folder / "ca.crt")]
    argv += ["--server-token-file", str(world.folder / token)] if token else []
    return subprocess.run(argv, capture_output=True, text=True, cwd=ROOT, timeout=60, check=False)
