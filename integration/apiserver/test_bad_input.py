"""What nobody should have written, met by coild, its plugin and the kernel: annotations, blocks, links and routes.

Each fault is refused or told of in the log, the pods that run keep their addresses, and the next pod gets one that
nobody has. `test_bad_pool` has the faults that are the ipam-controller's to judge.
"""

import json
import secrets
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import ip_address, ip_network
from typing import Any

import pytest

from integration.apiserver.bare_node import NAME
from integration.apiserver.conftest import CoilNode
from integration.apiserver.runtime import TRY_AGAIN_LATER, CniError, addresses_of
from integration.apiserver.sandbox import PodName, Sandbox
from integration.cluster.control_plane import KubectlError
from integration.deployment import apply
from integration.kernel_state import EXPORT_TABLE, POD_TABLE
from integration.patience import wait_until

pytestmark = pytest.mark.apiserver

MakePod = Callable[[str], Sandbox]

POOL_LABEL, NODE_LABEL = "coil.cybozu.com/pool", "coil.cybozu.com/node"
OTHER_NODE = "other-node"
INVALID_ENVIRONMENT = 4
INTERNAL = 999


@dataclass(frozen=True, slots=True)
class Place:
    """A namespace with a pool of its own: 32 addresses in blocks of four."""

    coil: CoilNode
    name: str
    subnet: str

    def kubectl(self, *arguments: str) -> str:
        return self.coil.node.plane.kubectl(*arguments)

    def add(self, pod: Sandbox) -> str:
        """The address that an ADD gives, which is the one that the pod has."""
        (address,) = addresses_of(self.coil.runtime.add(pod))
        assert pod.kernel.global_addresses() == {address}
        return address

    def add_at_last(self, pod: Sandbox, *, tries: int = 8) -> str:
        """What a kubelet gets that tries again and again."""
        for _ in range(tries):
            with suppress(CniError):
                return self.add(pod)
        return self.add(pod)

    def blocks(self) -> dict[str, dict[str, Any]]:
        """All blocks with an address of this place, whatever their labels say, by name."""
        found = {}
        for block in self.coil.node.objects("addressblocks"):
            with suppress(KeyError, ValueError):
                if ip_network(block["ipv4"], strict=False).overlaps(ip_network(self.subnet)):
                    found[block["metadata"]["name"]] = block
        return found

    def block_of(self, address: str) -> str:
        """The name of the block that has the address."""
        owners = [name for name, block in self.blocks().items() if ip_address(address) in ip_network(block["ipv4"])]
        (owner,) = owners
        return owner

    def free(self) -> float:
        """How many addresses coild would give to pods without asking for another block."""
        return self.coil.node.coild_metrics()[f'coil_node_addresses{{pool="{self.name}",state="free"}}']

    def edit(self, block: str, change: dict[str, Any]) -> None:
        """`kubectl patch`, as the administrator."""
        self.kubectl("patch", "addressblock", block, "--type=merge", f"--patch={json.dumps(change)}")

    def restart_coild(self) -> None:
        self.coil.coild.crash()
        self.coil.coild.wait_ready()

    def log(self) -> list[dict[str, Any]]:
        """Everything that any life of coild has said."""
        return self.coil.coild.process.entries()

    def await_words(self, *words: str) -> None:
        """Return when coild has said a warning or an error with all these words in it."""

        def said() -> bool:
            texts = [json.dumps(line) for line in self.log() if line["level"] in ("warning", "error")]
            return any(all(word in text for word in words) for text in texts)

        wait_until(said, what=f"coild tells of {words}")


@pytest.fixture
def place(coil: CoilNode) -> Iterator[Place]:
    """Whatever a test leaves of blocks goes without ceremony: a place is used once."""
    number = secrets.randbelow(2**11)
    subnet = f"10.{90 + number // 256}.{number % 256}.0/27"
    name = f"place-{secrets.token_hex(3)}"
    coil.node.make_pool(name, {"ipv4": subnet}, bits=2)
    coil.node.make_namespace(name, pool=name)
    here = Place(coil, name, subnet)
    yield here
    for block in here.blocks():
        here.kubectl("delete", "addressblock", block, "--wait=false", "--ignore-not-found")
    here.kubectl("delete", "addresspool", name, "--wait=false")


def refusal(coil: CoilNode, pod: Sandbox) -> CniError:
    """The error of an ADD that must not succeed, and leaves nothing."""
    with pytest.raises(CniError) as failure:
        coil.runtime.add(pod)
    assert pod.kernel.link("eth0") is None
    return failure.value


