"""A cluster is removed from OpenStack: whole, in any state, and nothing of anybody else."""

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any, NoReturn

import pytest
from prometheus_client import CollectorRegistry

from coil.crd.builtin import NAMESPACES, PODS, SERVICES
from coil.crd.names import NEUTRON_FINALIZER
from coil.kube.errors import ApiError, ForbiddenError, UnavailableError
from coil.kube.lease_lock import LeaseLock
from coil.manager.claim import LeaseClaim
from coil.manager.election import LeaderElector, Watchdog
from coil.neutron.balancer import LoadBalancer, LoadBalancerId
from coil.neutron.handoff import ANNOTATION_PORT
from coil.neutron.identity import ClusterId, Identity, Kind
from coil.neutron.resource import (
    FloatingIp,
    FloatingIpId,
    Network,
    NetworkId,
    Port,
    PortId,
    Router,
    RouterId,
    SecurityGroup,
    SecurityGroupId,
)
from coil.openstack import error as openstack
from coil.reconcile.metric import ReconcileMetrics
from coil_raven.cleanup import LEASE_WAIT, Cleanup, Clock, LeaderError, while_leading
from coil_raven.kubernetes_removal import KubernetesRemoval
from coil_raven.openstack_removal import OpenStackRemoval
from coil_raven.remnant import Cause, Deeds
from tests.coil.kube.memory_api import Call, MemoryApi, MemoryClient, Moment
from tests.coil.manager.replica import LOG
from tests.coil.openstack.memory_neutron import MemoryNeutron
from tests.coil.openstack.memory_octavia import MemoryOctavia
from tests.coil.reconcile.virtual_time import run_virtual
from tests.coil_raven.life import CLUSTER, add_namespace, add_pod
from tests.coil_raven.replica import RavenReplica
from tests.coil_raven.service_life import CLASS, add_service, put_endpoints

OTHER = ClusterId("other")


