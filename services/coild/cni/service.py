"""The gRPC face of coild: turns the plugin's arguments into operations on pods, plans into results,
and failures into codes.

The result of an ADD is always in the format of 1.0.0 (https://www.cni.dev/docs/spec/). Every plugin of Coil v2 reads
that version, some no other, and converts it to what the network configuration asks for (cni.proto, AddResponse).

Errors are raised as what they are where they happen; in `CODES` each kind gets its code. A failure that may pass by
itself (no free address yet, an Egress that is not there, a kernel that refuses tunnels, the API server away, too much
to do) is TRY_AGAIN_LATER, code 11, so that the runtime asks again instead of giving the pod up. What is not in the
table is a bug; the server logs it with its traceback and answers INTERNAL.

Every refusal changes nothing. At the head of a chain (`chained` false) a result so far is refused: addresses from two
plugins would be one too many, and only one of them would be the pod's for its egress. Behind another plugin it is the
other way round: a result so far must be there, and it is the answer, unchanged, as coild only adds to what the pod's
namespace holds. (Our plugin prints that result without looking at the answer.)
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeAlias

import msgspec
from betterproto.lib.google.protobuf import Empty
from structlog.typing import FilteringBoundLogger

from coil.cnirpc.call_gate import CallLimits, CallMetrics, call_deadline
from coil.cnirpc.call_log import CallLog
from coil.cnirpc.error import CniError, CniErrorCode
from coil.cnirpc.messages import AddResponse, CniArgs, CniBase
from coil.cnirpc.server import serve_cni
from coil.ipam.occupancy import AttachmentKey
from coil.kube.errors import ApiError
from coil.netlink.error import BusyError, NamespaceError, NetlinkError, PodCheckError
from coil.nft.netfilter import NftError
from coil.podnet.plan import PodPlan
from coil.runtime.process import Process
from coild.cni.call import (
    is_chained,
    read_key,
    read_netns,
    read_network,
    read_pod,
    read_pod_if_given,
    read_port_mappings,
    read_previous_addresses,
    read_previous_result,
    read_valid_attachments,
)
from coild.model.attachment import (
    AddRequest,
    AddressUnavailableError,
    EgressRefusedError,
    EgressUnresolvedError,
    HostPortTakenError,
    InterfaceUnknownError,
    InvalidPodError,
    NoSuchNamespaceError,
    PodService,
    PodUnknownError,
    UnknownAttachmentError,
)
from coild.model.keyed_executor import KeyedExecutor
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
from coild.settings import Settings

_Code = CniErrorCode

CODES: Mapping[type[Exception], tuple[CniErrorCode, str]] = {
    AddressUnavailableError: (_Code.TRY_AGAIN_LATER, ""),
    BusyError: (_Code.TRY_AGAIN_LATER, ""),
    EgressRefusedError: (_Code.TRY_AGAIN_LATER, "the kernel did not take the pod's egress"),
    HostPortTakenError: (_Code.TRY_AGAIN_LATER, ""),
    InterfaceUnknownError: (_Code.TRY_AGAIN_LATER, ""),
    EgressUnresolvedError: (_Code.TRY_AGAIN_LATER, "the pod's egress is not available"),
    PodUnknownError: (_Code.TRY_AGAIN_LATER, "the pod's object is not known"),
    ApiError: (_Code.TRY_AGAIN_LATER, "the API server did not answer"),
    NoSuchNamespaceError: (_Code.UNKNOWN_CONTAINER, "the pod's namespace does not exist"),
    UnknownAttachmentError: (_Code.UNKNOWN_CONTAINER, ""),
    NamespaceError: (_Code.UNKNOWN_CONTAINER, "the pod's network namespace is gone"),
    InvalidPodError: (_Code.INVALID_ENVIRONMENT_VARIABLES, "the pod cannot be wired"),
    PodCheckError: (_Code.INTERNAL, "the pod's network is not as it was made"),
    NetlinkError: (_Code.INTERNAL, "the kernel did not take the pod's network"),
    NftError: (_Code.INTERNAL, "the kernel did not take the pod's host ports"),
    HandoffUnreadableError: (_Code.PORT_ANNOTATION_UNREADABLE, "the pod's annotation names no port that it could have"),
    PortGoneError: (_Code.PORT_GONE, "the pod's port is gone"),
    PortTypeUnknownError: (_Code.PORT_TYPE_UNKNOWN, "nothing on this node plugs in ports of this type"),
    BindError: (_Code.PORT_BIND_FAILED, "the pod's port was not plugged in"),
    BindTimeoutError: (_Code.PORT_BIND_TIMED_OUT, "plugging in the pod's port took too long"),
    PortNotActiveError: (_Code.PORT_NOT_ACTIVE, "the pod's port is plugged in, but not ACTIVE"),
    PodForbiddenError: (_Code.POD_FORBIDDEN, "coild may not read the pods of its node"),
    PortInUseError: (_Code.PORT_IN_USE, "the pod's port is another's"),
}
"""The nearest class in an exception's ancestry counts. The text comes first in the message, and the exception's own in
its details; without a text the exception's own is the message.
"""


@contextmanager
def as_cni_error() -> Iterator[None]:
    """Raise what is in the table as the CniError that it is to the runtime."""
    try:
        yield
    except tuple(CODES) as error:
        code, text = next(CODES[kind] for kind in type(error).__mro__ if kind in CODES)
        raise (CniError(code, text, str(error)) if text else CniError(code, str(error))) from error


VERSION = "1.0.0"

POD_INTERFACE = 0
"""The pod's end comes first in `interfaces`; every address belongs to it."""