# --- annotations and names


def test_a_pod_of_a_pool_that_is_missing_gets_its_address_when_the_pool_is_there(
    coil: CoilNode, make_pod: MakePod
) -> None:
    name = f"later-{secrets.token_hex(3)}"
    coil.node.make_namespace(name, pool=name)
    pod = make_pod(name)
    failure = refusal(coil, pod)
    assert failure.code == TRY_AGAIN_LATER
    assert f"there is no address pool '{name}'" in failure.message

    coil.node.make_pool(name, {"ipv4": "10.98.0.0/30"}, bits=2)

    def comes_up() -> bool:
        with suppress(CniError):
            return addresses_of(coil.runtime.add(pod))[0].startswith("10.98.0.")
        return False

    wait_until(comes_up, what="the pod's address")


@pytest.mark.parametrize(
    "annotation", ["../../x", "a:b", "täglich", "Default", " default", "p" * 64, "p" * 300, "{}", "default\nnode"]
)
def test_an_annotation_that_names_no_pool_is_quoted(coil: CoilNode, make_pod: MakePod, annotation: str) -> None:
    name = f"odd-{secrets.token_hex(3)}"
    coil.node.make_namespace(name, pool=annotation)
    failure = refusal(coil, make_pod(name))
    assert failure.code == TRY_AGAIN_LATER
    assert annotation[:60] in failure.message or repr(annotation)[1:-1] in failure.message
    wait_until(lambda: not coil.node.objects("blockrequests"), what="its request is deleted")


def test_pods_with_absurd_names_are_wired_or_refused(place: Place, make_pod: MakePod) -> None:
    coil = place.coil
    kept = place.add(make_pod(place.name))
    absurd = [
        (PodName(place.name, "p" * 10_000), secrets.token_hex(32), None),
        (PodName(place.name, "../../etc/passwd"), secrets.token_hex(32), None),
        (PodName("n" * 10_000, "pod"), secrets.token_hex(32), "no"),
        (PodName("../../nodes", "pod"), secrets.token_hex(32), "no"),
        (PodName(place.name, "pod"), "c" * 300, "c"),
        (PodName(place.name, "pod"), "c:d", "c:d"),
    ]
    for pod, container_id, complaint in absurd:
        sandbox = coil.node.make_sandbox(pod, container_id=container_id)
        try:
            if complaint is None:
                assert place.add(sandbox) != kept
                coil.runtime.delete(sandbox)
            else:
                assert complaint in refusal(coil, sandbox).message
        finally:
            sandbox.destroy()
    assert place.coil.coild.process.poll() is None


# --- blocks edited by hand


@dataclass(frozen=True, slots=True)
class Edit:
    """What an administrator does to a block that pods use, and what coild says about it."""

    change: dict[str, Any]
    words: tuple[str, ...]


EDITS = {
    "pool": Edit({"metadata": {"labels": {POOL_LABEL: "nowhere"}}}, ("block not taken in", "other networks")),
    "node": Edit({"metadata": {"labels": {NODE_LABEL: OTHER_NODE}}}, ("was deleted under its pods",)),
    "nobody": Edit({"metadata": {"labels": None}}, ("was deleted under its pods",)),
    "finalizer": Edit({"metadata": {"finalizers": []}}, ()),
    "reserved": Edit({"metadata": {"labels": {"coil.cybozu.com/reserved": "true"}}}, ()),
}
TYPICAL = ("pool", "nobody")
"""Of them, what every run has: a block that is not taken in, and one that is not the node's any more."""


