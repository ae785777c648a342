"""Coil v2 itself serves a node, ours take its place, and it comes back: by the steps of docs/upgrade.md, under the
conversations of running pods.

Programs are processes, and the API server has everything that Helm and Coil v2's manifests put there. Each test goes on
where the one before has ended: they are for running as a whole.
"""

import json
import secrets
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from coil.kernel.link import LinkGroup
from integration.admin_programs import write_admin_programs
from integration.apiserver.bare_node import NAME, UPLINK_MTU, BareNode
from integration.apiserver.coil_v2 import CoilV2
from integration.apiserver.conversation import converse
from integration.apiserver.egress_world import IMAGE, EgressReplica
from integration.apiserver.refusal_log import missing_rights
from integration.apiserver.runtime import Runtime, addresses_of
from integration.apiserver.sandbox import PodName, Sandbox
from integration.change_monitor import watch_changes
from integration.cluster.control_plane import ControlPlane
from integration.cluster.network import Network
from integration.cluster.workspace import Workspace
from integration.deployment import EGRESS_CONTROLLER, remove_webhooks
from integration.docs.execution import Execution
from integration.docs.page import read_pages, runnable_blocks
from integration.docs.story import BACK_TO_COIL_V2, FROM_COIL_V2, Step
from integration.go_coild import (
    Generation,
    GoCoild,
    GoPod,
    await_usable,
    block_document,
    pool_document,
    request_document,
)
from integration.helm.chart import CHART
from integration.kernel_state import EXPORT_TABLE, POD_TABLE, KernelState, render_facts
from integration.patience import wait_until
from integration.plugin.executable import plugin_executable
from integration.service import Service
from integration.tcp_stream import flow
from integration.udp_conversation import converse_by_udp

pytestmark = [pytest.mark.apiserver, pytest.mark.slow]

State = dict[str, Any]

BITS: Final = 2
POOLS: Final = {"default": {"ipv4": "10.93.0.0/26", "ipv6": "fd93::/122"}, "v4": {"ipv4": "10.94.0.0/27"}}
APPS: Final = "apps"
"""The namespace whose pool is `default`; that of the other one is called as its pool."""
CONF_VERSION: Final = "0.4.0"
"""Of the network configuration in Coil v2's manifests."""
BLOCKS: Final = runnable_blocks(read_pages())
STOP_SECONDS: Final = 30.0
"""The Go programs end within 20."""
POD_GROUP: Final = str(int(LinkGroup.POD))
FAST: Final = "--addressblock-gc-interval=200ms"
COIL_V2_IMAGE: Final = "example.invalid/coil:2.15.0"
GROUP: Final = "coil.cybozu.com"
EGRESS: Final = "nat"
EGRESS_DOCUMENT: Final[State] = {
    "apiVersion": f"{GROUP}/v2",
    "kind": "Egress",
    "metadata": {"name": EGRESS, "namespace": APPS},
    "spec": {
        "destinations": ["192.0.2.0/24", "2001:db8::/32"],
        "replicas": 2,
        "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": "50%"}},
        "template": {
            "metadata": {"annotations": {"team": "net"}, "labels": {"tier": "edge"}},
            "spec": {
                "nodeSelector": {"role": "gateway"},
                "tolerations": [{"effect": "NoSchedule", "operator": "Exists"}],
                "topologySpreadConstraints": [
                    {"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway"}
                ],
                "terminationGracePeriodSeconds": 10,
                "containers": [
                    {
                        "name": "egress",
                        "image": "example.invalid/cybozu-go/coil:2.15.0",
                        "command": ["coil-egress"],
                        "args": ["--zap-stacktrace-level=panic", "--fou-port=5555", "--enable-sport-auto=false"],
                        "resources": {"limits": {"memory": "400Mi"}},
                        "volumeMounts": [{"name": "notes", "mountPath": "/notes"}],
                    },
                    {"name": "log", "image": "example.invalid/log", "args": ["--follow"]},
                ],
                "volumes": [{"name": "notes", "emptyDir": {}}],
            },
        },
        "sessionAffinity": "ClientIP",
        "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 43200}},
        "fouSourcePortAuto": True,
        "podDisruptionBudget": {"maxUnavailable": 1},
    },
}
"""With each field that Coil v2 has; templates have some of a pod's, and name the program as Coil v2's own does."""
ROUTER_KINDS: Final = ("Deployment", "PodDisruptionBudget", "Service")
_POD: Final = ".Deployment.spec.template.spec"
OUR_PROGRAM: Final = (
    ".Service.spec.ports[0].name",
    *(f"{_POD}.{where}[{index}]." for where in ("volumes", "containers[0].volumeMounts") for index in (1, 2)),
    *(f"{_POD}.containers[0].{field}" for field in ("image", "securityContext.")),
    *(f"{_POD}.containers[0].{probe}Probe." for probe in ("liveness", "readiness")),
    f"{_POD}.containers[0].env[0].value",
    f"{_POD}.containers[0].resources.requests.memory",
)
"""What is ours in what an Egress is made into: the image of the router's container and what the program needs of the
node, and that its request is the limit, where there is one. The command and its arguments are those of the template.
"""


