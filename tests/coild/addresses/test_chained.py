"""coild without IPAM: behind another plugin, for egress alone."""

import json
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path

import pytest

from coil.cnirpc.error import CniError, CniErrorCode
from coil.cnirpc.messages import CniArgs
from coil.ipam.occupancy import AttachmentKey, ContainerId
from coil.netlink.host import NetnsPath
from coil.podnet.host_link import PodAlias, parse_alias, render_alias
from coild.addresses.chained import ChainedSource
from coild.cni.service import CniService
from coild.model.attachment import Attachment, EgressRefusedError, NoHostPorts, PodName
from coild.model.keyed_executor import KeyedExecutor
from coild.pods.engine import PodEngine
from tests.coild.memory_network import Kernel, MemoryNetwork
from tests.coild.scene import LOG, ListRecorder

C1, OTHER = NetnsPath(Path("/run/netns/c1")), NetnsPath(Path("/run/netns/other"))

PREV_RESULT = {
    "cniVersion": "0.4.0",
    "interfaces": [{"name": "cni0"}, {"name": "veth0"}, {"name": "eth0", "sandbox": "/run/netns/c1"}],
    "ips": [{"version": "4", "address": "10.9.0.2/24"}, {"version": "6", "address": "fd09::2/64"}],
}


@dataclass
class NotedEgress:
    """A `PodEgress`."""

    connected: list[Attachment] = field(default_factory=list)
    known: set[AttachmentKey] = field(default_factory=set)
    error: Exception | None = None

    async def connect(self, attachment: Attachment, *, deadline: float) -> None:
        self.known.add(attachment.key)
        if self.error is not None:
            raise self.error
        self.connected.append(attachment)

    def forget(self, key: AttachmentKey) -> None:
        self.known.discard(key)


class Node:
    """One life of coild behind another plugin; `kernel` outlives it."""

    def __init__(self, kernel: Kernel | None = None) -> None:
        self.kernel = kernel or Kernel()
        if kernel is None:
            for name in ("c1", "c2"):
                self.kernel.namespace(name)
        self.network = MemoryNetwork(self.kernel)
        self.egress = NotedEgress()
        self.uids = {"p": "uid-1"}
        self.pods = PodEngine(
            source=ChainedSource(self.network, uid_of=self._uid_of, log=LOG),
            egress=self.egress,
            host_ports=NoHostPorts(),
            executor=KeyedExecutor(LOG),
            acquire_timeout=10.0,
            recorder=ListRecorder(),
            log=LOG,
        )
        self.service = CniService(self.pods, chained=True)

    async def _uid_of(self, name: PodName, deadline: float) -> str:
        return self.uids.get(name.name, "")

    @property
    def known(self) -> list[str]:
        return sorted(key.container_id for key in self.egress.known)


@pytest.fixture
def node() -> Node:
    return Node()


def args(container: str = "c1", *, uid: str = "uid-1", chained: bool = True) -> CniArgs:
    netconf = {"cniVersion": "0.4.0", "name": "k8s", "type": "coil"} | ({"prevResult": PREV_RESULT} if chained else {})
    return CniArgs(
        container_id=container,
        netns=f"/run/netns/{container}",
        ifname="eth0",
        args={
            "K8S_POD_NAMESPACE": "apps",
            "K8S_POD_NAME": "p",
            "K8S_POD_UID": uid,
            "IS_CHAINED": "true" if chained else "false",
        },
        stdin_data=json.dumps(netconf).encode(),
        ips=["10.9.0.2", "fd09::2"],
        interfaces={"cni0": False, "veth0": False, "eth0": True},
    )


async def refused(node: Node, verb: str, cni_args: CniArgs) -> CniError:
    operation = {"ADD": node.service.add, "CHECK": node.service.check}[verb]
    with pytest.raises(CniError) as caught:
        await operation(cni_args)
    return caught.value


async def test_the_life_of_a_pod(node: Node) -> None:
    answer = await node.service.add(args())
    assert json.loads(answer.result) == PREV_RESULT
    (attachment,) = node.egress.connected
    assert attachment.alias == node.kernel.named[C1] == PodAlias("", "uid-1", "eth0")
    assert attachment.addresses == (ip_address("10.9.0.2"), ip_address("fd09::2"))
    assert (attachment.netns, attachment.pod) == (Path("/run/netns/c1"), PodName("apps", "p", "uid-1"))
    await node.service.add(args())
    await node.service.check(args())
    await node.service.del_(args())
    await node.service.del_(args())
    assert node.known == []
    assert (await refused(node, "CHECK", args())).code is CniErrorCode.UNKNOWN_CONTAINER


async def test_without_a_plugin_before_it_is_a_mistake(node: Node) -> None:
    error = await refused(node, "ADD", args(chained=False))
    assert error.code is CniErrorCode.INVALID_NETWORK_CONFIG
    assert "--enable-ipam" in error.details
    assert node.kernel.named == {}