@pytest.mark.parametrize(
    "edit", [*TYPICAL, *(pytest.param(edit, marks=pytest.mark.slow) for edit in EDITS if edit not in TYPICAL)]
)
def test_pods_keep_their_addresses_when_their_block_is_edited(place: Place, make_pod: MakePod, edit: str) -> None:
    coil, deed = place.coil, EDITS[edit]
    apply(coil.node.plane, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": OTHER_NODE}})
    pods = [make_pod(place.name) for _ in range(2)]
    results = [coil.runtime.add(pod) for pod in pods]
    held = [addresses_of(result)[0] for result in results]
    block = place.block_of(held[0])
    place.edit(block, deed.change)
    if deed.words:
        place.await_words(block, *deed.words)
    try:
        taken = set(held)
        for _ in range(3):
            address = place.add_at_last(make_pod(place.name))
            assert address not in taken
            taken.add(address)
        for pod, result in zip(pods, results, strict=True):
            coil.runtime.check(pod, cached=result)
        place.restart_coild()
        for pod, result in zip(pods, results, strict=True):
            coil.runtime.check(pod, cached=result)
            assert coil.runtime.add(pod) == result
        for _ in range(3):
            address = place.add_at_last(make_pod(place.name))
            assert address not in taken
            taken.add(address)
    finally:
        # Whoever it belongs to now, nobody is there to let it go, and no other test expects such a block.
        with suppress(KubectlError):
            place.edit(block, {"metadata": {"finalizers": []}})
        place.kubectl("delete", "addressblock", block, "--ignore-not-found", "--wait=false")


@pytest.mark.parametrize(
    "change",
    [{"index": 5}, {"ipv4": "10.99.0.0/30"}, {"ipv4": "999.0.0.0/99"}, {"ipv4": None, "ipv6": "fd99::/126"}],
    ids=str,
)
def test_the_addresses_of_a_block_are_not_edited(place: Place, make_pod: MakePod, change: dict[str, Any]) -> None:
    block = place.block_of(addresses_of(place.coil.runtime.add(make_pod(place.name)))[0])
    before = place.blocks()[block]
    with pytest.raises(KubectlError, match="must not change"):
        place.edit(block, change)
    assert place.blocks()[block] == before


def test_an_edited_block_is_not_given_back_while_the_pods_live_that_have_addresses_of_it(
    place: Place, make_pod: MakePod
) -> None:
    """Its name is its index: were it to go, the index could be another node's at once, with the pods' addresses."""
    pod = make_pod(place.name)
    result = place.coil.runtime.add(pod)
    block = place.block_of(addresses_of(result)[0])
    uid = place.blocks()[block]["metadata"]["uid"]
    place.edit(block, EDITS["pool"].change)
    place.restart_coild()
    place.await_words("a pod's address is in none of this node's blocks", place.name)
    place.await_words("a block is kept", block, pod.container_id)
    # When a block that has rested goes, it is late enough for this one, too.
    other = make_pod(place.name)
    another = place.block_of(place.add_at_last(other))
    rested = place.blocks()[another]["metadata"]["uid"]
    place.coil.runtime.delete(other)
    wait_until(
        lambda: rested not in [entry["metadata"]["uid"] for entry in place.blocks().values()],
        what="a block without pods goes back",
    )

    def uids() -> set[str]:
        return {entry["metadata"]["uid"] for entry in place.coil.node.objects("addressblocks")}

    assert uid in uids()
    place.coil.runtime.delete(pod)
    wait_until(lambda: uid not in uids(), what="it goes with the last of its pods")


def test_a_block_that_is_deleted_by_hand_stays_until_its_pods_have_gone(place: Place, make_pod: MakePod) -> None:
    coil, pod = place.coil, make_pod(place.name)
    result = coil.runtime.add(pod)
    block = place.block_of(addresses_of(result)[0])
    place.kubectl("delete", "addressblock", block, "--wait=false")
    wait_until(lambda: place.free() == 0, what="coild knows that the block goes")
    other = place.add_at_last(make_pod(place.name))
    assert place.block_of(other) != block
    assert place.blocks()[block]["metadata"]["deletionTimestamp"]
    coil.runtime.check(pod, cached=result)
    assert place.blocks()[block]["ipv4"] in coil.node.kernel.destinations(EXPORT_TABLE)
    coil.runtime.delete(pod, cached=result)
    wait_until(lambda: block not in place.blocks(), what="the block goes with its last pod")


def test_a_block_that_vanished_under_its_pods_is_told_of_and_they_work_on(place: Place, make_pod: MakePod) -> None:
    coil, pod = place.coil, make_pod(place.name)
    result = coil.runtime.add(pod)
    (address,) = addresses_of(result)
    block = place.block_of(address)
    network = place.blocks()[block]["ipv4"]
    place.edit(block, {"metadata": {"finalizers": []}})
    place.kubectl("delete", "addressblock", block, "--ignore-not-found")
    place.await_words(block, "was deleted under its pods")
    coil.runtime.check(pod, cached=result)
    assert network in coil.node.kernel.destinations(EXPORT_TABLE), "it is still this node's as long as its pods live"
    # Its index is free again, and nobody but this node asks here: it may come back, and the pod's address stays out.
    for _ in range(5):
        assert place.add_at_last(make_pod(place.name)) != address
    place.restart_coild()
    assert coil.runtime.add(pod) == result


def test_blocks_made_by_hand_are_told_of_or_harmless(place: Place, make_pod: MakePod) -> None:
    coil, pod = place.coil, make_pod(place.name)
    held = place.add(pod)
    network = place.blocks()[place.block_of(held)]["ipv4"]
    labels = {NODE_LABEL: NAME, POOL_LABEL: place.name}
    made: dict[str, tuple[dict[str, str], dict[str, str]]] = {
        "overlap": (labels, {"ipv4": network}),
        "hostbits": (labels, {"ipv4": f"{held}/28"}),
        "empty": (labels, {}),
        "unequal": (labels, {"ipv4": "10.99.1.0/30", "ipv6": "fd99:1::/120"}),
        "nobodys": ({}, {"ipv4": "10.99.2.0/30"}),
        "poolless": ({NODE_LABEL: NAME}, {"ipv4": "10.99.3.0/30"}),
    }
    names = {key: f"{place.name}-by-hand-{key}" for key in made}
    try:
        for key, (given, fields) in made.items():
            metadata = {"name": names[key], "labels": given}
            block = {"apiVersion": "coil.cybozu.com/v2", "kind": "AddressBlock", "metadata": metadata, "index": 7}
            apply(coil.node.plane, {**block, **fields})
        place.await_words(names["overlap"], "block not taken in", "overlap")
        for key in ("empty", "unequal"):
            place.await_words(names[key], "block not taken in")
        taken = {held}
        for _ in range(4):
            address = place.add_at_last(make_pod(place.name))
            assert address not in taken
            assert ip_address(address) in ip_network(place.subnet)
            taken.add(address)
        place.restart_coild()
        assert pod.kernel.global_addresses() == {held}
        assert place.add_at_last(make_pod(place.name)) not in taken
    finally:
        for name in names.values():
            place.kubectl("delete", "addressblock", name, "--ignore-not-found", "--wait=false")


def test_a_request_made_by_hand_in_this_nodes_name_is_taken_back(place: Place, make_pod: MakePod) -> None:
    held = place.add(make_pod(place.name))
    body = {"apiVersion": "coil.cybozu.com/v2", "kind": "BlockRequest"}
    metadata = {"name": f"{place.name}-by-hand", "labels": {NODE_LABEL: NAME}}
    spec = {"nodeName": NAME, "poolName": place.name}
    apply(place.coil.node.plane, {**body, "metadata": metadata, "spec": spec})
    wait_until(lambda: len(place.blocks()) == 2, what="a block that nobody needs")
    wait_until(lambda: len(place.blocks()) == 1, what="it goes back")
    place.restart_coild()
    wait_until(lambda: not place.coil.node.objects("blockrequests"), what="the request is deleted")
    assert place.block_of(held)


# --- links and routes of others


def make_link(coil: CoilNode, alias: str) -> str:
    """A veth that is not ours; a link of any kind would do."""
    name = f"odd{secrets.token_hex(4)}"
    kernel = coil.node.kernel
    kernel.run("ip", "link", "add", name, "type", "veth", "peer", "name", f"{name}p")
    kernel.run("ip", "link", "set", f"{name}p", "up")
    kernel.run("ip", "link", "set", name, "up", "alias", alias)
    return name


def claim(coil: CoilNode, name: str, alias: str, *route: str) -> None:
    """Have the link say that it is a pod's, with a route in the pod table."""
    kernel = coil.node.kernel
    kernel.run("ip", "link", "set", name, "alias", alias)
    kernel.run("ip", "route", "add", *route, "dev", name, "table", POD_TABLE, "protocol", "static")


@pytest.fixture
def odd_links(coil: CoilNode) -> Iterator[None]:
    """Foreign links go with the test."""
    yield
    for link in coil.node.kernel.ip("link", "show"):
        if link["ifname"].startswith("odd") and not link["ifname"].endswith("p"):
            coil.node.kernel.run("ip", "link", "delete", link["ifname"])


NEARLY_OURS = ["COIL", "COIL:", "COIL:default", "COIL:::", "COIL:default::eth0", "COIL:a:b:c:d", "coil:default:x:eth0"]


@pytest.mark.usefixtures("odd_links")
def test_links_with_aliases_that_are_nearly_ours_are_left_alone(place: Place, make_pod: MakePod) -> None:
    pod = make_pod(place.name)
    result = place.coil.runtime.add(pod)
    names = [make_link(place.coil, alias) for alias in NEARLY_OURS]
    place.restart_coild()
    assert all(place.coil.node.kernel.link(name) is not None for name in names)
    assert place.coil.runtime.add(pod) == result


@pytest.mark.usefixtures("odd_links")
def test_an_address_that_a_foreign_link_claims_is_not_given_to_a_pod(place: Place, make_pod: MakePod) -> None:
    coil, pod = place.coil, make_pod(place.name)
    held = place.add(pod)
    block = ip_network(place.blocks()[place.block_of(held)]["ipv4"])
    claimed = next(str(address) for address in block if str(address) != held)
    claim(coil, make_link(coil, ""), f"COIL:{place.name}:stranger:eth0", claimed)
    place.restart_coild()
    given = {place.add_at_last(make_pod(place.name)) for _ in range(4)}
    assert not given & {held, claimed}
    assert len(given) == 4
    assert pod.kernel.global_addresses() == {held}


@pytest.mark.usefixtures("odd_links")
@pytest.mark.parametrize("older", ["pod", "stranger"])
def test_a_foreign_link_that_claims_a_pods_address_does_not_get_it(place: Place, make_pod: MakePod, older: str) -> None:
    """Both are in the pod table, the stranger's with another metric. coild finds the older link first."""
    coil, pod = place.coil, make_pod(place.name)
    early = make_link(coil, "") if older == "stranger" else ""
    result = coil.runtime.add(pod)
    (held,) = addresses_of(result)
    stranger = coil.node.make_sandbox(PodName(place.name, "stranger"), container_id=secrets.token_hex(8))
    name = early or make_link(coil, "")
    claim(coil, name, f"COIL:{place.name}:{stranger.container_id}:eth0", held, "metric", "77")
    place.restart_coild()
    place.await_words("is held by", place.name)
    coil.runtime.check(pod, cached=result)
    assert coil.runtime.add(pod) == result

    # It leaves: what it had claimed is the pod's still, and nobody else's.
    coil.runtime.delete(stranger)
    assert coil.node.kernel.link(name) is None
    given = {place.add_at_last(make_pod(place.name)) for _ in range(5)}
    assert held not in given
    coil.runtime.check(pod, cached=result)


@pytest.mark.usefixtures("odd_links")
def test_a_link_with_an_address_outside_every_block_is_told_of(place: Place, make_pod: MakePod) -> None:
    coil, pod = place.coil, make_pod(place.name)
    result = coil.runtime.add(pod)
    name = make_link(coil, "")
    claim(coil, name, f"COIL:{place.name}:outsider:eth0", "192.0.2.77")
    place.restart_coild()
    place.await_words("a pod's address is in none of this node's blocks", "192.0.2.77")
    assert coil.node.kernel.link(name) is not None
    assert coil.node.kernel.destinations(POD_TABLE)["192.0.2.77/32"] == name
    assert coil.runtime.add(pod) == result
    assert place.add(make_pod(place.name))


def test_addresses_that_somebody_else_routes_are_passed_by(place: Place, make_pod: MakePod) -> None:
    """Of a block of four: one is a pod's, two are routed elsewhere. A kubelet that tries again gets the fourth."""
    coil, pod = place.coil, make_pod(place.name)
    held = place.add(pod)
    addresses = [str(address) for address in ip_network(place.blocks()[place.block_of(held)]["ipv4"])]
    free = addresses[addresses.index(held) + 1 :] + addresses[: addresses.index(held)]
    for address in free[:2]:
        coil.node.kernel.run("ip", "route", "add", "blackhole", address, "table", POD_TABLE, "protocol", "static")
    try:
        failure = refusal(coil, make_pod(place.name))
        assert failure.code == INTERNAL
        assert f"add route {free[0]}" in failure.message
        assert "File exists" in failure.message
        assert place.add_at_last(make_pod(place.name)) not in (held, *free[:2])
        assert coil.node.kernel.run("ip", "route", "show", "table", POD_TABLE).count("blackhole") == 2
    finally:
        for address in free[:2]:
            coil.node.kernel.run("ip", "route", "delete", "blackhole", address, "table", POD_TABLE)
    assert pod.kernel.global_addresses() == {held}


def test_pods_survive_that_somebody_empties_the_pod_table(place: Place, make_pod: MakePod) -> None:
    """As a network manager does it that removes what it did not make."""
    coil, pod = place.coil, make_pod(place.name)
    result = coil.runtime.add(pod)
    (held,) = addresses_of(result)
    coil.node.kernel.run("ip", "route", "flush", "table", POD_TABLE)
    place.restart_coild()
    assert pod.kernel.global_addresses() == {held}
    assert coil.runtime.add(pod)["ips"] == result["ips"]
    assert f"{held}/32" in coil.node.kernel.destinations(POD_TABLE)
    place.await_words("routes to pods were missing from the pod table and are back")