class Scene:
    """A cluster that coil-raven has brought into OpenStack, beside others' objects. Octavia works while time passes."""

    def __init__(self) -> None:
        self.api = MemoryApi()
        self.neutron = MemoryNeutron()
        self.octavia = MemoryOctavia(neutron=self.neutron)
        self.public = self.neutron.add_external("public").id
        given = FloatingIp(
            id=FloatingIpId("fip-given"), floating_ip_address="192.0.2.200", floating_network_id=self.public
        )
        self.neutron.put("floatingips", given)
        self.said: list[str] = []
        self.before: dict[str, Any] = {}
        self.settles = True

    async def build(self, *, router: RouterId | None = None) -> None:
        """Two namespaces with pods, two Services with a floating IP each, one of them an administrator's."""
        client = MemoryClient(self.api)
        replica = RavenReplica(client, self.neutron, self.octavia, public=self.public, router=router)
        for namespace in ("default", "shop"):
            add_namespace(self.api, namespace)
            for number in range(3):
                add_pod(self.api, f"web-{number}", namespace=namespace)
        add_service(self.api, "web", type="LoadBalancer")
        put_endpoints(self.api, ["10.0.0.7"])
        add_service(
            self.api,
            "given",
            clusterIP="10.96.0.6",
            clusterIPs=["10.96.0.6"],
            type="LoadBalancer",
            loadBalancerIP="192.0.2.200",
        )
        async with replica.term():
            for _ in range(400):
                replica.look()
                await asyncio.sleep(0.5)
                self.octavia.settle()
                if self.complete():
                    break
        assert self.complete()

    def complete(self) -> bool:
        services, pods = self.api.all(SERVICES), self.api.all(PODS)
        return all(each.status.load_balancer.ingress for each in services) and all(
            ANNOTATION_PORT in each.metadata.annotations for each in pods
        )

    def add_others(self) -> None:
        """Another cluster's, an administrator's and a tenant's; names that are nearly ours."""
        near = ("coil:stage:net", "coil:stage:unknown:uid", "Coil:stage:net:uid", "coil:stage2:net:uid")
        for number, name in enumerate((*near, Identity(OTHER, Kind.NETWORK, "uid").name)):
            self.neutron.put("networks", Network(id=NetworkId(f"net-{number}"), name=name, tags=("coil:stage",)))
            self.neutron.put("security-groups", SecurityGroup(id=SecurityGroupId(f"sg-{number}"), name=name))
        self.neutron.put("routers", Router(id=RouterId("rtr"), name=Identity(OTHER, Kind.ROUTER, "cluster").name))
        # A port with our name, which is not one of a pod; and one of another cluster's pod.
        for number, (name, owner) in enumerate(
            (
                (Identity(CLUSTER, Kind.PORT, "uid").name, "compute:nova"),
                (Identity(OTHER, Kind.PORT, "uid").name, "compute:kuryr"),
            )
        ):
            port = Port(
                id=PortId(f"port-{number}"),
                name=name,
                network_id=NetworkId("net-0"),
                mac_address="fa:16:3e:00:00:98",
                device_owner=owner,
            )
            self.neutron.put("ports", port)
        other = LoadBalancer(
            id=LoadBalancerId("lb-other"),
            name=Identity(OTHER, Kind.LOAD_BALANCER_IPV4, "uid").name,
            vip_port_id=PortId("port-0"),
            provisioning_status="ACTIVE",
        )
        self.octavia.put(other)
        for name, description in (("fip-free", ""), ("fip-other", Identity(OTHER, Kind.FLOATING_IP, "uid").name)):
            floating_ip = FloatingIp(
                id=FloatingIpId(name),
                description=description,
                floating_ip_address=f"192.0.2.{len(name)}",
                floating_network_id=self.public,
                port_id=PortId("port-0"),
            )
            self.neutron.put("floatingips", floating_ip)

    def openstack(self) -> dict[str, Any]:
        """Everything in OpenStack, by ID."""
        return {**self.neutron.everything(), **self.octavia.everything()}

    def cleanup(
        self,
        client: MemoryClient | None = None,
        *,
        balancers: bool = True,
        router: str = "",
        cluster: ClusterId = CLUSTER,
    ) -> Cleanup:
        deeds = Deeds(self.said.append)
        return Cleanup(
            OpenStackRemoval(
                self.neutron,
                self.octavia,
                cluster=cluster,
                router=router,
                balancers=balancers,
                concurrency=4,
                deeds=deeds,
            ),
            KubernetesRemoval(client or MemoryClient(self.api), balancer_class=CLASS, balancers=balancers, deeds=deeds),
            self.neutron,
            deeds=deeds,
            clock=Clock(now=asyncio.get_running_loop().time, sleep=self.sleep, random=lambda: 0.0),
        )

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        if self.settles:
            self.octavia.settle()

    def is_clean(self) -> bool:
        """Whether Kubernetes' objects have nothing of coil-raven's."""
        return (
            all(NEUTRON_FINALIZER not in each.metadata.finalizers for each in self.api.all(NAMESPACES))
            and all(NEUTRON_FINALIZER not in each.metadata.finalizers for each in self.api.all(SERVICES))
            and all(not each.status.load_balancer.ingress for each in self.api.all(SERVICES))
            and all(ANNOTATION_PORT not in each.metadata.annotations for each in self.api.all(PODS))
        )


def play(script: Callable[[Scene], Awaitable[None]]) -> None:
    """Run it in virtual time, in a scene with others' objects and a whole cluster."""

    async def main() -> None:
        scene = Scene()
        scene.add_others()
        before = scene.openstack()
        await scene.build()
        assert len(scene.openstack()) > len(before) + 20
        scene.before = before
        await script(scene)

    run_virtual(main)


async def clean_up(scene: Scene) -> None:
    cleanup = scene.cleanup()
    await cleanup.run()
    assert cleanup.remnants == ()
    assert scene.openstack() == scene.before
    assert scene.is_clean()


def test_nothing_is_left_of_a_cluster_and_everything_of_others() -> None:
    async def script(scene: Scene) -> None:
        await clean_up(scene)
        assert len(scene.api.all(PODS)) == 6, "Kubernetes' own objects stay"
        assert len(scene.api.all(NAMESPACES)) == len(scene.api.all(SERVICES)) == 2
        told = " | ".join(scene.said)
        assert "deleted floating IP 192.0.2.1 " in told
        assert "unbound floating IP 192.0.2.200 " in told
        assert "(Service default/web)" in told
        assert "removed finalizer of Namespace shop" in told

    play(script)


def test_a_second_time_nothing_is_written() -> None:
    async def script(scene: Scene) -> None:
        await clean_up(scene)
        for service in (scene.neutron, scene.octavia):
            service.calls.clear()
        scene.said.clear()
        client = MemoryClient(scene.api)
        cleanup = scene.cleanup(client)
        await cleanup.run()
        assert (cleanup.remnants, scene.said) == ((), [])
        assert (scene.neutron.writes(), scene.octavia.writes(), client.writes()) == ([], [], [])

    play(script)