def render_result(plan: PodPlan, *, netns: str) -> bytes:
    """The JSON of an ADD's result. Pure. `netns` is the pod's network namespace, as the runtime named it."""
    ips: list[dict[str, Any]] = []
    routes: list[dict[str, str]] = []
    for assignment in plan.assignments:
        entry: dict[str, Any] = {"interface": POD_INTERFACE, "address": str(assignment.interface)}
        ips.append(entry if assignment.gateway is None else entry | {"gateway": str(assignment.gateway)})
    for route in plan.pod.routes:
        if route.gateway is not None:
            routes.append({"dst": str(route.destination), "gw": str(route.gateway)})
    interfaces = [
        {"name": plan.pod.name, "mac": plan.pod.mac, "sandbox": netns},
        {"name": plan.host.name, "mac": plan.host.mac},
    ]
    dns = {"nameservers": [str(address) for address in plan.nameservers]} if plan.nameservers else {}
    return msgspec.json.encode(
        {"cniVersion": VERSION, "interfaces": interfaces, "ips": ips, "routes": routes, "dns": dns}
    )


Obstacle: TypeAlias = Callable[[], str | None]
"""Why an ADD would fail now, whichever pod it is for; None if nothing is known that speaks against it."""


Settle: TypeAlias = Callable[[AttachmentKey], Awaitable[None]]
"""Carries out what else was asked for the attachment before: `coild.cni.missed_deletes.MissedDeletes.settle`."""


async def _nothing_missed(_: AttachmentKey) -> None:
    pass


class CniService(CniBase):
    """Implements `pkg.cnirpc.CNI`. Raises CniError only; a cancelled caller leaves the operation to complete."""

    def __init__(
        self,
        pods: PodService,
        *,
        chained: bool = False,
        obstacle: Obstacle = lambda: None,
        settle: Settle = _nothing_missed,
    ) -> None:
        self._pods = pods
        self._chained = chained
        self._obstacle = obstacle
        self._settle = settle

    async def add(self, cni_args: CniArgs) -> AddResponse:
        """ADD. Idempotent: the same container and interface get the same addresses again."""
        with as_cni_error():
            key, netns, pod = read_key(cni_args), read_netns(cni_args), read_pod(cni_args)
            self._refuse_wrong_place(cni_args)
            await self._settle(key)
            request = AddRequest(
                key=key,
                netns=netns,
                pod=pod,
                addresses=read_previous_addresses(cni_args) if self._chained else (),
                deadline=call_deadline(),
                network=read_network(cni_args),
                # In a chain they are the affair of whoever made the pod's interface.
                ports=() if self._chained else read_port_mappings(cni_args),
                arguments=cni_args.args,
            )
            plan = await self._pods.add(request)
            result = read_previous_result(cni_args) if plan is None else render_result(plan, netns=cni_args.netns)
        return AddResponse(result=result)

    async def del_(self, cni_args: CniArgs) -> Empty:
        """DEL. An attachment that is unknown is deleted already."""
        with as_cni_error():
            await self._pods.delete(read_key(cni_args))
        return Empty()

    async def check(self, cni_args: CniArgs) -> Empty:
        """CHECK."""
        with as_cni_error():
            await self._pods.check(read_key(cni_args), read_netns(cni_args), read_pod_if_given(cni_args))
        return Empty()

    async def gc(self, cni_args: CniArgs) -> Empty:
        """GC. Idempotent; goes on after an error."""
        with as_cni_error():
            network, valid = read_valid_attachments(cni_args)
            await self._pods.collect_garbage(network, valid)
        return Empty()

    async def status(self, cni_args: CniArgs) -> Empty:
        """STATUS. Says why no pod could be added."""
        if (reason := self._obstacle()) is not None:
            raise CniError(CniErrorCode.NOT_AVAILABLE, reason)
        return Empty()

    def _refuse_wrong_place(self, args: CniArgs) -> None:
        """Raises CniError where coild's place in the chain is another than it was started for."""
        if is_chained(args) and not self._chained:
            raise CniError(
                CniErrorCode.INVALID_NETWORK_CONFIG,
                "another plugin has wired the pod already, and coild gives addresses itself",
                "put coil first in the chain, or run coild with --enable-ipam=false",
            )
        if self._chained and not is_chained(args):
            raise CniError(
                CniErrorCode.INVALID_NETWORK_CONFIG,
                "no plugin before has wired the pod, and coild gives no addresses",
                "put coil after another plugin in the chain, or run coild without --enable-ipam=false",
            )


LIMITS = CallLimits(running=512, queued=0)
"""An ADD that waits for the API server costs a coroutine; what works on the kernel is bounded by its threads."""

GRACE = 3.0
"""Seconds that calls have to end after a stop was asked for."""


async def serve_plugin(
    service: CniBase,
    settings: Settings,
    process: Process,
    *,
    executor: KeyedExecutor,
    obstacle: Obstacle = lambda: None,
    log: FilteringBoundLogger,
) -> None:
    """Serve the plugin's socket until the process stops; then what has begun comes to its end, within bounds.

    The last step of coild's start, and the first to be undone. While there is an `obstacle`, STATUS fails.
    """
    process.stack.push_async_callback(_wait_idle, executor, log)
    calls = CallMetrics(process.registry)
    await process.stack.enter_async_context(
        serve_cni(
            service,
            path=settings.socket,
            limits=LIMITS,
            grace=GRACE,
            healthy=lambda: obstacle() is None,
            metrics=calls,
            call_log=CallLog(log),
        )
    )
    process.add_readiness("socket", lambda: None if settings.socket.is_socket() else f"{settings.socket} is gone")


async def _wait_idle(executor: KeyedExecutor, log: FilteringBoundLogger) -> None:
    try:
        async with asyncio.timeout(GRACE):
            await executor.wait_idle()
    except TimeoutError:
        log.warning("stopping with operations under way; the next start recovers from the kernel")
