"""`coil-migrator replace`: the end of v1's pods, node by node, and then of the blocks that were reserved for them.

    look ─► (a person agrees) ─► each node: each pod is evicted, and its controller makes another, which has an address
         of v2 ─► reserved blocks that no pod lives in any more are deleted ─► coild is restarted when none is left

A pod is one of v1 if one of its addresses is in a reserved block: v2 gives nothing from those. PodDisruptionBudgets
count, and of the pods of a controller the next one is evicted when as many are Ready again as before.

Invariant: a reserved block goes only after the API server has shown no pod with an address in it. Whatever stops a run,
the next one goes on with the pods that are left. A pod that does not end in time is told of and passed over.
"""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from ipaddress import ip_address

from coil.crd.address_block import ADDRESS_BLOCKS, AddressBlock
from coil.crd.builtin import PODS, Pod
from coil.crd.cidr import parse_cidr
from coil.crd.names import LABEL_RESERVED, RESERVED, BlockName, NodeName
from coil.crd.resource import NamespacedName
from coil.crd.validation import render_names
from coil.kube.api_client import ApiClient
from coil.kube.errors import ConflictError, InvalidError, NotFoundError, UnavailableError
from coil_migrator.progress import Progress
from coil_migrator.v1_install import wait_until_true
from coil_migrator.workload import DAEMON_SETS

MIRROR = "kubernetes.io/config.mirror"
"""Annotation of what stands for a static pod: its end is not the pod's."""
_FINISHED = frozenset({"Succeeded", "Failed"})


@dataclass(frozen=True, slots=True)
class Replacement:
    """`pods` of v1 by node, in the order of names, without the static ones, which are in `static`.

    `lonely` are those of `pods` that nothing makes anew.
    """

    pods: Mapping[NodeName, tuple[Pod, ...]]
    static: tuple[Pod, ...]
    lonely: tuple[Pod, ...]

    @property
    def count(self) -> int:
        return sum(map(len, self.pods.values()))


def plan_replacement(blocks: Iterable[AddressBlock], pods: Iterable[Pod]) -> Replacement:
    """What is to be replaced for the reserved ones among `blocks`."""
    tenants = [pod for pod, _ in _tenancies(blocks, pods)]
    tenants.sort(key=lambda pod: (pod.spec.node_name, describe_pod(pod)))
    nodes: dict[NodeName, list[Pod]] = {}
    static = tuple(pod for pod in tenants if MIRROR in pod.metadata.annotations)
    for pod in tenants:
        if pod not in static:
            nodes.setdefault(NodeName(pod.spec.node_name), []).append(pod)
    lonely = tuple(pod for group in nodes.values() for pod in group if not _controller(pod))
    return Replacement({node: tuple(group) for node, group in nodes.items()}, static, lonely)


def find_tenants(blocks: Iterable[AddressBlock], pods: Iterable[Pod]) -> dict[BlockName, tuple[Pod, ...]]:
    """Each reserved block, by name, and the pods that live in it; an empty tuple for one that may go."""
    reserved = [block for block in blocks if block.reserved]
    found: dict[BlockName, tuple[Pod, ...]] = {block.name: () for block in reserved}
    for pod, names in _tenancies(reserved, pods):
        for name in names:
            found[name] += (pod,)
    return found


def describe_pod(pod: Pod) -> str:
    return f"{pod.metadata.namespace}/{pod.metadata.name}"


def _tenancies(blocks: Iterable[AddressBlock], pods: Iterable[Pod]) -> list[tuple[Pod, set[BlockName]]]:
    """Each pod that lives in reserved blocks, with their names.

    A pod of the host's network has its node's address; one that has finished has given its address back.
    """
    # By the first address of each length of prefix, as there are thousands of both.
    names: dict[tuple[int, int, int], BlockName] = {}
    for block in blocks:
        for text in (block.ipv4, block.ipv6) if block.reserved else ():
            if text is not None:
                network = parse_cidr(text)
                names[network.version, network.prefixlen, int(network.network_address)] = block.name
    lengths = {(version, prefixlen) for version, prefixlen, _ in names}
    found: list[tuple[Pod, set[BlockName]]] = []
    for pod in pods:
        if pod.spec.host_network or not pod.spec.node_name or pod.status.phase in _FINISHED:
            continue
        homes: set[BlockName] = set()
        for address in (ip_address(entry.ip) for entry in pod.status.pod_ips):
            for version, prefixlen in lengths:
                if version == address.version:
                    bits = address.max_prefixlen - prefixlen
                    name = names.get((version, prefixlen, int(address) >> bits << bits))
                    homes |= {name} if name is not None else set()
        if homes:
            found.append((pod, homes))
    return found