@dataclass(frozen=True, slots=True)
class LivePod:
    """`result` is what the runtime has cached of the ADD, and `runtime` what it has called then."""

    sandbox: Sandbox
    result: dict[str, Any]
    version: str

    @property
    def netns(self) -> str:
        return self.sandbox.netns

    @property
    def addresses(self) -> dict[int, str]:
        """By IP version."""
        return {ip_address(text).version: text for text in addresses_of(self.result)}

    @property
    def host_link(self) -> str:
        name: str = next(entry["name"] for entry in self.result["interfaces"] if not entry.get("sandbox"))
        return name


@dataclass
class Move:
    """The node, who serves it at the moment, and an admin's shell."""

    coil_v2: CoilV2
    node: BareNode
    shell: Execution
    runtime: Runtime = field(init=False)
    controller: Service = field(init=False)
    egress_controller: Service = field(init=False)
    coild: Service = field(init=False)
    pods: dict[str, LivePod] = field(default_factory=dict)
    router_of_coil_v2: dict[str, State] = field(init=False)
    """What `router` was before ours came."""

    @property
    def plane(self) -> ControlPlane:
        return self.node.plane

    def start_coil_v2(self) -> None:
        """Its installer, its controllers and its coild."""
        self.runtime = self.coil_v2.install_plugin(self.node)
        self.controller = self.coil_v2.start_controller()
        account = "coil-egress-controller"
        pod = self.node.make_pod("kube-system", account, account=account, image=COIL_V2_IMAGE)
        self.egress_controller = self.coil_v2.start_egress_controller(pod)
        self.coild = self.coil_v2.start_coild(self.node)

    def start_ours(self) -> None:
        """The same of ours, which Helm has given their objects."""
        # The API server cannot reach a Service; the controllers' webhooks get a URL.
        remove_webhooks(self.plane)
        remove_webhooks(self.plane, of=EGRESS_CONTROLLER)
        self.runtime = self.node.install_plugin()
        self.controller = self.node.start_controller()
        self.egress_controller = EgressReplica(self.plane, "egress-controller", "--enable-eip=false").service
        self.egress_controller.wait_ready()
        # The chart binds coild to its own Node, by the token of its pod.
        pod = self.node.make_pod("kube-system", f"coild-{secrets.token_hex(3)}", account="coild")
        account = self.plane.kubeconfig_for("coild", pod=pod.name)
        self.coild = self.node.start_coild("--cooling=500ms", FAST, kubeconfig=account)

    def stop(self) -> None:
        """End whichever programs serve the node. Idempotent."""
        for service in (self.coild, self.controller, self.egress_controller):
            service.process.stop(timeout=STOP_SECONDS)

    def play(self, step: Step) -> None:
        """Execute the step's block of the page."""
        block = BLOCKS[step.block]
        printed = self.shell.run(block, node=lambda command: self.node.kernel.run(*command), code=step.code)
        assert step.missing(printed) == [], printed

    def start_pod(self, name: str, *, namespace: str = APPS, version: str = CONF_VERSION) -> LivePod:
        """By whoever serves the node."""
        pod = self.node.make_pod(namespace, name)
        sandbox = self.node.make_sandbox(pod, container_id=secrets.token_hex(32))
        sandbox.kernel.run("ip", "link", "set", "lo", "up")
        live = LivePod(sandbox, self.runtime.add(sandbox, version=version), version)
        taken = {address for other in self.pods.values() for address in other.addresses.values()}
        assert not taken & set(live.addresses.values())
        # The kernel's link-local addresses are none of the programs' doing.
        await_usable(sandbox.kernel, "eth0")
        await_usable(self.node.kernel, live.host_link)
        self.pods[name] = live
        return live

    def check(self, name: str, *, runtime: Runtime | None = None) -> None:
        """CHECK. Raises CniError."""
        pod = self.pods[name]
        (runtime or self.runtime).check(pod.sandbox, version=pod.version, cached=pod.result)

    def end_pod(self, name: str, *, runtime: Runtime | None = None) -> None:
        """DEL, which leaves nothing of the pod on the node, and once more."""
        pod = self.pods.pop(name)
        for _ in range(2):
            (runtime or self.runtime).delete(pod.sandbox, version=pod.version, cached=pod.result)
        assert self.node.kernel.link(pod.host_link) is None
        left = {destination.partition("/")[0] for destination in self.node.kernel.destinations(POD_TABLE)}
        assert not left & set(pod.addresses.values())
        pod.sandbox.destroy()

    def blocks(self, pool: str) -> dict[str, dict[str, Any]]:
        """The pool's blocks, by name."""
        found = self.node.objects("addressblocks")
        own = [block for block in found if block["metadata"]["labels"]["coil.cybozu.com/pool"] == pool]
        return {block["metadata"]["name"]: block for block in own}

    def router(self) -> dict[str, State]:
        """What the Egress was made into, by kind, without what the API server and others write there."""
        items = [(kind, EGRESS, f"--namespace={APPS}", "--output=json", "--ignore-not-found") for kind in ROUTER_KINDS]
        found = [self.plane.kubectl("get", *arguments) for arguments in items]
        return {kind: lasting(json.loads(text)) for kind, text in zip(ROUTER_KINDS, found, strict=True) if text}

    def is_reconciled(self) -> bool:
        """Whether ours has made all objects of the Egress; Coil v2 does not tell."""
        egress = self.plane.read(f"/apis/{GROUP}/v2/namespaces/{APPS}/egresses/{EGRESS}")
        return bool(egress.get("status", {}).get("observedGeneration") == egress["metadata"]["generation"])

    def await_freed(self, pool: str) -> None:
        """Return when no block of the pool is left, nor a route that announces one."""
        wait_until(lambda: not self.blocks(pool), what=f"the blocks of {pool} are freed")
        prefix = POOLS[pool]["ipv4"].rpartition(".")[0]
        wait_until(
            lambda: not [each for each in self.node.kernel.destinations(EXPORT_TABLE) if each.startswith(prefix)],
            what="and are no longer announced",
        )

    @contextmanager
    def undisturbed(self) -> Iterator[None]:
        """Conversations of the pods and with the node go on through all of the block without losing a packet, and
        nobody changes what is in the pods, nor their links and routes on the node, even for an instant.
        """
        first, second, lonely = (self.pods[name] for name in ("first", "second", "lonely"))
        places = {name: pod.netns for name, pod in self.pods.items()} | {"node": self.node.kernel.netns}
        with ExitStack() as undo:
            talks = [
                undo.enter_context(converse_by_udp(*ends))
                for ends in (
                    (first.netns, second.netns, second.addresses[4]),
                    (second.netns, first.netns, first.addresses[6]),
                    (self.node.kernel.netns, lonely.netns, lonely.addresses[4]),
                )
            ]
            stream = undo.enter_context(flow(first.netns, second.netns, second.addresses[6]))
            monitors = {place: undo.enter_context(watch_changes(netns)) for place, netns in places.items()}
            yield
            counts = [talk.count for talk in talks]
            for talk, count in zip(talks, counts, strict=True):
                more = f"{talk.count} of a conversation goes on"
                wait_until(lambda talk=talk, count=count: talk.count > count or talk.failed.is_set(), what=more)  # type: ignore[misc]
            stream.count()
            changes = {
                place: [line for line in monitor.lines() if _matters(line)] for place, monitor in monitors.items()
            }
        assert changes == {place: [] for place in places}


