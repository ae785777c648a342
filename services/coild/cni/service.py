"""The gRPC face of coild: turns the plugin's arguments into operations on pods, and failures into codes.

Every refusal changes nothing. At the head of a chain (`chained` false) a result so far is refused: addresses from two
plugins would be one too many, and only one of them would be the pod's for its egress. Behind another plugin it is the
other way round: a result so far must be there, and it is the answer, unchanged, as coild only adds to what the pod's
namespace holds. (Our plugin prints that result without looking at the answer.)
"""

from betterproto.lib.google.protobuf import Empty

from coil.cnirpc.call_gate import call_deadline
from coil.cnirpc.error import CniError, CniErrorCode
from coil.cnirpc.messages import AddResponse, CniArgs, CniBase
from coild.cni.call import (
    is_chained,
    read_key,
    read_netns,
    read_network,
    read_pod,
    read_pod_if_given,
    read_previous_addresses,
    read_previous_result,
    read_valid_attachments,
)
from coild.cni.errors import as_cni_error
from coild.cni.result import render_result
from coild.model.attachment import AddRequest, PodService


class CniService(CniBase):
    """Implements `pkg.cnirpc.CNI`. Raises CniError only; a cancelled caller leaves the operation to complete."""

    def __init__(self, pods: PodService, *, chained: bool = False) -> None:
        self._pods = pods
        self._chained = chained

    async def add(self, cni_args: CniArgs) -> AddResponse:
        """ADD. Idempotent: the same container and interface get the same addresses again."""
        with as_cni_error():
            key, netns, pod = read_key(cni_args), read_netns(cni_args), read_pod(cni_args)
            self._refuse_wrong_place(cni_args)
            request = AddRequest(
                key=key,
                netns=netns,
                pod=pod,
                addresses=read_previous_addresses(cni_args) if self._chained else (),
                deadline=call_deadline(),
                network=read_network(cni_args),
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
