"""What is tried: pods, nodes, Services, host ports, names, and the ways out of the cluster.

    plan_pods ─► Site.start_pods ─► checks_of … ─► ask (one pods/exec per client) ─► documents, as they come

A packet keeps its source between pods, and to a Service; outside it is seen as `kubectl coil trace` says, from objects
and nodes, which is never the pod's own address where an Egress or a floating address is its way.
"""

import asyncio
import random
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Final

import msgspec

from coil.crd.builtin import INTERNAL_IP, SERVICES, Service
from coil.crd.egress import EGRESSES
from coil.crd.egress_gateway import EGRESS_GATEWAYS
from coil.crd.egress_gateway_policy import EGRESS_GATEWAY_POLICIES, EgressGatewayPolicy
from coil.crd.resource import NamespacedName
from coil.kernel.family import IPAddress
from coil.kube.errors import ApiError, NotFoundError
from coil.page.probe_answer import ProbeAnswer, Scheme, target_of
from kubectl_coil.cluster import ExecError
from kubectl_coil.connectivity.check import Check, failed, skipped
from kubectl_coil.connectivity.document import CheckDocument, Outcome
from kubectl_coil.connectivity.resources import CandidateNode
from kubectl_coil.connectivity.site import CONTAINER, LABEL, PORT, PodPlan, Site
from kubectl_coil.node_reader import ExecNodeReader
from kubectl_coil.trace.cluster_view import ClusterView
from kubectl_coil.trace.document import TraceDocument, Verdict
from kubectl_coil.trace.walk import Walk

CLIENT: Final = "client"
NEAR: Final = "near"
FAR: Final = "far"
HOST_PORT: Final = "host-port"
MOST: Final = 5
"""Egresses, and gateways, that are tried."""
PROBE_SECONDS: Final = 5.0
"""For one answer."""
_EXEC_SECONDS: Final = 60.0
_LIMIT: Final = 1 << 20
_HOST_PORTS: Final = range(40000, 50000)
_KUBELET_PORT: Final = 10250
_POLICY_PAUSE: Final = 0.5
_SETTLE_SECONDS: Final = 15.0
"""For kube-proxy to serve a new Service, and for a node to send by a new policy."""
_SETTLE_PAUSE: Final = 0.5
_VERSIONS: Final = (4, 6)
_API_SERVER: Final = NamespacedName("default", "kubernetes")
_DNS: Final = NamespacedName("kube-system", "kube-dns")


@dataclass(frozen=True, slots=True)
class OutsideServer:
    """Where `coil-connectivity-probe serve` runs, outside of the cluster."""

    address: IPAddress
    port: int


