"""The clients of egress NAT on this node: pods whose annotations name Egresses, and what their namespaces have of it.

    ADD ─────────────────► connect ─► find the pod ─► ask for what is lacking ─┐
    coild.egress.nat ─► refresh ─► the pod, if it is known ─────────────────┴─► resolve ─► make, if it is not so

Both happen one at a time for an attachment, so that a namespace is never worked on twice at once, nor after its DEL. A
DEL waits for the kernel at most: what a refresh needs of the API server is in caches.

**It fails closed.** A pod that names an Egress asked to leave the cluster under another address. Under its own it may
be let in where it should not, or be dropped where nobody sees why. So:

* An ADD fails, with a code that has the runtime try again, if the pod's object is unknown, if what its annotations name
  is missing, invalid or unknown, or if the kernel refuses the tunnels. No container has started by then.
* From a pod that runs, what its Egress was for is unreachable while the Egress does not serve it. "The API server is
  silent" is not "the Egress has gone": known tunnels stay.
* As long as anything of ours is in a pod's namespace, only router pods of its Egresses may send it encapsulated packets
  (`coild.egress.client_filter`).

Each is an Event on the pod, a line in the log and a metric; pods that name no Egress do not notice. With
`--egress-fail-open` both go on with the pod's own address, except where the kernel refuses.

Router pods are not clients, but need sysctls that they cannot write themselves; they get them here, too.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace

from structlog.typing import FilteringBoundLogger

from coil.crd.builtin import Pod, pod_uids
from coil.crd.names import APP_NAME, COMPONENT_EGRESS, LABEL_APP_COMPONENT, LABEL_APP_NAME
from coil.egress.client_pod import EgressRef, client_addresses, parse_egress_annotations
from coil.egress.gateway import UPLINK, ClientSpec
from coil.egress.resolution import ClientOptions, EgressProblem, ProblemReason, Resolution, resolve_client
from coil.egress.router_plan import plan_router_sysctls
from coil.ipam.occupancy import AttachmentKey
from coil.kernel.family import Family, IPAddress, IPNetwork
from coil.kernel.link import LinkName
from coil.nat import NAT_ERRORS
from coil.netlink.error import NetlinkError
from coil.netlink.host import NetnsPath
from coil.podnet.host_link import PodAlias
from coild.egress.client_slices import ClientAddresses
from coild.egress.directory import EgressDirectory, NodePods
from coild.egress.pod_tunnel import PodTunnels, PodTunnelSpec, VethGoneError
from coild.egress.report import POD_UNKNOWN, Consequence, EgressReport, Occasion
from coild.model.api_reader import NoAnswerError
from coild.model.attachment import Attachment, PodName, PodUnknownError
from coild.model.keyed_executor import KeyedExecutor


@dataclass(slots=True)
class Client:
    """An attached pod; most of them name no Egress.

    `applied` is what its namespace has by our doing, None where nobody knows. `found` says that it was there before
    this process, and has not been looked at yet. `prepared`: a router pod, with its sysctls.
    """

    attachment: Attachment
    applied: ClientSpec | None
    found: bool
    prepared: bool = False
    egresses: tuple[EgressRef, ...] = ()
    """Those that it names."""
    granted: frozenset[EgressRef] = frozenset()
    """Those of them that it is a client of."""
    destinations: Mapping[EgressRef, tuple[IPNetwork, ...]] = field(default_factory=dict)
    """What those Egresses are for, or were when they were last seen."""
    problems: tuple[EgressProblem, ...] = ()
    unusable: tuple[EgressProblem, ...] = ()
    """What the plan of its tunnels had to leave out, the last time they were compared."""

    def has(self, spec: ClientSpec) -> bool:
        """Whether the namespace is as `spec` says."""
        applied = self.applied
        return applied is not None and (applied == spec or (applied.is_empty and spec.is_empty))

    def bind(self, pod: Pod) -> None:
        """From now on it is this pod's, and of no other of its name."""
        name = self.attachment.pod
        if name is None or not name.uid:
            name = PodName(pod.metadata.namespace, pod.metadata.name, pod.metadata.uid)
        self.attachment = replace(
            self.attachment, pod=name, addresses=self.attachment.addresses or tuple(client_addresses(pod))
        )

    def may_be(self, pod: Pod) -> bool:
        """Whether it is the pod's: by UID; without one by name; without a name it may be anybody's."""
        name = self.attachment.pod
        if name is None:
            return True
        if name.uid:
            return name.uid in pod_uids(pod)
        return (name.namespace, name.name) == (pod.metadata.namespace, pod.metadata.name)


