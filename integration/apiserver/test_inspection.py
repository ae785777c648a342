"""`/ip-manager` of real processes: by curl, and in a real Chromium that looks while pods come and go."""

import json
import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from playwright.async_api import Error, Page, expect

from integration.apiserver.inspected_world import NODE_PAGE, CurlError, InspectedWorld, curl
from integration.apiserver.refusal_log import missing_rights
from integration.apiserver.runtime import addresses_of
from integration.browser import PATIENCE, Browser, Visit, open_browser
from integration.cluster.control_plane import ControlPlane
from integration.patience import wait_until

pytestmark = pytest.mark.apiserver

POOLS = {
    "default": (4, {"ipv4": "10.86.0.0/24", "ipv6": "fd86::/120"}),
    "lab": (3, {"ipv4": "10.87.0.0/26"}),
    "fleet": (1, {"ipv4": "10.88.0.0/29"}),
    "old": (1, {"ipv4": "10.89.0.0/29"}),
}
PAGE_BYTES = 100_000

expect.set_options(timeout=PATIENCE)


@pytest.fixture(scope="module")
def world(plane: ControlPlane) -> Iterator[InspectedWorld]:
    with InspectedWorld.up(plane, POOLS) as running:
        yield running
        for service in (running.coild, running.controller):
            assert missing_rights(service.process.log) == []


@pytest.fixture(autouse=True)
def clean(world: InspectedWorld) -> Iterator[None]:
    """Every test leaves the node without pods, and coild running."""
    yield
    world.coild.ensure_running()
    for pod in list(world.pods):
        world.delete(*pod.split("/", 1))


@pytest.fixture
async def browser(world: InspectedWorld, tmp_path: Path) -> AsyncIterator[Browser]:
    """On the node; a name that a stranger made to point to it resolves as the stranger wants."""
    flags = ["--host-resolver-rules=MAP stranger.test 127.0.0.1"]
    async with open_browser(tmp_path, entrance=world.node.namespaces.entrance, flags=flags) as running:
        yield running


@pytest.fixture
async def outside(tmp_path: Path) -> AsyncIterator[Browser]:
    """Beside the control plane, where the controller runs."""
    async with open_browser(tmp_path, entrance=[]) as running:
        yield running


def cell(page: Page, address: str) -> str:
    """A selector of the cell of an address."""
    return f'.grid i[data-tip^="{address}\\a"]'


async def goes_on_living(visit: Visit) -> None:
    """Wait for the next two times that the page has looked again by itself."""
    clock = visit.page.locator(".live time")
    for _ in range(2):
        before = await clock.get_attribute("datetime")
        await expect(clock).not_to_have_attribute("datetime", before or "")


@pytest.mark.parametrize("port", [6666, 9383])
def test_curl_gets_json(world: InspectedWorld, port: int) -> None:
    [ipv4, ipv6] = addresses_of(world.add("apps", "web"))
    document = json.loads(world.curl(f"http://localhost:{port}/ip-manager"))
    assert document["node"] == world.node.name
    pool = next(pool for pool in document["pools"] if pool["name"] == "default")
    (used,) = [used for block in pool["blocks"] for used in block["used"] if used["state"] == "allocated"]
    assert (used["ipv4"], used["ipv6"], used["namespace"], used["pod"]) == (ipv4, ipv6, "apps", "web")
    assert used["container"] == world.pods["apps/web"].container_id
    assert (used["interface"], used["since"][:2]) == ("eth0", "20")
    assert pool["addresses"]["allocated"] == document["addresses"]["allocated"] == 1
    assert pool["addresses"]["total"] == sum(
        pool["addresses"][state] for state in ("allocated", "cooling", "free", "withheld")
    )


def test_it_is_on_localhost_only(world: InspectedWorld) -> None:
    address = f"http://{world.node.ipv4}"
    for port in (6666, 9383):
        with pytest.raises(CurlError, match=r"[Cc]onnect"):
            world.curl(f"{address}:{port}/ip-manager")


def test_methods_and_strangers(world: InspectedWorld) -> None:
    status = ("--output", "/dev/null", "--write-out", "%{http_code}")
    assert world.curl(*status, "--request", "POST", NODE_PAGE) == "405"
    assert world.curl(*status, "--head", NODE_PAGE) == "200"
    assert world.curl(*status, "http://localhost:9383/") == "302"
    assert world.curl(*status, "--header", "Host: stranger.test", NODE_PAGE) == "421"


