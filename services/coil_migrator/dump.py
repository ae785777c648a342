"""`coil-migrator dump`: ends v1 in the cluster and turns what it keeps in etcd into v2's objects.

    look:   etcd ─► state ─► objects           any fault ends it here, before anything has been changed
    end v1: its objects go, then its pods      from here on nobody writes to v1's etcd, and no pod starts
    mark:   a namespace named like a pool, not `default`, is annotated with that pool, as v1 chose pools by name
    look again, now for good ─► manifests

Pods keep running. Every step is idempotent: a run that was cut short is made good by the next one. etcd is only read.
"""

from dataclasses import dataclass
from functools import partial

from coil.crd.address_pool import AddressPool
from coil.crd.builtin import NAMESPACES, NODES, PODS, Namespace
from coil.crd.names import ANNOTATION_POOL, DEFAULT_POOL, NodeName
from coil.kube.api_client import ApiClient
from coil.kube.errors import ConflictError, NotFoundError
from coil_migrator.conversion import Conversion, ConversionError, convert
from coil_migrator.etcd_reader import EtcdReader
from coil_migrator.manifest import render_manifests
from coil_migrator.progress import Progress
from coil_migrator.v1_install import NAMESPACE, V1_OBJECTS, V1Object, select_writers, wait_until_true
from coil_migrator.v1_state import V1StateError, parse_v1_state


class DumpError(Exception):
    """The dump cannot be made, or not now. The message says what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DumpOptions:
    """`prefix` of v1's keys. `timeout`: seconds that each object, and then the pods, may take to go."""

    prefix: bytes
    dry_run: bool = False
    skip_uninstall: bool = False
    timeout: float = 120.0


async def dump(
    cluster: ApiClient, keys: EtcdReader, options: DumpOptions, *, progress: Progress, done: list[str]
) -> str:
    """The manifests. What was changed is added to `done`, one sentence each, as soon as it is true.

    Raises DumpError, EtcdError or ApiError; a cancellation leaves what `done` says.
    """
    conversion = await _look(cluster, keys, options.prefix)
    namespaces = await _unmarked(cluster, conversion.pools, progress)
    removable = [] if options.skip_uninstall else [item for item in V1_OBJECTS if await _exists(cluster, item)]
    if options.dry_run:
        for item in removable:
            progress.say(f"would remove v1's {item}")
        for namespace in namespaces:
            progress.say(f"would annotate the namespace {namespace} with the pool of its name")
    else:
        progress.begin(len(removable) + len(namespaces) + (1 if options.skip_uninstall else 2))
        for item in removable:
            progress.step(f"removing v1's {item}")
            await _remove(cluster, item, options.timeout, done)
        if options.skip_uninstall:
            progress.say("v1 was left as it is: addresses that it gives from now on are not in the dump")
        else:
            progress.step("waiting for v1's pods to end")
            await _wait_for_writers(cluster, options.timeout)
        for namespace in namespaces:
            progress.step(f"annotating the namespace {namespace}")
            await cluster.patch(NAMESPACES, namespace, {"metadata": {"annotations": {ANNOTATION_POOL: namespace}}})
            done.append(f"the namespace {namespace} was annotated with the pool of its name")
        progress.step("reading etcd for good")
        conversion = await _look(cluster, keys, options.prefix)
    for note in conversion.notes:
        progress.say(note)
    progress.say(f"{len(conversion.pools)} pools and {len(conversion.blocks)} reserved blocks")
    return render_manifests(conversion.pools, conversion.blocks)


async def _look(cluster: ApiClient, keys: EtcdReader, prefix: bytes) -> Conversion:
    entries = await keys.read(prefix)
    nodes = [NodeName(node.metadata.name) for node in await cluster.list(NODES)]
    try:
        conversion = convert(parse_v1_state(entries), nodes)
    except (V1StateError, ConversionError) as error:
        raise DumpError(
            "v1's data cannot be converted:\n" + "\n".join(f"  {fault}" for fault in error.faults)
        ) from None
    if not conversion.pools:
        raise DumpError(f"etcd has no pool of v1 below {prefix.decode()}: are --etcd-prefix and --etcd-endpoints v1's?")
    return conversion


async def _unmarked(cluster: ApiClient, pools: tuple[AddressPool, ...], progress: Progress) -> list[str]:
    """The namespaces that v1 gave addresses from the pool of their name, and that do not say so yet."""
    found: list[str] = []
    for pool in pools:
        if pool.name == DEFAULT_POOL:
            continue
        try:
            namespace: Namespace = await cluster.get(NAMESPACES, pool.name)
        except NotFoundError:
            continue
        chosen = namespace.metadata.annotations.get(ANNOTATION_POOL)
        if chosen is None:
            found.append(pool.name)
        elif chosen != pool.name:
            progress.say(f"the namespace {pool.name} is left with the pool {chosen!r}, which it is annotated with")
    return found


async def _exists(cluster: ApiClient, item: V1Object) -> bool:
    try:
        await cluster.get(item.resource, item.name, namespace=item.namespace)
    except NotFoundError:
        return False
    return True


async def _remove(cluster: ApiClient, item: V1Object, timeout: float, done: list[str]) -> None:
    try:
        uid = (await cluster.get(item.resource, item.name, namespace=item.namespace)).metadata.uid
        await cluster.delete(item.resource, item.name, namespace=item.namespace, uid=uid)
    except NotFoundError:
        return
    except ConflictError:
        raise DumpError(f"somebody makes v1's {item} anew: have it stopped, then run this again") from None
    done.append(f"v1's {item} was removed")

    async def is_gone() -> bool:
        return not await _exists(cluster, item)

    if not await wait_until_true(is_gone, timeout=timeout):
        raise DumpError(f"v1's {item} is still there after {timeout:g} s: see what its finalizers wait for")


async def _wait_for_writers(cluster: ApiClient, timeout: float) -> None:
    pods = partial(cluster.list, PODS, namespace=NAMESPACE)

    async def are_gone() -> bool:
        return not select_writers(await pods())

    if not await wait_until_true(are_gone, timeout=timeout):
        names = ", ".join(select_writers(await pods())[:5])
        raise DumpError(f"pods of v1 still run after {timeout:g} s, and may change what is in etcd: {names}")
