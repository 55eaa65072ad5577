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
import yaml
from playwright.sync_api import BrowserContext, ConsoleMessage, Page, Route, ViewportSize, expect

from tests.integration.test_allocations import Scene, scene
from tests.support.apiserver.pki import Authority
from tests.support.apiserver.server import ApiServer
from tests.support.brightbox import BrightboxScene, BrightboxThread
from tests.support.browser import DESKTOP, PHONE, chromium
from tests.support.hub import HUB_RULES, REVIEW_RULES, ROOT, HubProcess, RunningHub, World, add_node
from tests.support.ports import free_port
from tests.support.waiting import eventually

__all__ = ["scene"]

SCREENSHOTS = ROOT / "docs" / "images"


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
    """An empty tab. The test fails if the page reports an error, except for an answer that a test refuses."""
    tab = browser.new_page()
    wrong: list[str] = []
    tab.on("pageerror", lambda error: wrong.append(str(error)))
    tab.on("console", lambda said: wrong.append(said.text) if is_error(said) else None)
    yield tab
    tab.close()
    assert wrong == []


def is_error(said: ConsoleMessage) -> bool:
    """Whether the console reports an error of the page, such as a violation of its Content-Security-Policy."""
    return "Content Security Policy" in said.text or (
        said.type == "error" and not said.text.startswith("Failed to load resource")
    )


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


LEGACY = [{"name": f"rack-{n}", "private_ip": f"10.9.0.{n}", "ready": n != 2, "worker": True} for n in (1, 2)]
SEVERAL = {
    "checkout": ("payments-eu", "payments-us", "edge-asia"),
    "payments": ("payments-eu", "payments-us"),
    "reports": ("legacy-dc",),
    "search": ("edge-asia", "staging"),
}
"""Service -> its clusters. ``staging`` does not answer."""


@pytest.fixture
def several(tmp_path: Path, hub_cluster: ApiServer, remote_clusters: tuple[ApiServer, ...]) -> World:
    """Three clusters that answer, one that does not, one that is an inventory, and four Services."""
    names = ("payments-eu", "payments-us", "edge-asia")
    world = World(tmp_path, hub_cluster, dict(zip(names, remote_clusters, strict=True))).prepare()
    for number, name in enumerate(names, 1):
        for last in range(1, 9 - number):
            add_node(world.remotes[name], f"{name}-{last}", f"10.0.{number}.{last}")
    kubeconfig = yaml.safe_load((tmp_path / "edge-asia").read_text())
    kubeconfig["clusters"][0]["cluster"]["server"] = "https://127.0.0.1:9"
    (tmp_path / "staging").write_text(yaml.safe_dump(kubeconfig))
    (tmp_path / "legacy.json").write_text(json.dumps(LEGACY))
    inventory = {"name": "inventory", "config": {"file": "legacy.json", "interval": "1s"}}
    legacy = world.cluster("legacy-dc", kubeconfig=None, provider=inventory)
    for service in SEVERAL:
        world.add_service(service)
    clusters = [*map(world.cluster, names), legacy, world.cluster("staging")]
    world.write(clusters, [world.service(name, *sources) for name, sources in SEVERAL.items()])
    return world