@pytest.mark.slow
async def test_a_cell_fills_while_one_watches(world: InspectedWorld, browser: Browser) -> None:
    # A block that is new is drawn as it is; in one that is there, a cell changes.
    world.add("apps", "first")
    world.delete("apps", "first")
    visit = await browser.open("http://localhost:9383/")
    page = visit.page
    await expect(page.locator("h1")).to_have_text(world.node.name)
    await page.evaluate("window.neverReloaded = true")
    await page.evaluate(_NOTE_CHANGES)

    [ipv4, ipv6] = addresses_of(world.add("apps", "web"))
    await page.wait_for_function(_CHANGED_TO, arg=[ipv4, "allocated"], timeout=PATIENCE)
    tip = await page.locator(cell(page, ipv4)).get_attribute("data-tip")
    assert tip is not None
    assert tip.split("\n")[:3] == [ipv4, ipv6, "apps/web"]
    row = page.locator("#addresses tbody tr", has_text="web")
    await expect(row).to_contain_text(f"{ipv4}{ipv6}")
    await expect(row).to_contain_text(world.pods["apps/web"].container_id[:12])
    await expect(page.locator(".tile", has_text="allocated").locator("dd")).to_have_text("1")

    world.delete("apps", "web")
    await page.wait_for_function(_CHANGED_TO, arg=[ipv4, "cooling"], timeout=PATIENCE)
    await expect(page.locator(cell(page, ipv4))).to_have_class(re.compile(r"^cooling\b"))
    await expect(page.locator("#addresses tbody tr", has_text="web")).to_have_count(0)
    assert await page.evaluate("window.neverReloaded")
    assert visit.errors == []


@pytest.mark.slow
async def test_pointing_at_a_cell_shows_who_it_is(world: InspectedWorld, browser: Browser) -> None:
    [address] = addresses_of(world.add("lab", "probe"))
    page = (await browser.open(NODE_PAGE)).page
    assert await page.locator(cell(page, address)).evaluate(_TIP) == "none"
    await page.hover(cell(page, address))
    assert f"{address}\nlab/probe\nallocated since 20" in await page.locator(cell(page, address)).evaluate(_TIP)


_NOTE_CHANGES = """
window.changes = [];
new MutationObserver(() => {
  for (const cell of document.querySelectorAll(".grid i.changed")) {
    window.changes.push(cell.dataset.find + " " + cell.classList[0]);
  }
}).observe(document.querySelector("main"), {childList: true, subtree: true});
"""
"""Note each cell that is marked as changed: the page takes the mark away when it looks again, which may be at once."""
_CHANGED_TO = "([address, state]) => window.changes.includes(address + ' ' + state)"
_TIP = r"cell => getComputedStyle(cell, '::after').content.replaceAll('\\a ', '\n').replaceAll('\\n', '\n')"


@pytest.mark.slow
async def test_a_search_by_keyboard(world: InspectedWorld, browser: Browser) -> None:
    addresses = {name: addresses_of(world.add("apps", name))[0] for name in ("web-1", "web-2", "db-1")}
    visit = await browser.open(NODE_PAGE)
    page = visit.page
    await page.keyboard.press("/")
    await expect(page.locator("input")).to_be_focused()
    await page.keyboard.type("WEB")
    await expect(page.locator("output")).to_have_text("2 found")
    await expect(page.locator(".grid i.hit")).to_have_count(2)
    await expect(page.locator("#addresses tbody tr")).to_have_count(2)
    await expect(page.locator(cell(page, addresses["db-1"]))).not_to_have_class("allocated hit")
    await expect(page).to_have_url(f"{NODE_PAGE}?q=WEB")

    await goes_on_living(visit)
    await expect(page.locator("input")).to_be_focused()
    await expect(page.locator("input")).to_have_value("WEB")
    await expect(page.locator(".grid i.hit")).to_have_count(2)

    await page.keyboard.press("Escape")
    await expect(page.locator(".grid i.hit")).to_have_count(0)
    await expect(page.locator("#addresses tbody tr")).not_to_have_count(2)
    await page.click(cell(page, addresses["db-1"]))
    await expect(page.locator("input")).to_have_value(addresses["db-1"])
    await expect(page.locator("#addresses tbody tr")).to_have_count(1)
    await expect(page.locator("#addresses tbody tr")).to_contain_text("db-1")
    assert visit.errors == []


async def test_a_search_needs_no_script(world: InspectedWorld, browser: Browser) -> None:
    world.add("apps", "web-1")
    page = (await browser.open(f"{NODE_PAGE}?q=apps/web-1")).page
    await expect(page.locator("input")).to_have_value("apps/web-1")
    await expect(page.locator(".grid i.hit")).to_have_count(1)
    assert await page.locator("form").get_attribute("action") == "/ip-manager"


@pytest.mark.slow
async def test_looking_again_keeps_the_place(world: InspectedWorld, browser: Browser) -> None:
    visit = await browser.open(NODE_PAGE)
    page = visit.page
    await page.set_viewport_size({"width": 800, "height": 300})
    await page.evaluate("scrollTo(0, 150)")
    for number in range(3):
        world.add("lab", f"pod-{number}")
    await expect(page.locator("#addresses tbody tr", has_text="pod-2")).to_have_count(1)
    assert await page.evaluate("scrollY") == 150


async def test_it_asks_nobody_but_its_own_server(world: InspectedWorld, browser: Browser) -> None:
    visit = await browser.open("http://localhost:9383/", scheme="dark")
    await goes_on_living(visit)
    assert len(visit.requests) >= 4
    assert {url.partition("?")[0] for url in visit.requests} == {"http://localhost:9383/", NODE_PAGE}
    assert visit.errors == []
    size = len(world.curl("--header", "Accept: text/html", NODE_PAGE))
    assert size < PAGE_BYTES