RESTART_MARK = "coil.cybozu.com/restarted-after"
"""Annotation of coild's pods. Its value never changes, so a second run restarts nothing."""
RESTART_VALUE = "v1-migration"

_SELECTOR = f"{LABEL_RESERVED}={RESERVED}"
_BUDGET_SECONDS = 5.0
"""Until the next question, as kubectl drain has it; the API server says ten where it says anything."""
_SHOWN = 10
"""Names in one list for a person."""


class ReplaceError(Exception):
    """Something of v1 is left. The message says what, and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaceOptions:
    """Seconds: `interval` between two nodes, `timeout` for each of a pod's eviction, end and successor. Without
    `evict`, pods are deleted whatever PodDisruptionBudgets say. `coild` None: nothing is restarted.
    """

    interval: float = 10.0
    timeout: float = 600.0
    evict: bool = True
    coild: NamespacedName | None = None


@dataclass(frozen=True, slots=True)
class Outlook:
    """What a replacement would do: so many reserved `blocks` go, the pods in them before, and `restart` begins anew."""

    replacement: Replacement
    blocks: int
    restart: NamespacedName | None

    def __bool__(self) -> bool:
        """False where there is nothing to do."""
        return bool(self.blocks or self.restart)

    def lines(self) -> list[str]:
        """For the person who is to agree."""
        plan = self.replacement
        found = [f"{plan.count} pods on {len(plan.pods)} nodes, which v1 gave their addresses, will be replaced"]
        found += [f"  {node}: {_list_pods(pods)}" for node, pods in plan.pods.items()]
        if plan.lonely:
            found.append(f"these have no controller and will not come back: {_list_pods(plan.lonely)}")
        if plan.static:
            found.append(f"these are static, and for their nodes' admins to restart: {_list_pods(plan.static)}")
        found.append(f"{self.blocks} reserved blocks will be removed")
        if self.restart:
            found.append(f"the DaemonSet {self.restart} will be restarted")
        return found


async def look(cluster: ApiClient, options: ReplaceOptions) -> Outlook:
    """See what there is. Changes nothing. Raises ApiError."""
    blocks = await cluster.list(ADDRESS_BLOCKS, labels=_SELECTOR)
    replacement = plan_replacement(blocks, await cluster.list(PODS))
    return Outlook(replacement, len(blocks), await _restartable(cluster, options.coild))


async def replace(cluster: ApiClient, options: ReplaceOptions, *, progress: Progress, done: list[str]) -> None:
    """Do it, as of now. What was changed is added to `done`, one sentence each, as soon as it is true.

    Raises ReplaceError when something is left in the end, or ApiError; a cancellation leaves what `done` says.
    """
    blocks = await cluster.list(ADDRESS_BLOCKS, labels=_SELECTOR)
    plan = plan_replacement(blocks, await cluster.list(PODS))
    progress.begin(plan.count)
    blocked: set[str] = set()
    for number, (node, pods) in enumerate(plan.pods.items()):
        if number:
            await asyncio.sleep(options.interval)
        for pod in pods:
            progress.step(f"{node}: {describe_pod(pod)}")
            owner = _controller(pod)
            if owner in blocked:
                fault = "stays, as its controller has fewer pods that are Ready than before"
            else:
                fault = await _replace_pod(cluster, pod, options, done)
            if fault:
                progress.say(f"{describe_pod(pod)}: {fault}")
                blocked |= {owner} - {""}
    tenants = find_tenants(await cluster.list(ADDRESS_BLOCKS, labels=_SELECTOR), await cluster.list(PODS))
    for name, left in tenants.items():
        if not left:
            try:
                await cluster.delete(ADDRESS_BLOCKS, name)
            except NotFoundError:
                continue
            done.append(f"the reserved block {name} was removed")
    if kept := {name: left for name, left in tenants.items() if left}:
        lines = [f"  {name}: {_list_pods(left)}" for name, left in kept.items()]
        raise ReplaceError("\n".join(["pods still use these reserved blocks; end them and run this again:", *lines]))
    if (daemon_set := await _restartable(cluster, options.coild)) is not None:
        await _restart(cluster, daemon_set)
        done.append(f"the DaemonSet {daemon_set} is being restarted")


async def _replace_pod(cluster: ApiClient, pod: Pod, options: ReplaceOptions, done: list[str]) -> str:
    """End the pod, and return when its controller has as many that are Ready as before. Returns what is wrong with
    that, or nothing.
    """
    timeout, owner = options.timeout, _controller(pod)
    before = await _count_ready(cluster, pod)
    try:
        if options.evict:
            await _evict(cluster, pod, timeout)
        else:
            await cluster.delete(PODS, pod.metadata.name, namespace=pod.metadata.namespace, uid=pod.metadata.uid)
    except (NotFoundError, ConflictError):
        return ""
    except (InvalidError, UnavailableError) as error:
        return f"was not {'evicted' if options.evict else 'deleted'}: {error}"
    done.append(f"the pod {describe_pod(pod)} was {'evicted' if options.evict else 'deleted'}")

    async def is_gone() -> bool:
        try:
            found = await cluster.get(PODS, pod.metadata.name, namespace=pod.metadata.namespace)
        except NotFoundError:
            return True
        return found.metadata.uid != pod.metadata.uid

    async def is_followed() -> bool:
        return await _count_ready(cluster, pod) >= before

    if not await wait_until_true(is_gone, timeout=timeout):
        return f"has not ended within {timeout:g} s"
    if owner and not await wait_until_true(is_followed, timeout=timeout):
        return f"has ended, but its controller has not had {before} pods that are Ready again within {timeout:g} s"
    return ""


async def _evict(cluster: ApiClient, pod: Pod, timeout: float) -> None:
    """Ask until budgets allow it, for at most `timeout` seconds. Raises as `ApiClient.evict`."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout
    while True:
        try:
            return await cluster.evict(pod.metadata.name, namespace=pod.metadata.namespace, uid=pod.metadata.uid)
        except UnavailableError as error:
            left = deadline - loop.time()
            if error.status != HTTPStatus.TOO_MANY_REQUESTS or left <= 0:
                raise
            await asyncio.sleep(min(error.retry_after or _BUDGET_SECONDS, left))


