"""What the plugin's arguments become, and which code each failure carries to the runtime."""

import json
from ipaddress import IPv4Address, IPv4Interface, IPv6Address, IPv6Interface
from pathlib import Path
from typing import Any

import pytest

from coil.cnirpc.call_gate import answered_within
from coil.cnirpc.error import CniError, CniErrorCode
from coil.cnirpc.messages import CniArgs
from coil.ipam.node_ledger import AttachmentKey
from coil.kernel.link import LinkName, MacAddress
from coil.kube.errors import ForbiddenError, NotFoundError, UnavailableError
from coil.netlink.error import BusyError, KernelError, LinkExistsError, NamespaceError, PodCheckError
from coil.netlink.host import NetnsPath
from coil.nft.netfilter import NftError
from coil.podnet.host_link import PodAlias
from coil.podnet.plan import Assignment, PodPlan, plan_pod, plan_port
from coil.reconcile.event_recorder import EventSubject
from coil_cni.service import convert_result
from coild.cni.call import read_netns, read_port_mappings
from coild.cni.service import CniService, render_result
from coild.model.attachment import (
    UNNAMED,
    AddRequest,
    AddressUnavailableError,
    EgressRefusedError,
    EgressUnresolvedError,
    HostPortTakenError,
    InterfaceUnknownError,
    InvalidPodError,
    NoSuchNamespaceError,
    PodName,
    PodUnknownError,
    UnknownAttachmentError,
)
from coild.model.port_error import (
    BindError,
    BindTimeoutError,
    HandoffUnreadableError,
    PodForbiddenError,
    PortGoneError,
    PortInUseError,
    PortNotActiveError,
    PortTypeUnknownError,
)
from coild.pods.engine import PodEngine
from tests.coild.scene import Coild, World, now