def fits(page: Page) -> bool:
    """Whether the page needs no horizontal scrolling."""
    return bool(page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"))


def test_a_withheld_removal_is_shown_with_its_command_everywhere(several: World, page: Page, tmp_path: Path) -> None:
    """The overview, the Service's page and a phone show the command without horizontal scrolling.

    The page works in dark mode, and loads nothing from other hosts. SCREENSHOTS=1 stores images, of two minutes.
    """
    shooting = bool(os.environ.get("SCREENSHOTS"))
    folder = SCREENSHOTS if shooting else tmp_path
    pause = 25_000 if shooting else 1_000
    us, eu = several.remotes["payments-us"], several.remotes["payments-eu"]
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    with HubProcess(several, "--listen", "127.0.0.1:0") as hub:
        url = url_of(hub)
        page.goto(url)
        expect(page.locator('[id="service:edge/payments"]')).to_contain_text("13 of 13 ready", timeout=20_000)
        page.wait_for_timeout(pause)
        eu.api.delete("/api/v1/nodes/payments-eu-7")
        page.wait_for_timeout(pause)
        add_node(us, "payments-us-7", "10.0.2.7")
        page.wait_for_timeout(pause)
        for last in range(1, 6):
            us.api.delete(f"/api/v1/nodes/payments-us-{last}")
        expect(page.locator("#attention code")).to_have_count(2, timeout=20_000)
        page.wait_for_timeout(pause)
        expect(page.locator("#attention code").first).to_contain_text("hub approve edge/")
        page.goto(url)
        page.screenshot(path=folder / "status-overview.png", full_page=True)
        page.goto(f"{url}/services/edge/payments")
        expect(page.locator("p.warn code")).to_contain_text("hub approve edge/payments")
        expect(page.locator(".marks")).to_contain_text("a removal of payments-us is withheld")
        assert fits(page)
        page.locator("summary").first.click()
        page.screenshot(path=folder / "status-service.png", full_page=True)
        page.emulate_media(color_scheme="dark")
        page.screenshot(path=tmp_path / "status-service-dark.png", full_page=True)
        page.goto(url)
        page.screenshot(path=tmp_path / "status-dark.png", full_page=True)
        page.set_viewport_size(PHONE)
        page.goto(f"{url}/services/edge/payments")
        assert fits(page)
        page.screenshot(path=tmp_path / "status-service-phone.png", full_page=True)
        page.goto(url)
        assert fits(page)
        page.screenshot(path=tmp_path / "status-phone.png", full_page=True)
        expect(page.locator("#attention code").first).to_be_visible()
        dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert dark == "rgb(18, 22, 27)"
        page.emulate_media(color_scheme="light")
        page.set_viewport_size(DESKTOP)
    assert asked
    assert [address for address in asked if not address.startswith(f"{url}/")] == []


def test_map_follows_nodes_and_its_links_lead_to_pages(several: World, page: Page) -> None:
    """The boxes and lines of the map have the right counts after nodes come and go; every box leads to a page."""
    with HubProcess(several, "--listen", "127.0.0.1:0") as hub:
        url = url_of(hub)
        page.goto(url)
        boxes = page.locator("#map li a")
        expect(boxes).to_have_text([*several_clusters(), *(f"edge/{name}" for name in SEVERAL)])
        lines = page.locator("#lines li")
        page.locator("#lines summary").click()
        service = page.locator("#map li", has=page.get_by_text("edge/search", exact=True))
        expect(service).to_contain_text("5/5 ready", timeout=20_000)
        expect(lines.filter(has_text="edge-asia → edge/search")).to_have_text("edge-asia → edge/search: 5/5 ready")
        expect(page.locator("#lines li").filter(has_text="staging →")).to_contain_text("source unknown")

        several.remotes["edge-asia"].api.delete("/api/v1/nodes/edge-asia-1")
        expect(service).to_contain_text("4/4 ready", timeout=10_000)
        expect(lines.filter(has_text="edge-asia → edge/search")).to_have_text("edge-asia → edge/search: 4/4 ready")
        for last in (7, 8):
            add_node(several.remotes["edge-asia"], f"edge-asia-{last}", f"10.0.3.{last}")
        expect(service).to_contain_text("6/6 ready", timeout=10_000)
        assert page.locator("#lines").get_attribute("open") is not None, "the opened list was closed"

        links = [str(link.get_attribute("href")) for link in boxes.all()]
        for link, name in zip(links, boxes.all_inner_texts(), strict=True):
            page.goto(url + link)
            expect(page.locator("h1")).to_have_text(name)
            assert fits(page)


def several_clusters() -> list[str]:
    """The clusters of the registry, in its order."""
    return ["payments-eu", "payments-us", "edge-asia", "legacy-dc", "staging"]


@pytest.mark.parametrize("size", [DESKTOP, PHONE])
@pytest.mark.parametrize("path", ["", "services/edge/payments", "clusters/staging"])
def test_page_that_goes_live_moves_nothing(several: World, page: Page, path: str, size: ViewportSize) -> None:
    """From the first paint until the page is live, nothing on it moves (no layout shift)."""
    script = """() => new Promise((done) => {
      const observer = new PerformanceObserver(() => {});
      observer.observe({ type: "layout-shift", buffered: true });
      setTimeout(() => done(observer.takeRecords().reduce((sum, shift) => sum + shift.value, 0)), 200);
    })"""
    with HubProcess(several, "--listen", "127.0.0.1:0") as hub:
        url = url_of(hub)
        several.awaits(*(f"10.0.{n}.{last}" for n in (1, 2) for last in range(1, 9 - n)), timeout=20)
        page.set_viewport_size(size)
        page.goto(url)
        expect(page.locator('[id="cluster:staging"]')).to_contain_text("Unreachable", timeout=20_000)
        expect(page.locator('[id="service:edge/reports"]')).to_contain_text("1 of 2 ready", timeout=20_000)
        page.goto(f"{url}/{path}")
        expect(page.locator("#live")).to_contain_text("live, as of")
        assert page.evaluate(script) == 0
        page.set_viewport_size(DESKTOP)


def test_lines_of_the_map_meet_their_boxes(several: World, page: Page) -> None:
    """On a desktop and on a phone, each line begins and ends within the height of its boxes."""
    script = """() => {
      const middle = (box) => { const { top, height } = box.getBoundingClientRect(); return top + height / 2; };
      const columns = [...document.querySelectorAll("#map ul")].map((list) => [...list.children].map(middle));
      return [...document.querySelectorAll(".lines path")].map((path) => {
        const point = (at) => path.getPointAtLength(at).matrixTransform(path.getScreenCTM()).y;
        const ends = [point(0), point(path.getTotalLength())];
        return ends.map((y, side) => Math.min(...columns[side].map((at) => Math.abs(at - y))));
      });
    }"""
    with HubProcess(several, "--listen", "127.0.0.1:0") as hub:
        page.goto(url_of(hub))
        expect(page.locator('[id="service:edge/search"]')).to_contain_text("5 of 5 ready", timeout=20_000)
        for size in (DESKTOP, PHONE):
            page.set_viewport_size(size)
            distances = page.evaluate(script)
            assert len(distances) == sum(map(len, SEVERAL.values()))
            assert max(max(ends) for ends in distances) < 20
        page.set_viewport_size(DESKTOP)


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
        page.locator("#problems").check()
        expect(rows).to_have_count(1)
        expect(rows.first).to_contain_text("edge/nosuch")
        expect(page).to_have_url(re.compile(r"/\?problems=1$"))
        page.locator("#problems").uncheck()
        page.locator("#q").fill("orders")
        expect(rows).to_have_count(1)
        expect(page.locator("#map li a")).to_have_text(["us", "edge/orders"])
        world.remotes["us"].api.delete("/api/v1/nodes/us-3")
        expect(rows.first).to_contain_text("2 of 2 ready", timeout=10_000)
        expect(page.locator("#map")).to_contain_text("2/2 ready", timeout=10_000)
        expect(rows).to_have_count(1)
        expect(page.locator("#q")).to_be_focused()

        page.reload()
        expect(page).to_have_url(re.compile(r"/\?q=orders$"))
        expect(page.locator("#q")).to_have_value("orders")
        expect(rows).to_have_count(1)
        expect(page.locator("#map li a")).to_have_text(["us", "edge/orders"])


def test_search_works_without_javascript(world: World, page: Page) -> None:
    """Without the script, the button sends the search, which the Content-Security-Policy allows."""
    prepare(world)
    page.route("**/page.js", lambda route: route.abort())
    with HubProcess(world, "--listen", "127.0.0.1:0") as hub:
        world.awaits(*(f"10.0.{number}.{last}" for number in (1, 2) for last in (1, 2, 3)))
        page.goto(url_of(hub))
        page.locator("#q").fill("eu")
        page.get_by_role("button", name="Search").click()
        expect(page).to_have_url(re.compile(r"/\?q=eu$"))
        expect(page.locator("#clusters tr:visible")).to_have_count(1)
        expect(page.locator("#services tr:visible")).to_have_count(0)


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


def test_reserved_addresses_follow_on_the_open_page(scene: Scene, page: Page) -> None:
    """A pool without problems is folded, a search opens it, and a move is seen without reloading the page."""
    with RunningHub(scene.world, port=(port := free_port())):
        first, _ = scene.awaits()
        page.goto(f"http://127.0.0.1:{port}/")
        part = page.locator("#allocations")
        expect(part.locator("summary")).to_contain_text("2 of 2 attached")
        row = part.locator("tr", has_text=first)
        expect(row).to_be_hidden()
        page.locator("#q").fill(first)
        expect(row).to_be_visible()
        expect(part.locator("tbody tr:visible")).to_have_count(1)
        page.locator("#q").fill("")
        loaded = page.evaluate("performance.timeOrigin")

        (free,) = {"n1", "n2", "n3"} - set(scene.holders())
        scene.cordon(first)

        expect(part.locator("tr", has_text=free)).to_contain_text("attached", timeout=60_000)
        expect(row).to_have_count(0)
        expect(part.locator("summary")).to_contain_text("2 of 2 attached")
        assert page.evaluate("performance.timeOrigin") == loaded, "the page was loaded anew"


def test_clouds_follow_on_the_open_page(
    hub_cluster: ApiServer, remote_clusters: tuple[ApiServer, ...], tmp_path: Path, page: Page
) -> None:
    """Duty, nodes and balancers of a cluster's cloud are seen without reloading; a Service that fails comes first."""
    with BrightboxThread() as cloud:
        cluster = BrightboxScene.create(hub_cluster, remote_clusters[0], tmp_path, cloud)
        cluster.write(loadBalancers={"settle": "1s"})
        cluster.add_node()
        cluster.add_service()
        with RunningHub(cluster.world, port=(port := free_port()), **cluster.options):
            page.goto(f"http://127.0.0.1:{port}/")
            part = page.locator("#clouds")
            words = "duty held, 1 of 1 nodes and 1 of 1 balancers ready"
            expect(part.locator("summary")).to_contain_text(words, timeout=60_000)
            page.reload()  # what opened because a Node was not initialised yet stays open
            expect(part.locator("summary")).to_contain_text("eu on brightbox")
            row = part.locator("tr", has_text="edge/web")
            expect(row).to_be_hidden()
            part.locator("summary").click()
            expect(row).to_contain_text(cluster.hostnames()[0])
            expect(row.locator("time")).to_have_count(1)
            loaded = page.evaluate("performance.timeOrigin")

            cluster.add_service("shop", sessionAffinity="ClientIP")

            failing = part.locator("tr", has_text="edge/shop")
            expect(failing).to_contain_text("failing", timeout=30_000)
            expect(failing).to_contain_text("sessionAffinity must be None")
            expect(part.locator("tbody tr").first).to_contain_text("edge/shop")
            expect(page.locator("#attention")).to_contain_text("edge/shop")
            expect(row).to_be_visible()
            assert page.evaluate("performance.timeOrigin") == loaded, "the page was loaded anew"
            page.set_viewport_size(PHONE)
            wide = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
            assert wide <= 0, "the phone scrolls sideways"
            page.set_viewport_size(DESKTOP)


def status(world: World, url: str, token: str) -> subprocess.CompletedProcess[str]:
    """Run ``hub status --server``."""
    argv = [sys.executable, "-m", "hub", "status", "--server", url, "--server-ca-file", str(world.folder / "ca.crt")]
    argv += ["--server-token-file", str(world.folder / token)] if token else []
    return subprocess.run(argv, capture_output=True, text=True, cwd=ROOT, timeout=60, check=False)