def _matters(line: str) -> bool:
    """Not that our coild marks the links of pods, nor that the routes to blocks are replaced in one step."""
    expected = (f" table {EXPORT_TABLE} ", f" group {POD_GROUP} ")
    return line.startswith("Deleted") or not any(part in f"{line} " for part in expected)


@pytest.fixture(scope="module")
def move(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Move]:
    """With Coil v2, as its manifests install it, and pods that it has wired."""
    tools, home = tmp_path_factory.mktemp("bin"), tmp_path_factory.mktemp("home")
    write_admin_programs(tools)
    with ExitStack() as undo:
        workspace = undo.enter_context(Workspace.create())
        plane = ControlPlane.start(workspace=workspace, address=Network.create(workspace).host4)
        coil_v2 = CoilV2.prepare(plane)
        coil_v2.apply()
        node = undo.enter_context(BareNode.up(plane))
        values = tools.with_name("values.yaml")
        shell = Execution(
            kubeconfig=plane.admin_kubeconfig, home=home, programs=[tools], variables={"VALUES": str(values)}
        )
        move = Move(coil_v2, node, shell)
        move.start_coil_v2()
        undo.callback(move.stop)
        for name, subnet in POOLS.items():
            node.make_pool(name, subnet, bits=BITS)
        node.make_namespace(APPS)
        node.make_namespace("v4", pool="v4")
        for name in ("first", "second", "third", "fourth", "fifth"):
            move.start_pod(name, version="1.0.0" if name == "third" else CONF_VERSION)
        move.start_pod("lonely", namespace="v4")
        apply_strictly(plane, EGRESS_DOCUMENT)
        wait_until(lambda: set(move.router()) == set(ROUTER_KINDS), what="the Egress has its objects")
        move.router_of_coil_v2 = move.router()
        yield move