@pytest.mark.slow
async def test_it_is_stale_without_coild_and_lives_again(world: InspectedWorld, browser: Browser) -> None:
    world.add("apps", "web")
    page = (await browser.open(NODE_PAGE)).page
    await expect(page.locator(".live b")).to_have_text("live")
    world.coild.kill()
    await expect(page.locator(".live b")).to_have_text("stale")
    await expect(page.locator("#addresses tbody tr", has_text="web")).to_have_count(1)
    world.coild.start()
    world.coild.wait_ready()
    await expect(page.locator(".live b")).to_have_text("live")
    # The name outlived the process.
    await expect(page.locator("#addresses tbody tr", has_text="apps")).to_contain_text("web")


async def test_names_are_text(world: InspectedWorld, browser: Browser) -> None:
    name = "<script>alert(1)</script><b>"
    world.add("apps", name)
    visit = await browser.open(NODE_PAGE)
    page = visit.page
    await expect(page.locator("#addresses tbody td", has_text="<script>")).to_have_text(name)
    await goes_on_living(visit)
    assert await page.locator("main script, main b").count() == 0
    assert await page.title() == f"{world.node.name} · Coil"
    assert visit.errors == []


async def test_what_got_in_all_the_same_could_not_run(world: InspectedWorld, browser: Browser) -> None:
    visit = await browser.open(NODE_PAGE)
    await visit.page.evaluate(
        """async () => {
            const script = document.createElement("script");
            script.text = "window.ran = true";
            document.body.append(script);
            document.body.insertAdjacentHTML("beforeend", "<i style='color: red' onclick='window.ran = true'>x</i>");
            document.body.lastChild.click();
            await fetch("http://localhost:6666/").catch(() => {});
        }"""
    )
    assert await visit.page.evaluate("window.ran === undefined")
    assert len([error for error in visit.errors if "Content Security Policy" in error]) >= 3


async def test_a_strangers_name_for_this_machine_is_turned_away(world: InspectedWorld, browser: Browser) -> None:
    page = (await browser.open("http://stranger.test:9383/ip-manager")).page
    assert world.node.name not in await page.content()
    assert "names of its own machine" in await page.content()


async def test_a_browser_refuses_the_port_for_curl(world: InspectedWorld, browser: Browser) -> None:
    with pytest.raises(Error, match="ERR_UNSAFE_PORT"):
        await browser.open("http://localhost:6666/ip-manager")


async def test_the_cluster_shows_blocks_as_nodes_get_them(world: InspectedWorld, outside: Browser) -> None:
    world.add("fleet", "first")
    visit = await outside.open(world.cluster_page)
    page = visit.page
    await expect(page.locator("h1")).to_have_text("Address pools")
    await expect(page.locator("header")).to_contain_text("the leader")
    block = page.locator('#grid-fleet .grid i[data-tip^="fleet-1"]')
    await expect(block).to_have_class("free")
    # More than a block of that pool can hold.
    for name in ("second", "third"):
        world.add("fleet", name)
    await expect(block).to_have_class("used changed")
    assert f"used, {world.node.name}" in (await block.get_attribute("data-tip") or "")
    await expect(page.locator("#pool-fleet .big")).to_contain_text("2 of 4 blocks")
    row = page.locator("#nodes tbody tr", has_text=world.node.name)
    await expect(row).to_contain_text("fleet 2")
    spark = page.locator("#pool-fleet .spark")
    await expect(spark).to_have_attribute("aria-label", re.compile(r"over the last 1 min: from \d to 2, now 2"))

    await row.locator("a").click()
    await expect(page.locator("input")).to_have_value(world.node.name)
    await expect(page.locator("#grid-fleet .grid i.hit")).to_have_count(2)
    assert visit.errors == []
    assert {url.partition("?")[0] for url in visit.requests} == {world.cluster_page}


async def test_the_cluster_says_why_a_pool_gives_no_blocks(world: InspectedWorld, outside: Browser) -> None:
    world.add("old", "last")
    page = (await outside.open(world.cluster_page)).page
    await expect(page.locator("#pool-old .chip.good")).to_have_text("gives blocks")
    world.node.plane.kubectl("delete", "addresspool", "old", "--wait=false")
    await expect(page.locator("#pool-old .wrong")).to_contain_text("is being deleted")
    await expect(page.locator("#pool-old .chip.good")).to_have_count(0)


def test_the_clusters_json(world: InspectedWorld) -> None:
    world.add("apps", "web")

    def is_seen() -> bool:
        document = json.loads(curl([], world.cluster_page))
        pools = {pool["name"]: pool for pool in document["pools"]}
        placed = pools["default"]["placed"]
        return bool(document["leads"] and placed and placed[0]["node"] == world.node.name)

    wait_until(is_seen, what="the block in the controller's picture")