@pytest.mark.parametrize("moment", Moment)
def test_one_that_is_killed_at_each_call_is_gone_on_with(moment: Moment) -> None:
    """At the first call, then by the next one at its second call, and so on."""

    async def script(scene: Scene) -> None:
        runs = 0
        killed = True
        while killed:
            runs += 1
            killed = await run_until_killed(scene, at=runs, moment=moment)
            scene.octavia.settle()
        assert runs > 15
        for service in (scene.neutron, scene.octavia):
            service.gate = turn
        await clean_up(scene)

    play(script)


async def turn(_call: str, _moment: Moment) -> None:
    await asyncio.sleep(0)


async def run_until_killed(scene: Scene, *, at: int, moment: Moment) -> bool:
    """Whether it was killed, which it is at the call of that number, to OpenStack or to the API server."""
    left = at
    stopped: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def gate(_call: object, now: Moment) -> None:
        nonlocal left
        await asyncio.sleep(0)
        if now is not moment:
            return
        left -= 1
        if left == 0:
            stopped.set_result(None)
        if left <= 0:
            await asyncio.get_running_loop().create_future()

    for service in (scene.neutron, scene.octavia):
        service.gate = gate
    task = asyncio.create_task(scene.cleanup(MemoryClient(scene.api, gate)).run())
    await asyncio.wait({task, stopped}, return_when=asyncio.FIRST_COMPLETED)
    killed = not task.done()
    task.cancel()
    await asyncio.wait({task})
    stopped.cancel()
    return killed


ERRORS = (
    openstack.ThrottledError("call", "429", "too many"),
    openstack.UnavailableError("call", "503", "away"),
    openstack.ConflictError("call", "412", "changed"),
    openstack.ImmutableError("call", "409", "immutable"),
)


@pytest.mark.parametrize("seed", range(4))
def test_calls_that_fail_are_repeated(seed: int) -> None:
    """A third of all calls is refused, a tenth takes place without an answer; the API server refuses a tenth."""

    async def script(scene: Scene) -> None:
        random = Random(seed)

        async def gate(call: str, moment: Moment) -> None:
            await asyncio.sleep(0)
            if moment is Moment.BEFORE and random.random() < 0.33:
                raise random.choice(ERRORS)
            if moment is Moment.AFTER and random.random() < 0.1:
                raise openstack.UnavailableError(call, "504", "the answer was lost")

        async def api_gate(_call: Call, _moment: Moment) -> None:
            if random.random() < 0.1:
                raise UnavailableError("etcd has no leader", status=503)

        for service in (scene.neutron, scene.octavia):
            service.gate = gate
        cleanup = scene.cleanup(MemoryClient(scene.api, api_gate))
        await cleanup.run()
        assert cleanup.remnants == ()
        assert scene.openstack() == scene.before
        assert scene.is_clean()

    play(script)


def test_openstack_that_is_away_ends_it_in_time_and_the_finalizers_stay() -> None:
    async def script(scene: Scene) -> None:
        async def away(call: str, _moment: Moment) -> None:
            raise openstack.UnavailableError(call, "503", "Neutron is away")

        scene.neutron.gate = away
        client = MemoryClient(scene.api)
        began = asyncio.get_running_loop().time()
        cleanup = scene.cleanup(client)
        await cleanup.run()
        assert asyncio.get_running_loop().time() - began <= Cause.UNANSWERED.patience
        (remnant,) = cleanup.remnants
        assert (remnant.cause, "Neutron is away" in str(remnant)) == (Cause.UNANSWERED, True)
        assert client.writes() == []
        scene.neutron.gate = turn
        await clean_up(scene)

    play(script)


def test_a_missing_right_is_told_at_once() -> None:
    async def script(scene: Scene) -> None:
        async def gate(call: str, _moment: Moment) -> None:
            if call == "delete network":
                raise openstack.DeniedError(call, "PolicyNotAuthorized", "rule:delete_network is disallowed")

        scene.neutron.gate = gate
        client = MemoryClient(scene.api)
        cleanup = scene.cleanup(client)
        await cleanup.run()
        kept = [each for each in cleanup.remnants if each.cause is Cause.REFUSED]
        assert len(kept) == len(cleanup.remnants) == 3, "two namespaces' and the one of cluster IPs"
        assert all("rule:delete_network" in str(each) for each in kept)
        assert client.writes() == [], "the finalizers are still needed"

    play(script)