def apply_strictly(plane: ControlPlane, document: State) -> None:
    """`kubectl apply`, which fails if the API server does not know one of the fields."""
    plane.kubectl("apply", "--validate=strict", "--filename=-", stdin=json.dumps(document))


# What Coil v2 leaves, and what is written down of it.


def test_the_go_coild_leaves_on_a_node_what_is_recorded(move: Move) -> None:
    own = (str(move.node.ipv4), str(move.node.ipv6))
    recorded = move.node.make_sandbox(PodName("recorded", "node"), container_id=secrets.token_hex(32)).kernel
    recorded.run("ip", "link", "set", "lo", "up")
    go = GoCoild(recorded, Generation.NO_QUEUE, own, UPLINK_MTU)
    go.start()
    blocks = {**move.blocks("default"), **move.blocks("v4")}.values()
    go.export(*(block[family] for block in blocks for family in ("ipv4", "ipv6") if family in block))
    for name, pod in move.pods.items():
        pool = pod.sandbox.pod.namespace.replace(APPS, "default")
        addresses = tuple(entry["address"] for entry in pod.result["ips"])
        twin = GoPod(pool, pod.sandbox.container_id, addresses)
        inside = move.node.make_sandbox(PodName("recorded", name), container_id=secrets.token_hex(32)).kernel
        inside.run("ip", "link", "set", "lo", "up")
        go.attach(twin, inside)
        real = wiring(move.node.kernel, pod.host_link, pod.sandbox.kernel)
        assert wiring(recorded, twin.host_link, inside) == real, name
    assert node_state(recorded) == node_state(move.node.kernel)


def wiring(kernel: KernelState, host_link: str, inside: KernelState) -> set[str]:
    """Each fact about one pod, with words in the place of names and of addresses that the kernel has drawn."""
    facts: list[tuple[str, object]] = []
    words = {host_link: "HOST"}
    for place, end, link in (("node", kernel, host_link), ("pod", inside, "eth0")):
        [entry] = end.ip("address", "show", "dev", link)
        words[entry["address"]] = f"MAC-{place}"
        words[next(each["local"] for each in entry["addr_info"] if each["scope"] == "link")] = f"LINK-LOCAL-{place}"
        addresses = entry.pop("addr_info")
        routes = [route for family in ("-4", "-6") for route in end.ip(family, "route", "show", "table", "all")]
        facts += [(f"{place}: {key}", value) for key, value in entry.items() if key not in _DRAWN]
        facts += [(f"{place}: address", address) for address in addresses]
        facts += [(f"{place}: route", route) for route in routes if route.get("dev") == link]
        facts += [(f"{place}: neighbour", each) for each in end.ip("neigh", "show", "nud", "permanent")]
        facts += [(f"{place}: {name}", end.sysctl(f"net/{name.format(link)}")) for name in _SYSCTLS]
    return render_facts(facts, words)