async def test_a_result_without_addresses_that_can_be_read(node: Node) -> None:
    wrong = args()
    wrong.ips = ["10.9.0.2", "nonsense"]
    assert (await refused(node, "ADD", wrong)).code is CniErrorCode.INVALID_NETWORK_CONFIG


async def test_a_del_tolerates_everything(node: Node) -> None:
    await node.service.del_(args("unknown", uid=""))
    await node.service.add(args())
    node.kernel.remove_namespace(C1)
    gone = args()
    gone.netns = ""
    await node.service.del_(gone)
    assert node.known == []


async def test_a_runtime_that_tells_no_uid(node: Node) -> None:
    await node.service.add(args(uid=""))
    assert node.kernel.named[C1] == PodAlias("", "uid-1", "eth0")


async def test_a_pod_that_nobody_knows_has_no_alias(node: Node) -> None:
    node.uids.clear()
    await node.service.add(args(uid=""))
    assert node.kernel.named == {}
    assert node.egress.connected[0].alias is None
    await node.service.check(args(uid=""))
    await node.service.del_(args(uid=""))
    assert node.known == []


async def test_an_interface_without_an_end_on_the_host(node: Node) -> None:
    node.kernel.flat.add(C1)
    await node.service.add(args())
    assert node.egress.connected[0].alias is None
    await node.service.check(args())
    await node.pods.collect()
    assert node.known == ["uid-1"]


async def test_a_refusal_has_the_runtime_try_again_and_leaves_nothing(node: Node) -> None:
    node.egress.error = EgressRefusedError("no FoU")
    error = await refused(node, "ADD", args())
    assert error.code is CniErrorCode.TRY_AGAIN_LATER
    assert "no FoU" in error.details
    assert node.known == []


async def test_a_namespace_that_is_gone(node: Node) -> None:
    assert (await refused(node, "ADD", args("c9"))).code is CniErrorCode.UNKNOWN_CONTAINER
    assert node.known == []


async def test_a_late_del_of_the_sandbox_before_leaves_the_present_one(node: Node) -> None:
    await node.service.add(args("c1"))
    node.kernel.remove_namespace(C1)
    await node.service.add(args("c2"))
    await node.service.del_(args("c1"))
    assert node.known == ["uid-1"]
    await node.service.check(args("c2"))
    await node.service.del_(args("c2"))
    assert node.known == []


async def test_a_check_notices_that_the_veth_is_gone(node: Node) -> None:
    await node.service.add(args())
    node.kernel.remove_namespace(C1)
    assert (await refused(node, "CHECK", args())).code is CniErrorCode.INTERNAL


async def test_the_next_process_knows_the_pods_by_their_aliases(node: Node) -> None:
    await node.service.add(args())
    node.kernel.named[OTHER] = PodAlias("default", "c7", "eth0")  # with addresses of ours: not chained
    after = Node(node.kernel)
    await after.pods.recover()
    (attachment,) = after.pods.attachments()
    assert attachment == Attachment(
        key=AttachmentKey(ContainerId("uid-1"), "eth0"),
        pod=PodName("", "", "uid-1"),
        addresses=(),
        alias=PodAlias("", "uid-1", "eth0"),
    )
    await after.service.check(args())
    # Which container it was nobody knows any more, so its DEL forgets nothing; the sweep does.
    after.egress.known.add(attachment.key)
    await after.service.del_(args())
    assert after.known == ["uid-1"]
    node.kernel.remove_namespace(C1)
    await after.pods.collect()
    assert after.known == []
    assert (await refused(after, "CHECK", args())).code is CniErrorCode.UNKNOWN_CONTAINER


async def test_one_address_of_each_family_is_the_pods(node: Node) -> None:
    several = args()
    several.ips = ["10.9.0.2", "10.9.0.3", "fd09::2", "fd09::3"]
    await node.service.add(several)
    assert [*map(str, node.egress.connected[0].addresses)] == ["10.9.0.2", "fd09::2"]


async def test_the_alias_is_the_text_that_earlier_releases_wrote(node: Node) -> None:
    await node.service.add(args())
    assert render_alias(node.kernel.named[C1]) == "COIL::uid-1:eth0"
    earlier = parse_alias("COIL::uid-1:eth0")
    assert earlier is not None
    node.kernel.named[C1] = earlier
    after = Node(node.kernel)
    await after.pods.recover()
    await after.service.check(args())


async def test_a_gc_forgets_what_the_runtime_does_not_name(node: Node) -> None:
    await node.service.add(args("c1"))
    known = [{"containerID": "c1", "ifname": "eth0"}]
    conf = {"cniVersion": "1.1.0", "name": "k8s", "type": "coil", "cni.dev/valid-attachments": known}
    await node.service.gc(CniArgs(stdin_data=json.dumps(conf).encode()))
    assert node.known == ["uid-1"]
    conf["cni.dev/valid-attachments"] = []
    await node.service.gc(CniArgs(stdin_data=json.dumps(conf).encode()))
    assert node.known == []