@dataclass(slots=True)
class Tour:
    """Of one site. `outside` has one server of a family at most; `seconds` bounds each wait for pods and policies."""

    site: Site
    nodes: Sequence[CandidateNode]
    """The first is the client's, the second another one, if there is one."""
    outside: Sequence[OutsideServer] = ()
    seconds: float = 120.0
    _host_port: int = field(default_factory=lambda: random.choice(_HOST_PORTS))  # noqa: S311 - not a secret

    async def run(self) -> AsyncIterator[CheckDocument]:
        """One document after the other, as soon as it is known. Raises ApiError where the site cannot be made."""
        await self.site.start_pods(self._plan_pods(), seconds=self.seconds)
        for name, reason in self.site.troubles.items():
            yield failed(f"the pod {name} starts", reason)
        if CLIENT not in self.site.ready:
            return
        async for document in self._ask([*self._among_pods(), *self._to_nodes(), *await self._to_services()]):
            yield document
        for document in await self._what_is_missing():
            yield document
        async for document in self._outside():
            yield document

    # --- inside of the cluster

    def _plan_pods(self) -> list[PodPlan]:
        here, *elsewhere = (node.metadata.name for node in self.nodes)
        plans = [PodPlan(name=CLIENT, node=here), PodPlan(name=NEAR, node=here, serves=True)]
        if elsewhere:
            plans.append(PodPlan(name=FAR, node=elsewhere[0], serves=True))
        plans.append(PodPlan(name=HOST_PORT, node=[here, *elsewhere][-1], host_port=self._host_port))
        return plans

    def _among_pods(self) -> Iterator[Check]:
        for version, own in self._own_addresses():
            for name, where in ((NEAR, "a pod on its node"), (FAR, "a pod on another node")):
                address = self._address(name, version)
                if address is None:
                    continue
                for scheme in (Scheme.TCP, Scheme.UDP):
                    yield Check(
                        name=f"{where}, {scheme.upper()}",
                        client=CLIENT,
                        target=target_of(scheme, str(address), PORT),
                        version=version,
                        seen_as={str(own)},
                    )
                yield Check(
                    name=f"{where} refuses where nobody listens",
                    client=CLIENT,
                    target=target_of(Scheme.CONNECT, str(address), PORT + 1),
                    version=version,
                    error="ECONNREFUSED",
                )

    def _to_nodes(self) -> Iterator[Check]:
        for node, where in zip(self.nodes, ("its node", "another node"), strict=False):
            port = node.status.daemon_endpoints.kubelet_endpoint.port or _KUBELET_PORT
            for version, _ in self._own_addresses():
                if (address := _node_address(node, version)) is not None:
                    target = target_of(Scheme.CONNECT, address, port)
                    yield Check(name=f"{where}: its kubelet", client=CLIENT, target=target, version=version)
        for version, _ in self._own_addresses():
            # Not its source: where the pod is on another node, that may masquerade.
            if HOST_PORT in self.site.ready and (address := _node_address(self.nodes[-1], version)) is not None:
                yield Check(
                    name="a host port",
                    client=CLIENT,
                    target=target_of(Scheme.TCP, address, self._host_port),
                    version=version,
                )

    async def _to_services(self) -> list[Check]:
        checks = []
        service = await self.site.start_service()
        for address in _cluster_addresses(service):
            own = self.site.address(CLIENT, version=address.version)
            for scheme in (Scheme.TCP, Scheme.UDP):
                checks.append(
                    Check(
                        name=f"a Service, {scheme.upper()}",
                        client=CLIENT,
                        target=target_of(scheme, str(address), PORT),
                        version=address.version,
                        seen_as={str(own)},
                        settles_in=_SETTLE_SECONDS,
                    )
                )
        if (api := await self._service(_API_SERVER)) is not None:
            for address in _cluster_addresses(api):
                target = target_of(Scheme.CONNECT, str(address), api.spec.ports[0].port)
                checks.append(
                    Check(name="the API server's Service", client=CLIENT, target=target, version=address.version)
                )
        if await self._service(_DNS) is not None:
            target = target_of(Scheme.NAME, "kubernetes.default.svc")
            checks.append(Check(name="names of Services", client=CLIENT, target=target))
        return checks

    async def _what_is_missing(self) -> list[CheckDocument]:
        found = []
        if len(self.nodes) == 1:
            found.append(skipped("a pod on another node", "no other node is ready and takes pods"))
        if await self._service(_DNS) is None:
            found.append(skipped("names of Services", f"there is no Service {_DNS}"))
        if not self.outside:
            found.append(skipped("outside of the cluster", "no server there is given (--outside)"))
        return found

    # --- out of the cluster

    async def _outside(self) -> AsyncIterator[CheckDocument]:
        if not self.outside:
            return
        async for document in self._ask(await self._ways_out(CLIENT, "outside", None)):
            yield document
        node = self.nodes[0].metadata.name
        egresses = await self._list_egresses()
        plans = {f"egress-{number}": egress for number, egress in enumerate(egresses)}
        await self.site.start_pods(
            [PodPlan(name=name, node=node, egress=egress) for name, egress in plans.items()], seconds=self.seconds
        )
        for name, egress in plans.items():
            what = f"outside by Egress {egress}"
            if name in self.site.troubles:
                yield failed(what, f"its pod does not start: {self.site.troubles[name]}")
                continue
            async for document in self._ask(await self._ways_out(name, what, None)):
                yield document
        async for document in self._by_gateways(node):
            yield document

    async def _by_gateways(self, node: str) -> AsyncIterator[CheckDocument]:
        try:
            gateways = [each.metadata.name for each in await self.site.cluster.list(EGRESS_GATEWAYS)][:MOST]
        except NotFoundError:
            return
        names = {f"gateway-{number}": gateway for number, gateway in enumerate(gateways)}
        await self.site.start_pods([PodPlan(name=name, node=node) for name in names], seconds=self.seconds)
        for name, gateway in names.items():
            what = f"outside by EgressGateway {gateway}"
            if name in self.site.troubles:
                yield failed(what, f"its pod does not start: {self.site.troubles[name]}")
                continue
            try:
                policy = await self._place_policy(name, gateway)
            except ApiError as error:
                yield failed(what, str(error))
                continue
            if policy is None:
                yield failed(what, f"no node carries its address after {self.seconds:g} s")
                continue
            async for document in self._ask(await self._ways_out(name, what, policy)):
                yield document

    async def _place_policy(self, name: str, gateway: str) -> EgressGatewayPolicy | None:
        """One for the pod of that name, and for nothing but the servers outside; None if it is not placed in time."""
        namespace = self.site.namespace
        document = {
            "metadata": {"name": name},
            "spec": {
                "egressGatewayName": gateway,
                "appliedTo": {"podSelector": {"matchLabels": {LABEL: name}}},
                "destSubnet": [f"{each.address}/{each.address.max_prefixlen}" for each in self.outside],
            },
        }
        await self.site.cluster.create(EGRESS_GATEWAY_POLICIES, document, namespace=namespace)
        try:
            async with asyncio.timeout(self.seconds):
                while True:
                    policy = await self.site.cluster.get(EGRESS_GATEWAY_POLICIES, name, namespace=namespace)
                    if policy.status.node and (policy.status.eip.ipv4 or policy.status.eip.ipv6):
                        return policy
                    await asyncio.sleep(_POLICY_PAUSE)
        except TimeoutError:
            return None

    async def _ways_out(self, client: str, name: str, policy: EgressGatewayPolicy | None) -> list[Check]:
        checks = []
        for server in self.outside:
            version = server.address.version
            if self.site.address(client, version=version) is None:
                continue
            eip = "" if policy is None else (policy.status.eip.ipv4 if version == 4 else policy.status.eip.ipv6)
            told = await self._trace(client, server)
            seen_as = {eip} if eip else {told.source_seen} if _is_known(told) else set()
            target = target_of(Scheme.TCP, str(server.address), server.port)
            checks.append(
                Check(
                    name=name,
                    client=client,
                    target=target,
                    version=version,
                    seen_as=seen_as,
                    settles_in=0.0 if policy is None else _SETTLE_SECONDS,
                )
            )
        return checks

    async def _trace(self, client: str, server: OutsideServer) -> TraceDocument:
        view = ClusterView(self.site.cluster, ExecNodeReader(self.site.cluster))
        pod = await view.pod(self.site.namespace, client)
        return await Walk(view, pod, server.address, "tcp", server.port).trace()

    # --- parts

    async def _ask(self, checks: Sequence[Check]) -> AsyncIterator[CheckDocument]:
        """Each client is asked about all its targets at once."""
        by_client: defaultdict[str, list[Check]] = defaultdict(list)
        for check in checks:
            by_client[check.client].append(check)
        for client, whole in by_client.items():
            begun, pending = time.monotonic(), whole
            while pending:
                documents = await self._ask_client(client, pending)
                passed = time.monotonic() - begun
                again = []
                for check, document in zip(pending, documents, strict=True):
                    if document.outcome is Outcome.FAILED and passed < check.settles_in:
                        again.append(check)
                    else:
                        yield document
                pending = again
                if pending:
                    await asyncio.sleep(_SETTLE_PAUSE)

    async def _ask_client(self, client: str, checks: Sequence[Check]) -> list[CheckDocument]:
        """One document for each, in their order."""
        try:
            output = await self.site.cluster.execute(
                NamespacedName(self.site.namespace, client),
                ["coil-connectivity-probe", "ask", f"--timeout={PROBE_SECONDS:g}", *(each.target for each in checks)],
                container=CONTAINER,
                seconds=_EXEC_SECONDS,
                limit=_LIMIT,
            )
            answers = msgspec.json.decode(output, type=list[ProbeAnswer])
        except (ApiError, ExecError, msgspec.MsgspecError) as error:
            return [each.fail(f"the pod {client} could not be asked: {error}") for each in checks]
        return [check.judge(answer) for check, answer in zip(checks, answers, strict=True)]

    async def _list_egresses(self) -> list[NamespacedName]:
        try:
            found = await self.site.cluster.list(EGRESSES)
        except NotFoundError:
            return []
        return [NamespacedName(each.metadata.namespace, each.metadata.name) for each in found][:MOST]

    async def _service(self, name: NamespacedName) -> Service | None:
        try:
            return await self.site.cluster.get(SERVICES, name.name, namespace=name.namespace)
        except NotFoundError:
            return None

    def _address(self, name: str, version: int) -> IPAddress | None:
        return self.site.address(name, version=version) if name in self.site.ready else None

    def _own_addresses(self) -> Iterator[tuple[int, IPAddress]]:
        for version in _VERSIONS:
            if (address := self._address(CLIENT, version)) is not None:
                yield version, address


def _is_known(told: TraceDocument) -> bool:
    return told.verdict is Verdict.DELIVERED and not told.doubts


def _node_address(node: CandidateNode, version: int) -> str | None:
    found = (each.address for each in node.status.addresses if each.type == INTERNAL_IP)
    return next((address for address in found if ip_address(address).version == version), None)


def _cluster_addresses(service: Service) -> list[IPAddress]:
    return [ip_address(each) for each in service.spec.cluster_ips if each and each != "None"]