async def _count_ready(cluster: ApiClient, pod: Pod) -> int:
    """How many pods of its controller are Ready; 0 without one."""
    owner = _controller(pod)
    if not owner:
        return 0
    pods = await cluster.list(PODS, namespace=pod.metadata.namespace)
    return sum(each.ready for each in pods if _controller(each) == owner)


def _controller(pod: Pod) -> str:
    """The UID of what makes the pod anew; "" if nothing does."""
    return next((owner.uid for owner in pod.metadata.owner_references if owner.controller), "")


async def _restartable(cluster: ApiClient, name: NamespacedName | None) -> NamespacedName | None:
    """The DaemonSet if it is there and was not restarted by an earlier run."""
    if name is None:
        return None
    try:
        found = await cluster.get(DAEMON_SETS, name.name, namespace=name.namespace)
    except NotFoundError:
        return None
    return None if found.spec.template.metadata.annotations.get(RESTART_MARK) == RESTART_VALUE else name


async def _restart(cluster: ApiClient, name: NamespacedName) -> None:
    template = {"metadata": {"annotations": {RESTART_MARK: RESTART_VALUE}}}
    await cluster.patch(DAEMON_SETS, name.name, {"spec": {"template": template}}, namespace=name.namespace)


def _list_pods(pods: tuple[Pod, ...]) -> str:
    return render_names([describe_pod(pod) for pod in pods], shown=_SHOWN)