_DRAWN: Final = {"ifindex", "link_index", "link_netnsid", "link"}
_SYSCTLS: Final = (
    *("ipv4/conf/{}/rp_filter", "ipv4/conf/{}/forwarding", "ipv4/conf/{}/proxy_arp"),
    *("ipv6/conf/{}/forwarding", "ipv6/conf/{}/accept_ra", "ipv6/conf/{}/disable_ipv6"),
)


def node_state(kernel: KernelState) -> State:
    """What is the node's and no pod's: rules, announced blocks, and whether it forwards."""
    return {
        "rules": {family: kernel.ip(family, "rule", "show") for family in ("-4", "-6")},
        "exported": sorted(kernel.routes(EXPORT_TABLE), key=lambda route: str(route["dst"])),
        "forwards": [kernel.sysctl("net/ipv4/ip_forward"), kernel.sysctl("net/ipv6/conf/all/forwarding")],
    }


def test_the_go_programs_leave_in_the_api_server_what_is_recorded(move: Move) -> None:
    uids = {pool["metadata"]["name"]: pool["metadata"]["uid"] for pool in move.node.objects("addresspools")}
    for pool in move.node.objects("addresspools"):
        name = pool["metadata"]["name"]
        assert lasting(pool) == pool_document(name, BITS, [POOLS[name]])
        for block in move.blocks(name).values():
            networks: dict[str, str] = {family: block[family] for family in ("ipv4", "ipv6") if family in block}
            request = block["metadata"]["labels"]["coil.cybozu.com/request"]
            recorded = block_document(
                name, block["index"], node=NAME, pool_uid=uids[name], networks=networks, request=request
            )
            assert lasting(block) == recorded
    node_uid = move.plane.read(f"/api/v1/nodes/{NAME}")["metadata"]["uid"]
    requests = {each["metadata"]["name"]: each for each in move.node.objects("blockrequests")}
    assert {name: lasting(each) for name, each in requests.items()} == {
        f"req-{pool}-{NAME}": request_document(pool, node=NAME, node_uid=node_uid) for pool in POOLS
    }


def lasting(document: State) -> State:
    """Without the status, and without what the API server writes into an object's metadata."""
    kept = {"name", "labels", "finalizers", "ownerReferences"}
    metadata = {key: value for key, value in document["metadata"].items() if key in kept}
    return {key: value for key, value in document.items() if key != "status"} | {"metadata": metadata}


def test_each_field_of_its_kinds_is_one_of_ours(move: Move) -> None:
    theirs = {
        each["metadata"]["name"]: each
        for each in move.coil_v2.documents
        if each["kind"] == "CustomResourceDefinition" and each["spec"]["group"] == GROUP
    }
    chart = [yaml.safe_load(path.read_text()) for path in (CHART / "crds").glob("*.yaml")]
    ours = {each["metadata"]["name"]: each for each in chart}
    assert len(theirs) == 4
    for name, kind in theirs.items():
        assert kind["spec"]["scope"] == ours[name]["spec"]["scope"]
        [their_version], [our_version] = kind["spec"]["versions"], ours[name]["spec"]["versions"]
        assert their_version["name"] == our_version["name"]
        schema, our_schema = (version["schema"]["openAPIV3Schema"] for version in (their_version, our_version))
        assert list(lacking(schema, our_schema, name)) == []


def lacking(theirs: State, ours: State | None, path: str) -> Iterator[str]:
    """Each field that only they have, or that has another type here."""
    if ours is None or theirs.get("type") != ours.get("type"):
        yield path
    elif not ours.get("x-kubernetes-preserve-unknown-fields"):
        for name, inner in theirs.get("properties", {}).items():
            yield from lacking(inner, ours.get("properties", {}).get(name), f"{path}.{name}")
        for elements in ("items", "additionalProperties"):
            if isinstance(inner := theirs.get(elements), dict):
                yield from lacking(inner, ours.get(elements), f"{path}[]")


# From Coil v2.


def test_the_check_names_what_the_manifests_have(move: Move) -> None:
    [step] = [step for step in FROM_COIL_V2 if step.block == "check-coil-v2"]
    move.play(step)
    check = ["coil-migrator", "check", "-o", "json"]
    done = json.loads(move.shell.execute(check, what="the check", code=step.code))
    Path(move.shell.variables["VALUES"]).write_text(json.dumps(done["values"]))


