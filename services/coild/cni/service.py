"""The gRPC face of coild: turns the plugin's arguments into operations of `coild.pods.pod_service`, and failures into
codes.

Every refusal changes nothing. A result so far is refused: addresses from two plugins would be one too many, and only
one of them would be the pod's for its egress. (After coild, a chain may go on.) Without IPAM there is another face,
`coild.cni.chained`.
"""

from betterproto.lib.google.protobuf import Empty

from coil.cnirpc.deadline import call_deadline
from coil.cnirpc.error import CniError, CniErrorCode
from coil.cnirpc.messages import AddResponse, CniArgs, CniBase
from coild.cni.call import (
    as_cni_error,
    is_chained,
    read_key,
    read_netns,
    read_network,
    read_pod,
    read_valid_attachments,
)
from coild.cni.result import render_result
from coild.pods.pod_service import AddRequest, PodService


class CniService(CniBase):
    """Implements `pkg.cnirpc.CNI`. Raises CniError only; a cancelled caller leaves the operation to complete."""

    def __init__(self, pods: PodService) -> None:
        self._pods = pods

    async def add(self, cni_args: CniArgs) -> AddResponse:
        """ADD. Idempotent: the same container and interface get the same addresses again."""
        with as_cni_error():
            key = read_key(cni_args)
            netns = read_netns(cni_args)
            pod = read_pod(cni_args)
            if is_chained(cni_args):
                raise CniError(
                    CniErrorCode.INVALID_NETWORK_CONFIG,
                    "another plugin has wired the pod already, and coild gives addresses itself",
                    "put coil first in the chain, or run coild with --enable-ipam=false",
                )
            plan = await self._pods.add(
                AddRequest(key=key, netns=netns, pod=pod, deadline=call_deadline(), network=read_network(cni_args))
            )
        return AddResponse(result=render_result(plan, netns=cni_args.netns))

    async def del_(self, cni_args: CniArgs) -> Empty:
        """DEL. An attachment that is unknown is deleted already."""
        with as_cni_error():
            await self._pods.delete(read_key(cni_args))
        return Empty()

    async def check(self, cni_args: CniArgs) -> Empty:
        """CHECK."""
        with as_cni_error():
            await self._pods.check(read_key(cni_args), read_netns(cni_args))
        return Empty()

    async def gc(self, cni_args: CniArgs) -> Empty:
        """GC. Idempotent; goes on after an error."""
        with as_cni_error():
            network, valid = read_valid_attachments(cni_args)
            await self._pods.collect_garbage(network, valid)
        return Empty()