def test_a_load_balancer_that_stays_pending_is_named() -> None:
    async def script(scene: Scene) -> None:
        scene.settles = False
        client = MemoryClient(scene.api)
        cleanup = scene.cleanup(client)
        await cleanup.run()
        reasons = {each.what.split(" ")[0]: each for each in cleanup.remnants}
        assert {each.cause for each in cleanup.remnants} == {Cause.WORKING, Cause.IN_USE}
        assert "PENDING_DELETE" in str(reasons["load"])
        assert "load balancers have their addresses on it" in str(reasons["network"])
        assert client.writes() == []
        scene.octavia.settle()
        scene.settles = True
        await clean_up(scene)

    play(script)


def test_a_load_balancer_that_octavia_fails_to_delete() -> None:
    async def script(scene: Scene) -> None:
        scene.settles = False

        async def sleep(seconds: float) -> None:
            await asyncio.sleep(seconds)
            scene.octavia.settle(failed=True)

        scene.sleep = sleep  # type: ignore[method-assign]
        cleanup = scene.cleanup()
        await cleanup.run()
        assert {each.cause for each in cleanup.remnants if each.what.startswith("load")} == {Cause.WORKING}
        assert len([line for line in scene.said if line.startswith("began to delete")]) == 2, "said once"

    play(script)


def test_what_is_somebody_elses_keeps_its_network_and_no_finalizer() -> None:
    async def script(scene: Scene) -> None:
        uid = scene.api.get(NAMESPACES, "shop").metadata.uid
        (network,) = await scene.neutron.networks(name=Identity(CLUSTER, Kind.NETWORK, uid).name)
        (group,) = await scene.neutron.security_groups(name=Identity(CLUSTER, Kind.SECURITY_GROUP, uid).name)
        machine = Port(
            id=PortId("machine"),
            name="a virtual machine",
            network_id=network.id,
            mac_address="fa:16:3e:00:00:97",
            device_owner="compute:nova",
            security_groups=frozenset({group.id}),
        )
        scene.neutron.put("ports", machine)
        cleanup = scene.cleanup()
        await cleanup.run()
        assert {each.what.split(" ")[0]: each.cause for each in cleanup.remnants} == {
            "network": Cause.FOREIGN,
            "security": Cause.IN_USE,
            "router": Cause.IN_USE,
        }
        assert any("machine (a virtual machine, compute:nova)" in str(each) for each in cleanup.remnants)
        assert await scene.neutron.port(machine.id) == machine
        assert scene.is_clean()
        await scene.neutron.delete_port(machine.id)
        await clean_up(scene)

    play(script)


@pytest.mark.parametrize("given", [True, False])
def test_the_router_of_an_administrator(given: bool) -> None:
    """Named, it loses its interfaces; not named, it is somebody else's."""

    async def main() -> None:
        scene = Scene()
        router = scene.neutron.put("routers", Router(id=RouterId("given"), name="of the administrator"))
        scene.before = scene.openstack()
        await scene.build(router=router.id)
        assert len(await scene.neutron.routers()) == 1
        cleanup = scene.cleanup(router=router.name if given else "")
        await cleanup.run()
        if given:
            assert (cleanup.remnants, scene.openstack()) == ((), scene.before)
        else:
            assert {each.cause for each in cleanup.remnants} == {Cause.FOREIGN}
            assert len(await scene.neutron.ports(device_id=router.id)) == 5, "its interfaces"

    run_virtual(main)


def test_a_wrong_name_of_the_cluster_removes_no_finalizer() -> None:
    async def script(scene: Scene) -> None:
        client = MemoryClient(scene.api)
        scene.neutron.calls.clear()
        cleanup = scene.cleanup(client, cluster=ClusterId("wrong"))
        await cleanup.run()
        assert {each.cause for each in cleanup.remnants} == {Cause.REFUSED}
        assert all("--cluster-name" in str(each) for each in cleanup.remnants)
        assert (scene.neutron.writes(), client.writes()) == ([], [])
        await clean_up(scene)

    play(script)


def test_without_load_balancers_octavia_is_not_asked() -> None:
    async def main() -> None:
        scene = Scene()
        add_namespace(scene.api, "default")
        replica = RavenReplica(MemoryClient(scene.api), scene.neutron, scene.octavia, "--service-cidrs=")
        scene.before = scene.openstack()
        async with replica.term():
            await replica.until(lambda: len(scene.openstack()) > 6)
        client = MemoryClient(scene.api)
        client.refusals["list", "services"] = ForbiddenError("services is forbidden", status=403)
        cleanup = scene.cleanup(client, balancers=False)
        await cleanup.run()
        assert (cleanup.remnants, scene.openstack(), scene.octavia.calls) == ((), scene.before, [])
        assert scene.is_clean()

    run_virtual(main)