def test_ours_take_over_under_the_pods_conversations(move: Move) -> None:
    before = {pool: set(move.blocks(pool)) for pool in POOLS}
    with move.undisturbed():
        for step in FROM_COIL_V2[1:]:
            move.play(step)
            if step.block == "delete-coil-v2":
                move.stop()
        move.start_ours()
        wait_until(lambda: not move.node.unready(), what="coild is ready")
    assert {pool: set(move.blocks(pool)) for pool in POOLS} == before


def test_an_egress_means_the_same_and_its_manifest_applies_unchanged(move: Move) -> None:
    wait_until(move.is_reconciled, what="the objects of the Egress are ours")
    before, after = (dict(leaves(router)) for router in (move.router_of_coil_v2, move.router()))
    given = EGRESS_DOCUMENT["spec"]["template"]["spec"]["containers"][0]
    [container, _] = move.router()["Deployment"]["spec"]["template"]["spec"]["containers"]
    assert (container["image"], container["command"]) == (IMAGE, given["command"])
    assert container["args"] == given["args"]
    changed = {path for path in before.keys() | after.keys() if before.get(path) != after.get(path)}
    assert [path for path in sorted(changed) if not path.startswith(OUR_PROGRAM)] == []
    apply_strictly(move.plane, EGRESS_DOCUMENT)


def leaves(value: object, path: str = "") -> Iterator[tuple[str, object]]:
    """The values in a document, by their paths."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from leaves(inner, f"{path}.{key}")
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from leaves(inner, f"{path}[{index}]")
    else:
        yield path, value


@pytest.mark.parametrize("name", ["first", "third", "lonely"])
def test_a_check_finds_a_pod_of_the_go_programs_whole(move: Move, name: str) -> None:
    move.check(name)


def test_the_plugin_of_the_go_programs_works_with_our_coild(move: Move) -> None:
    """While the installer has not replaced it yet, or where a runtime has kept it elsewhere."""
    theirs = replace(move.runtime, plugin=move.coil_v2.plugin)
    move.check("fifth", runtime=theirs)
    move.end_pod("fifth", runtime=theirs)


def test_pods_of_the_go_programs_end_and_new_ones_begin(move: Move) -> None:
    former = move.pods["first"]
    move.end_pod("third")
    move.end_pod("fourth")
    for name in ("sixth", "seventh", "eighth"):
        fresh = move.start_pod(name)
        for version in (4, 6):
            assert converse(fresh.netns, former.netns, former.addresses[version]) == fresh.addresses[version]
    move.end_pod("lonely")
    move.await_freed("v4")
    move.start_pod("lonely", namespace="v4", version="1.0.0")


# And back.


def test_coil_v2_takes_over_under_the_pods_conversations(move: Move) -> None:
    before = {pool: set(move.blocks(pool)) for pool in POOLS}
    leave, tables = BACK_TO_COIL_V2
    for service in (move.controller, move.egress_controller, move.coild):
        assert missing_rights(service.process.log) == []
    with move.undisturbed():
        move.play(leave)
        move.stop()
        move.coil_v2.apply()
        move.start_coil_v2()
        move.play(tables)
    assert {pool: set(move.blocks(pool)) for pool in POOLS} == before
    assert "coil" not in move.node.kernel.run("nft", "list", "tables")


def test_router_pods_are_as_coil_v2_has_made_them(move: Move) -> None:
    wait_until(lambda: move.router() == move.router_of_coil_v2, what="the router pods are Coil v2's")


@pytest.mark.parametrize("name", ["first", "sixth", "lonely"])
def test_the_go_programs_find_a_pod_whole(move: Move, name: str) -> None:
    move.check(name)


def test_our_plugin_works_with_the_go_coild(move: Move) -> None:
    """As long as a node's installer has not run."""
    ours = replace(move.runtime, plugin=plugin_executable())
    move.check("seventh", runtime=ours)
    move.end_pod("seventh", runtime=ours)


def test_pods_of_ours_end_and_the_go_programs_start_new_ones(move: Move) -> None:
    former = move.pods["eighth"]
    move.end_pod("sixth")
    for name in ("ninth", "tenth", "eleventh"):
        fresh = move.start_pod(name)
        for version in (4, 6):
            assert converse(fresh.netns, former.netns, former.addresses[version]) == fresh.addresses[version]
    for name in list(move.pods):
        move.end_pod(name)
    for pool in POOLS:
        move.await_freed(pool)