class FailingPods(PodEngine):
    """Every operation ends in `error`."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    async def add(self, request: AddRequest) -> PodPlan:
        raise self.error

    async def delete(self, key: AttachmentKey, *, ended: float | None = None) -> None:
        raise self.error

    async def check(self, key: AttachmentKey, netns: NetnsPath, pod: PodName = UNNAMED) -> None:
        raise self.error


def args(
    container: str = "c1",
    *,
    netns: str = "/run/netns/c1",
    ifname: str = "eth0",
    namespace: str = "apps",
    pod: str = "p",
    network: str = "k8s",
    ports: list[dict[str, Any]] | None = None,
) -> CniArgs:
    conf: dict[str, Any] = {"cniVersion": "0.4.0", "name": network, "type": "coil"}
    if ports is not None:
        conf["runtimeConfig"] = {"portMappings": ports}
    return CniArgs(
        container_id=container,
        netns=netns,
        ifname=ifname,
        args={"K8S_POD_NAMESPACE": namespace, "K8S_POD_NAME": pod, "IS_CHAINED": "false"},
        stdin_data=json.dumps(conf).encode(),
    )


@pytest.fixture
def service(coild: Coild) -> CniService:
    coild.world.kernel.namespace("c1")
    return CniService(coild.pods)


async def refused(service: CniService, verb: str, cni_args: CniArgs) -> CniError:
    operation = {"ADD": service.add, "CHECK": service.check, "DEL": service.del_}[verb]
    with pytest.raises(CniError) as caught:
        await operation(cni_args)
    return caught.value


async def test_the_life_of_a_pod(world: World, service: CniService) -> None:
    answer = await service.add(args())
    result = json.loads(answer.result)
    # The plugin makes the version out of it that the runtime asked for; this is what every plugin can read.
    assert result["cniVersion"] == "1.0.0"
    assert [ip["address"] for ip in result["ips"]] == ["10.1.0.0/32", "fd01::/128"]
    assert result["interfaces"][0]["sandbox"] == "/run/netns/c1"
    assert (await service.add(args())).result == answer.result
    await service.check(args())
    await service.del_(args())
    await service.del_(args())
    assert world.kernel.veths == {}
    error = await refused(service, "CHECK", args())
    assert error.code is CniErrorCode.UNKNOWN_CONTAINER


def garbage(network: str, *valid: str) -> CniArgs:
    """A GC: all containers that the runtime knows of in that network."""
    known = [{"containerID": container, "ifname": "eth0"} for container in valid]
    conf = {"cniVersion": "1.1.0", "name": network, "type": "coil", "cni.dev/valid-attachments": known}
    return CniArgs(path="/opt/cni/bin", stdin_data=json.dumps(conf).encode())


async def test_a_gc_detaches_what_the_runtime_has_forgotten(world: World, service: CniService) -> None:
    for container in ("c1", "c2", "c3"):
        world.kernel.namespace(container)
        await service.add(
            args(container, netns=f"/run/netns/{container}", network="other" if container == "c3" else "k8s")
        )
    await service.gc(garbage("k8s", "c1"))
    await service.check(args())
    await service.check(args("c3", netns="/run/netns/c3"))
    assert len(world.kernel.veths) == 2
    await service.gc(garbage("k8s", "c1", "c9"))
    assert len(world.kernel.veths) == 2
    await service.gc(garbage("other"))
    assert len(world.kernel.veths) == 1


async def test_a_gc_leaves_what_an_earlier_process_has_added(world: World, coild: Coild, service: CniService) -> None:
    await service.add(args())
    again = CniService((await coild.start_again()).pods)
    await again.gc(garbage("k8s"))
    await again.gc(garbage("other"))
    assert len(world.kernel.veths) == 1
    await again.add(args())
    await again.gc(garbage("k8s"))
    assert not world.kernel.veths


@pytest.mark.parametrize(
    ("stdin", "code"),
    [
        (b"{", CniErrorCode.DECODING_FAILURE),
        (b"{}", CniErrorCode.DECODING_FAILURE),
        (b'{"name": "k8s"}', CniErrorCode.INVALID_NETWORK_CONFIG),
        (b'{"name": "", "cni.dev/valid-attachments": []}', CniErrorCode.INVALID_NETWORK_CONFIG),
        (b'{"name": "k8s", "cni.dev/valid-attachments": [{"ifname": "eth0"}]}', CniErrorCode.DECODING_FAILURE),
    ],
)
async def test_a_gc_that_does_not_say_what_is_valid(
    world: World, service: CniService, stdin: bytes, code: CniErrorCode
) -> None:
    await service.add(args())
    with pytest.raises(CniError) as caught:
        await service.gc(CniArgs(stdin_data=stdin))
    assert caught.value.code is code
    assert len(world.kernel.veths) == 1


@pytest.mark.parametrize("path", ["/proc/57/ns/net", "/proc/57/task/58/ns/net"])
async def test_a_namespace_that_a_process_names_is_another_one_to_a_coild_that_does_not_see_the_nodes_processes(
    service: CniService, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    assert read_netns(args(netns=path)) == Path(path)
    monkeypatch.setattr("coild.cni.call.os.getpid", lambda: 1)
    assert read_netns(args()) == Path("/run/netns/c1")
    error = await refused(service, "ADD", args(netns=path))
    assert error.code == CniErrorCode.INVALID_ENVIRONMENT_VARIABLES
    assert path in error.msg
    assert "coild.hostPID" in error.details


@pytest.mark.parametrize(
    "path", ["/proc/self/ns/net", "/proc/1/../../run/netns/c1", "/proc/057/ns/net", "/proc/57/ns/user"]
)
async def test_a_namespace_of_coilds_own_is_refused(service: CniService, path: str) -> None:
    error = await refused(service, "ADD", args(netns=path))
    assert error.code == CniErrorCode.INVALID_ENVIRONMENT_VARIABLES


async def test_a_namespace_without_addresses_is_named(service: CniService) -> None:
    error = await refused(service, "ADD", args(namespace="lost"))
    assert error.code is CniErrorCode.TRY_AGAIN_LATER
    assert "nowhere" in error.msg
    assert "out of blocks" in error.msg


async def test_without_a_controller(world: World, service: CniService) -> None:
    world.granter.away = True
    error = await refused(service, "ADD", args(namespace="lab"))
    assert error.code is CniErrorCode.TRY_AGAIN_LATER
    assert "second" in error.msg


async def test_a_caller_that_waits_for_a_shorter_time_is_answered_before_it_gives_up(
    world: World, service: CniService
) -> None:
    world.granter.away = True
    with answered_within(2.0):
        error = await refused(service, "ADD", args(namespace="lab"))
    assert error.code is CniErrorCode.TRY_AGAIN_LATER
    assert "second" in error.msg
    assert 1 < now() < 2


@pytest.mark.parametrize("uid", ["", "3c5b"])
async def test_the_pod_that_got_no_address_is_told(coild: Coild, service: CniService, uid: str) -> None:
    cni_args = args(namespace="lost")
    if uid:
        cni_args.args["K8S_POD_UID"] = uid
    error = await refused(service, "ADD", cni_args)
    assert coild.recorder.subjects == [EventSubject("v1", "Pod", "p", namespace="lost", uid=uid)]
    assert coild.recorder.told == [("Pod", "p", "NoAddress", error.msg)]


async def test_a_del_needs_neither_namespace_nor_pod(service: CniService) -> None:
    await service.add(args())
    await service.del_(CniArgs(container_id="c1", ifname="eth0"))


async def test_a_pod_that_another_plugin_has_wired_gets_no_second_address(coild: Coild, service: CniService) -> None:
    cni_args = args()
    cni_args.args["IS_CHAINED"] = "true"
    error = await refused(service, "ADD", cni_args)
    assert error.code is CniErrorCode.INVALID_NETWORK_CONFIG
    assert "--enable-ipam=false" in error.details
    assert coild.traces == []
    # Of an own attachment the runtime hands on the result of the ADD, which makes no chain.
    await service.add(args())
    await service.check(cni_args)
    await service.del_(cni_args)
    assert coild.traces == []


async def test_a_configuration_that_is_not_text_is_the_plugins_affair(service: CniService) -> None:
    cni_args = args()
    cni_args.stdin_data = b'{"cniVersion": "\xff"}'
    assert (await service.add(cni_args)).result


@pytest.mark.parametrize(
    ("verb", "cni_args", "word"),
    [
        ("ADD", args(""), "CNI_CONTAINERID"),
        ("ADD", args("a:b"), "CNI_CONTAINERID"),
        ("ADD", args("c" * 260), "wired"),
        ("ADD", args(ifname=""), "CNI_IFNAME"),
        ("ADD", args(ifname="a/b"), "CNI_IFNAME"),
        ("ADD", args(ifname="abcdefghijklmnop"), "CNI_IFNAME"),
        ("ADD", args(netns=""), "CNI_NETNS"),
        ("ADD", args(netns="relative"), "CNI_NETNS"),
        ("ADD", args(namespace=""), "K8S_POD_NAMESPACE"),
        ("ADD", args(pod=""), "K8S_POD_NAME"),
        ("CHECK", args(""), "CNI_CONTAINERID"),
        ("CHECK", args(netns=""), "CNI_NETNS"),
        ("DEL", args(""), "CNI_CONTAINERID"),
        ("DEL", args(ifname=".."), "CNI_IFNAME"),
    ],
)
async def test_bad_arguments_change_nothing(
    world: World, coild: Coild, service: CniService, verb: str, cni_args: CniArgs, word: str
) -> None:
    error = await refused(service, verb, cni_args)
    assert error.code is CniErrorCode.INVALID_ENVIRONMENT_VARIABLES
    assert word in str(error)
    assert coild.traces == []


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (AddressUnavailableError("no block of pool x: out of blocks"), CniErrorCode.TRY_AGAIN_LATER),
        (BusyError("too many jobs"), CniErrorCode.TRY_AGAIN_LATER),
        (EgressRefusedError("no FoU"), CniErrorCode.TRY_AGAIN_LATER),
        (HostPortTakenError("pod apps/p has host port 80/TCP"), CniErrorCode.TRY_AGAIN_LATER),
        (InterfaceUnknownError("which interface has 10.1.1.33"), CniErrorCode.TRY_AGAIN_LATER),
        (EgressUnresolvedError("there is no Egress net/world"), CniErrorCode.TRY_AGAIN_LATER),
        (PodUnknownError("no answer"), CniErrorCode.TRY_AGAIN_LATER),
        (UnavailableError("away"), CniErrorCode.TRY_AGAIN_LATER),
        (ForbiddenError("no", status=403), CniErrorCode.TRY_AGAIN_LATER),
        (NotFoundError("request", status=404), CniErrorCode.TRY_AGAIN_LATER),
        (NoSuchNamespaceError("namespace apps"), CniErrorCode.UNKNOWN_CONTAINER),
        (UnknownAttachmentError("container c1"), CniErrorCode.UNKNOWN_CONTAINER),
        (NamespaceError(Path("/run/netns/c1"), "does not exist"), CniErrorCode.UNKNOWN_CONTAINER),
        (PodCheckError(("link veth0",)), CniErrorCode.INTERNAL),
        (LinkExistsError("eth0 exists"), CniErrorCode.INTERNAL),
        (KernelError(doing="x", errno=12), CniErrorCode.INTERNAL),
        (NftError(doing="x", reason="no"), CniErrorCode.INTERNAL),
        (InvalidPodError("too long"), CniErrorCode.INVALID_ENVIRONMENT_VARIABLES),
        (HandoffUnreadableError("version 9"), CniErrorCode.PORT_ANNOTATION_UNREADABLE),
        (PortGoneError("replaced"), CniErrorCode.PORT_GONE),
        (PortTypeUnknownError("no file"), CniErrorCode.PORT_TYPE_UNKNOWN),
        (BindError("status 1"), CniErrorCode.PORT_BIND_FAILED),
        (BindTimeoutError("10 s"), CniErrorCode.PORT_BIND_TIMED_OUT),
        (PortNotActiveError("30 s"), CniErrorCode.PORT_NOT_ACTIVE),
        (PodForbiddenError("403"), CniErrorCode.POD_FORBIDDEN),
        (PortInUseError("container c2"), CniErrorCode.PORT_IN_USE),
    ],
)
@pytest.mark.parametrize("verb", ["ADD", "CHECK", "DEL"])
async def test_the_code_of_every_failure(verb: str, error: Exception, code: CniErrorCode) -> None:
    caught = await refused(CniService(FailingPods(error)), verb, args())
    assert caught.code is code
    assert str(error) in str(caught), "the reason reaches the pod's event"


async def test_what_nobody_foresaw_is_not_dressed_up() -> None:
    """The server around the service logs it, with its traceback, and answers INTERNAL."""
    for error in (RuntimeError("unforeseen"), ValueError("unforeseen")):
        with pytest.raises(type(error), match="unforeseen"):
            await CniService(FailingPods(error)).add(args())


V4, V6 = IPv4Address("10.1.0.5"), IPv6Address("fd01::5")


def plan(ipv4: IPv4Address | None, ipv6: IPv6Address | None) -> PodPlan:
    return plan_pod(
        host_name=LinkName("veth01234567"),
        ifname=LinkName("eth0"),
        alias=PodAlias("default", "c1", "eth0"),
        addresses=(ipv4, ipv6),
        mtu=1500,
    )


@pytest.mark.parametrize(
    ("ipv4", "ipv6", "ips", "routes"),
    [
        (V4, None, [("10.1.0.5/32", "169.254.1.1")], [("0.0.0.0/0", "169.254.1.1")]),
        (None, V6, [("fd01::5/128", "fe80::1")], [("::/0", "fe80::1")]),
        (
            V4,
            V6,
            [("10.1.0.5/32", "169.254.1.1"), ("fd01::5/128", "fe80::1")],
            [("0.0.0.0/0", "169.254.1.1"), ("::/0", "fe80::1")],
        ),
    ],
)
def test_what_coild_answers(
    ipv4: IPv4Address | None, ipv6: IPv6Address | None, ips: list[tuple[str, str]], routes: list[tuple[str, str]]
) -> None:
    made = plan(ipv4, ipv6)
    result = json.loads(render_result(made, netns="/run/netns/c1"))
    assert result == {
        "cniVersion": "1.0.0",
        "interfaces": [
            {"name": "eth0", "mac": made.pod.mac, "sandbox": "/run/netns/c1"},
            {"name": "veth01234567", "mac": made.host.mac},
        ],
        "ips": [{"interface": 0, "address": address, "gateway": gateway} for address, gateway in ips],
        "routes": [{"dst": network, "gw": gateway} for network, gateway in routes],
        "dns": {},
    }


PORT = plan_port(
    host_name=LinkName("veth01234567"),
    ifname=LinkName("eth0"),
    alias=PodAlias("@port", "c1", "eth0"),
    mac=MacAddress("fa:16:3e:00:00:15"),
    assignments=[
        Assignment(interface=IPv4Interface("10.0.0.15/16"), gateway=IPv4Address("10.0.0.1")),
        Assignment(interface=IPv6Interface("fd00::15/64"), gateway=None),
    ],
    mtu=1450,
    nameservers=[IPv4Address("10.96.0.10")],
)


def test_what_coild_answers_for_a_port() -> None:
    result = json.loads(render_result(PORT, netns="/run/netns/c1"))
    assert result["interfaces"][0]["mac"] == "fa:16:3e:00:00:15"
    assert result["ips"] == [
        {"interface": 0, "address": "10.0.0.15/16", "gateway": "10.0.0.1"},
        {"interface": 0, "address": "fd00::15/64"},
    ]
    assert result["routes"] == [{"dst": "0.0.0.0/0", "gw": "10.0.0.1"}]
    assert result["dns"] == {"nameservers": ["10.96.0.10"]}


@pytest.mark.parametrize("version", ["0.1.0", "0.2.0"])
def test_what_the_first_runtimes_read_of_a_port(version: str) -> None:
    assert json.loads(convert_result(render_result(PORT, netns="/run/netns/c1"), version)) == {
        "cniVersion": version,
        "ip4": {
            "ip": "10.0.0.15/16",
            "gateway": "10.0.0.1",
            "routes": [{"dst": "0.0.0.0/0", "gw": "10.0.0.1"}],
        },
        "ip6": {"ip": "fd00::15/64", "routes": []},
        "dns": {"nameservers": ["10.96.0.10"]},
    }


async def test_cni_args_reach_the_source() -> None:
    asked: list[AddRequest] = []

    class Asked(PodEngine):
        def __init__(self) -> None:
            pass

        async def add(self, request: AddRequest) -> PodPlan:
            asked.append(request)
            return PORT

    call = args()
    call.args["PORT_UUID"] = "u"
    await CniService(Asked()).add(call)
    assert asked[0].arguments["PORT_UUID"] == "u"


@pytest.mark.parametrize("version", ["0.3.0", "0.3.1", "0.4.0", "1.0.0"])
def test_what_the_runtime_reads(version: str) -> None:
    answer = render_result(plan(V4, V6), netns="/run/netns/c1")
    result: dict[str, Any] = json.loads(convert_result(answer, version))
    assert result["cniVersion"] == version
    families = [ip.get("version") for ip in result["ips"]]
    assert families == (["4", "6"] if version.startswith("0.") else [None, None])
    assert [ip["address"] for ip in result["ips"]] == ["10.1.0.5/32", "fd01::5/128"]


# --- portMappings


@pytest.mark.parametrize(
    ("entry", "mapping"),
    [
        ({"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}, ("tcp", 8080, 80, None)),
        ({"hostPort": 53, "containerPort": 5353, "protocol": "UDP", "hostIP": ""}, ("udp", 53, 5353, None)),
        ({"hostPort": 53, "protocol": "sctp", "hostIP": "10.0.0.1"}, ("sctp", 53, 53, "10.0.0.1")),
        ({"hostPort": 53, "containerPort": 1, "hostIP": "::", "name": "dns"}, ("tcp", 53, 1, "::")),
        # As containerd writes it.
        ({"HostPort": 53, "ContainerPort": 1, "Protocol": "udp", "HostIP": "::"}, ("udp", 53, 1, "::")),
    ],
)
def test_a_port_mapping(entry: dict[str, Any], mapping: tuple[str, int, int, str | None]) -> None:
    [read] = read_port_mappings(args(ports=[entry]))
    address = None if read.host_address is None else str(read.host_address)
    assert (read.protocol, read.host_port, read.container_port, address) == mapping


def test_no_port_mappings() -> None:
    assert read_port_mappings(args()) == read_port_mappings(args(ports=[])) == ()
    assert read_port_mappings(args(ports=[{"hostPort": 0, "containerPort": 80}])) == ()
    for conf in (b'{"runtimeConfig": null}', b'{"runtimeConfig": {"portMappings": null, "bandwidth": {}}}'):
        assert read_port_mappings(CniArgs(stdin_data=conf)) == ()


@pytest.mark.parametrize(
    ("entry", "code"),
    [
        ({"hostPort": "80"}, CniErrorCode.DECODING_FAILURE),
        ({"hostPort": 65536}, CniErrorCode.DECODING_FAILURE),
        ({"hostPort": 80, "protocol": "icmp"}, CniErrorCode.INVALID_NETWORK_CONFIG),
        ({"hostPort": 80, "hostIP": "localhost"}, CniErrorCode.INVALID_NETWORK_CONFIG),
    ],
)
async def test_a_bad_port_mapping_changes_nothing(
    coild: Coild, service: CniService, entry: dict[str, Any], code: CniErrorCode
) -> None:
    error = await refused(service, "ADD", args(ports=[entry]))
    assert error.code is code
    assert coild.traces == []


async def test_host_ports_are_asked_for_unless_another_plugin_has_wired_the_pod(world: World) -> None:
    asked: list[AddRequest] = []

    class Pods(FailingPods):
        async def add(self, request: AddRequest) -> PodPlan:
            asked.append(request)
            raise self.error

    for chained in (False, True):
        service = CniService(Pods(InvalidPodError("")), chained=chained)
        cni_args = args(ports=[{"hostPort": 80}])
        cni_args.args["IS_CHAINED"] = str(chained).lower()
        await refused(service, "ADD", cni_args)
    assert [len(request.ports) for request in asked] == [1, 0]


async def test_status_fails_with_the_reason_while_no_pod_could_be_added() -> None:
    reasons: list[str | None] = ["subnet-1 has no free address", None]
    service = CniService(FailingPods(AssertionError()), obstacle=lambda: reasons.pop(0))
    with pytest.raises(CniError, match="subnet-1 has no free address") as refused:
        await service.status(CniArgs())
    assert refused.value.code is CniErrorCode.NOT_AVAILABLE
    await service.status(CniArgs())