def test_load_balancers_are_found_though_they_are_switched_off_by_now() -> None:
    async def script(scene: Scene) -> None:
        cleanup = scene.cleanup(balancers=False)
        await cleanup.run()
        assert (cleanup.remnants, scene.openstack()) == ((), scene.before)
        assert scene.is_clean()

    play(script)


@pytest.mark.parametrize("error", [ForbiddenError("no", status=403), UnavailableError("away", status=503)])
def test_an_api_server_that_refuses_is_told(error: ApiError) -> None:
    async def script(scene: Scene) -> None:
        client = MemoryClient(scene.api)
        client.refusals["patch", "namespaces"] = error
        cleanup = scene.cleanup(client)
        await cleanup.run()
        assert scene.openstack() == scene.before
        assert {each.what for each in cleanup.remnants} == {
            "finalizer of Namespace default",
            "finalizer of Namespace shop",
        }
        await clean_up(scene)

    play(script)


class Replica:
    """One that contends for the Lease."""

    def __init__(self, api: MemoryApi, name: str) -> None:
        lock = LeaseLock(client=MemoryClient(api), namespace="kube-system", name="coil-raven")
        clock = asyncio.get_running_loop().time
        self.claim = LeaseClaim(lock, identity=name, clock=clock, random=lambda: 0.0)
        self.watchdog = Watchdog(clock=lambda: 0.0, fatal=lambda reason: None)
        self.elector = LeaderElector(
            name, self.claim, watchdog=self.watchdog, metrics=ReconcileMetrics(CollectorRegistry()), log=LOG, fatal=die
        )


def die(reason: str) -> NoReturn:
    raise AssertionError(reason)


async def forever() -> None:
    await asyncio.get_running_loop().create_future()


def test_it_is_refused_while_a_leader_holds_the_lease() -> None:
    async def main() -> None:
        api = MemoryApi()
        leader, mine = Replica(api, "leader"), Replica(api, "mine")
        done: list[str] = []

        async def work() -> None:
            done.append("work")

        leading = asyncio.create_task(leader.elector.run(forever))
        await asyncio.sleep(20.0)
        with pytest.raises(LeaderError, match="leader"):
            await while_leading(mine.elector, work, leader=lambda: mine.claim.rival, wait=LEASE_WAIT)
        assert done == []
        assert not leading.done()
        leading.cancel()
        await asyncio.wait({leading})
        # It has given the Lease back.
        await while_leading(mine.elector, work, leader=lambda: mine.claim.rival, wait=LEASE_WAIT)
        assert done == ["work"]
        for replica in (leader, mine):
            replica.watchdog.close()

    run_virtual(main)


def test_no_other_leads_while_it_works_and_one_may_after_it() -> None:
    async def main() -> None:
        api = MemoryApi()
        mine, other = Replica(api, "mine"), Replica(api, "other")
        events: list[str] = []

        async def work() -> None:
            events.append("begins")
            await asyncio.sleep(300.0)
            events.append("ends")

        async def lead() -> None:
            events.append("another leads")
            await forever()

        cleaning = asyncio.create_task(while_leading(mine.elector, work, leader=str, wait=LEASE_WAIT))
        await asyncio.sleep(1.0)
        standby = asyncio.create_task(other.elector.run(lead))
        await cleaning
        await asyncio.sleep(60.0)
        assert events == ["begins", "ends", "another leads"]
        standby.cancel()
        await asyncio.wait({standby})
        for replica in (mine, other):
            replica.watchdog.close()

    run_virtual(main)


def test_what_the_work_raises_is_raised_and_the_lease_given_back() -> None:
    async def main() -> None:
        api = MemoryApi()
        mine = Replica(api, "mine")

        async def work() -> None:
            raise RuntimeError("broken")

        with pytest.raises(RuntimeError, match="broken"):
            await while_leading(mine.elector, work, leader=str, wait=LEASE_WAIT)
        lease = await LeaseLock(client=MemoryClient(api), namespace="kube-system", name="coil-raven").read()
        assert lease is not None
        assert lease.spec.holder_identity == ""
        mine.watchdog.close()

    run_virtual(main)