class EgressClients:
    """A `coild.model.attachment.PodEgress`. One per process."""

    def __init__(
        self,
        *,
        pods: NodePods,
        egresses: EgressDirectory,
        tunnels: PodTunnels,
        executor: KeyedExecutor,
        options: ClientOptions,
        report: EgressReport,
        changed: Callable[[EgressRef], None] = lambda _egress: None,
        log: FilteringBoundLogger,
    ) -> None:
        """`changed` is called with an Egress whose clients may have changed; it returns at once."""
        self._pods = pods
        self._egresses = egresses
        self._tunnels = tunnels
        self._executor = executor
        self._options = options
        self._report = report
        self._changed = changed
        self._log = log
        self._clients: dict[AttachmentKey, Client] = {}
        report.metrics.observe(clients=self._count, blocked=self._count_blocked, problems=self._problems)

    # --- who is there

    def adopt(self, attachments: Iterable[Attachment]) -> None:
        """Take over the attachments that an earlier process has made. Once, before the first ADD."""
        for attachment in sorted(attachments, key=lambda each: (each.key.ifname != UPLINK, each.key.ifname)):
            if self._concerns(attachment):
                self._clients[attachment.key] = Client(attachment, applied=None, found=True)

    async def adopted(self) -> list[AttachmentKey]:
        """Those of them that have to be looked at: first the pods that name an Egress, then router pods, pods that are
        not known yet, and those that have tunnels whose annotation went while nobody watched.

        Nothing is done for the others, which are most.
        """
        try:
            tunnelled = await self._tunnels.clients()
        except NetlinkError as error:
            self._log.warning("cannot tell which pods have tunnels; looking at each of them", error=str(error))
            tunnelled = None
        first: list[AttachmentKey] = []
        others: list[AttachmentKey] = []
        for key, client in self._clients.items():
            pod = self._pods.known(client.attachment.pod, client.attachment.addresses) if client.found else None
            if not client.found:
                continue
            if pod is not None and parse_egress_annotations(pod.metadata.annotations).asks:
                first.append(key)
            elif pod is None or _is_router(pod) or tunnelled is None or client.attachment.alias in tunnelled:
                others.append(key)
            else:
                client.bind(pod)
                client.applied, client.found = client.applied or self._nothing(client.attachment), False
        return [*first, *others]

    def forget(self, key: AttachmentKey) -> None:
        client = self._clients.pop(key, None)
        self._tunnels.senders.forget(key)
        for egress in client.egresses if client is not None else ():
            self._changed(egress)

    def naming(self, egress: EgressRef) -> list[AttachmentKey]:
        """The attachments whose pods name the Egress."""
        return [key for key, client in self._clients.items() if egress in client.egresses]

    def of_namespace(self, namespace: str) -> list[AttachmentKey]:
        """The attachments of the namespace's pods that name any Egress."""
        return [key for key in self.asking() if _namespace(self._clients[key]) == namespace]

    def asking(self) -> list[AttachmentKey]:
        """The attachments whose pods name any Egress."""
        return [key for key, client in self._clients.items() if client.egresses]

    def addresses(self, egress: EgressRef) -> ClientAddresses:
        """Those of the Egress's clients."""
        clients = [client for client in self._clients.values() if egress in client.granted]
        found = [client for client in self._clients.values() if client.found]
        return ClientAddresses(certain=_addresses(clients), uncertain=_addresses(found), pods=len(clients))

    def of_pod(self, pod: Pod) -> list[AttachmentKey]:
        """The attachments that may be the pod's."""
        return [key for key, client in self._clients.items() if client.may_be(pod)]

    # --- what they have

    async def connect(self, attachment: Attachment, *, deadline: float) -> None:
        if not self._concerns(attachment) or attachment.pod is None or attachment.netns is None:
            return
        # From here on no change is missed: it queues a refresh, whose turn comes after this one.
        client = self._clients.get(attachment.key)
        is_new = client is None
        if client is None:
            # The runtime has made the namespace for this pod, so there is nothing of ours in it.
            client = self._clients[attachment.key] = Client(attachment, applied=self._nothing(attachment), found=False)
        client.attachment = attachment
        try:
            pod = await self._pods.find(attachment.pod, deadline=deadline)
        except PodUnknownError as error:
            if self._options.fail_open:
                self._log.warning("pod's object not available yet; continuing without its egress", error=str(error))
                return
            self._report.metrics.count_refused_add(POD_UNKNOWN)
            raise
        client.bind(pod)
        resolution = await self._resolve_now(client, pod, deadline)
        if resolution.spec.gateways:
            client.applied = None  # an ADD that is repeated makes sure
        try:
            is_served = self._is_served(resolution.problems)
            if is_served or not is_new:
                # In a namespace that is not new a container may run, which is to be held back at once.
                await self._bring(client, pod, resolution.spec, attachment.netns, Occasion.ADD)
        except NAT_ERRORS as error:
            if is_new:
                await self._undo(attachment, attachment.netns)
            raise self._report.kernel_refused(pod, error, Occasion.ADD) from error
        problems = (*client.problems, *client.unusable)
        if not self._is_served(problems):
            if is_new and is_served:
                await self._undo(attachment, attachment.netns)
            raise self._report.not_served(problems)

    async def _resolve_now(self, client: Client, pod: Pod, deadline: float) -> Resolution:
        """What the pod asks for, with what the caches lack of it read from the API server."""
        names = parse_egress_annotations(pod.metadata.annotations)
        if names.references:
            try:
                await self._egresses.complete(names.references, namespace=pod.metadata.namespace, deadline=deadline)
            except NoAnswerError as error:
                if not self._options.fail_open:
                    raise self._report.not_answered(pod, error) from error
        return self._resolve(client, pod, Occasion.ADD)

    def _is_served(self, problems: Iterable[EgressProblem]) -> bool:
        return self._options.fail_open or not any(problem.unserved for problem in problems)

    async def _undo(self, attachment: Attachment, netns: NetnsPath) -> None:
        """Leave nothing in the namespace of a pod whose ADD fails. No container runs there."""
        with suppress(*NAT_ERRORS):
            await self._tunnels.make(PodTunnelSpec(self._nothing(attachment)), netns)
            await self._tunnels.senders.set_peers(attachment.key, {})

    async def refresh(self, key: AttachmentKey) -> None:
        """Bring the attachment's namespace to what is known now. Idempotent; touches nothing where nothing changed.

        Raises EgressRefusedError; then it is to be tried again.
        """
        if key in self._clients:
            await self._executor.run(key, lambda: self._refresh(key))

    async def _refresh(self, key: AttachmentKey) -> None:
        client = self._clients.get(key)
        pod = self._pods.known(client.attachment.pod, client.attachment.addresses) if client is not None else None
        if client is None or pod is None:
            return  # gone, and its namespace with it; or the API server has not told of it yet
        client.bind(pod)
        if not client.attachment.addresses:
            return  # nobody has told them yet
        spec = self._resolve(client, pod, Occasion.FOLLOW).spec
        if client.attachment.alias is None:
            if not client.has(spec):
                self._log.warning("pod is not followed: its interface has no other end here", pod=pod.metadata.name)
            return
        try:
            await self._bring(client, pod, spec, client.attachment.alias, Occasion.FOLLOW)
        except VethGoneError:
            self.forget(key)  # without a DEL
        except NAT_ERRORS as error:
            if not client.found or client.egresses or client.problems or _is_router(pod):
                raise self._report.kernel_refused(pod, error, Occasion.FOLLOW) from error
            # Most likely it never had a tunnel; to ask for ever would help nobody.
            self._log.warning("cannot see whether a pod has tunnels left", pod=pod.metadata.name, error=str(error))
        client.found = False

    async def _bring(
        self, client: Client, pod: Pod, spec: ClientSpec, where: NetnsPath | PodAlias, occasion: Occasion
    ) -> None:
        key, peers = client.attachment.key, self._peers(spec)
        if peers:  # before there is a tunnel, and until there is none
            await self._tunnels.senders.set_peers(key, peers)
        await self._make(client, pod, spec, where, occasion)
        if not peers:
            await self._tunnels.senders.set_peers(key, peers)

    def _peers(self, spec: ClientSpec) -> dict[IPAddress, frozenset[IPAddress]]:
        """Who may send encapsulated packets to each address of the pod; {} where nothing of ours is to be in it."""
        routers = {
            router
            for gateway in spec.gateways
            for router in (*gateway.addresses, *self._egresses.routers(gateway.name))
        }
        return {} if spec.is_empty else dict.fromkeys(spec.addresses, frozenset(routers))

    async def _make(
        self, client: Client, pod: Pod, spec: ClientSpec, where: NetnsPath | PodAlias, occasion: Occasion
    ) -> None:
        is_unprepared = _is_router(pod) and not client.prepared
        if client.has(spec) and not is_unprepared:
            return
        families = sorted({Family.of(address) for address in client.attachment.addresses})
        tunnels = PodTunnelSpec(
            spec=None if client.has(spec) else spec,
            sysctls=plan_router_sysctls(families) if is_unprepared else None,
        )
        if tunnels.spec is not None:
            client.applied = None  # until it is done nobody knows
        with self._report.metrics.timed(occasion):
            problems = await self._tunnels.make(tunnels, where)
        client.prepared = client.prepared or is_unprepared
        if tunnels.spec is not None:
            client.applied = spec
            unusable = tuple(
                EgressProblem(ProblemReason.UNUSABLE, str(problem), unserved=problem.unserved) for problem in problems
            )
            self._report.problems(pod, unusable, self._consequence(occasion), before=client.unusable)
            client.unusable = unusable

    def _resolve(self, client: Client, pod: Pod, occasion: Occasion) -> Resolution:
        resolution = resolve_client(
            pod.metadata.annotations,
            client.attachment.addresses,
            self._egresses.view,
            self._options_of(client.attachment),
            namespace=pod.metadata.namespace,
            known=client.destinations,
        )
        # A pod whose ADD is repeated is told once more why it does not start.
        before = client.problems if occasion is Occasion.FOLLOW else ()
        self._report.problems(pod, resolution.problems, self._consequence(occasion), before=before)
        named = client.egresses
        client.egresses, client.granted = resolution.references, resolution.granted
        client.problems = resolution.problems
        client.destinations = resolution.destinations
        for egress in {*named, *client.egresses}:
            self._changed(egress)
        return resolution

    def _consequence(self, occasion: Occasion) -> Consequence:
        if self._options.fail_open:
            return Consequence.OWN_ADDRESS
        return Consequence.NOT_STARTED if occasion is Occasion.ADD else Consequence.BLOCKED

    def _concerns(self, attachment: Attachment) -> bool:
        # The rules of a namespace apply to all of its interfaces, so it has them for one attachment: the first, which
        # is eth0 unless that is another plugin's. The runtime attaches it first; adopted ones are sorted.
        key = attachment.key
        return not any(other.container_id == key.container_id and other != key for other in self._clients)

    def _options_of(self, attachment: Attachment) -> ClientOptions:
        policy = replace(self._options.policy, uplink=LinkName(attachment.key.ifname))
        return replace(self._options, policy=policy)

    def _nothing(self, attachment: Attachment) -> ClientSpec:
        options = self._options_of(attachment)
        return ClientSpec(addresses=attachment.addresses, gateways=(), replies=options.replies, policy=options.policy)

    # --- metrics

    def _count(self) -> int:
        return sum(client.applied is not None and bool(client.applied.gateways) for client in self._clients.values())

    def _count_blocked(self) -> int:
        return sum(client.applied is not None and client.applied.blocks for client in self._clients.values())

    def _problems(self) -> Counter[ProblemReason]:
        clients = self._clients.values()
        return Counter(problem.reason for client in clients for problem in (*client.problems, *client.unusable))


def _namespace(client: Client) -> str:
    return client.attachment.pod.namespace if client.attachment.pod is not None else ""


def _is_router(pod: Pod) -> bool:
    labels = pod.metadata.labels
    return labels.get(LABEL_APP_NAME) == APP_NAME and labels.get(LABEL_APP_COMPONENT) == COMPONENT_EGRESS


def _addresses(clients: Iterable[Client]) -> frozenset[IPAddress]:
    return frozenset(address for client in clients for address in client.attachment.addresses)
