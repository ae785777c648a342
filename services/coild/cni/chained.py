"""The gRPC face of coild without IPAM: turns the plugin's arguments into operations of `coild.pods.chained_service`.

The answer to an ADD is the result so far, unchanged: coild has only added to what the pod's namespace holds. (Our
plugin prints that result without looking at the answer.)
"""

from ipaddress import ip_address

import msgspec
from betterproto.lib.google.protobuf import Empty

from coil.cnirpc.deadline import call_deadline
from coil.cnirpc.error import CniError, CniErrorCode
from coil.cnirpc.messages import AddResponse, CniArgs, CniBase
from coil.kernel.family import IPAddress
from coild.cni.call import as_cni_error, is_chained, read_key, read_netns, read_pod
from coild.pods.chained_service import ChainedPods, ChainedRequest


class _NetConf(msgspec.Struct, frozen=True, rename="camel"):
    prev_result: msgspec.Raw = msgspec.Raw(b"")


class ChainedCniService(CniBase):
    """Implements `pkg.cnirpc.CNI`. Raises CniError only; a cancelled caller leaves the operation to complete."""

    def __init__(self, pods: ChainedPods) -> None:
        self._pods = pods

    async def add(self, cni_args: CniArgs) -> AddResponse:
        """ADD. Idempotent."""
        with as_cni_error():
            key = read_key(cni_args)
            netns = read_netns(cni_args)
            pod = read_pod(cni_args)
            if not is_chained(cni_args):
                raise CniError(
                    CniErrorCode.INVALID_NETWORK_CONFIG,
                    "no plugin before has wired the pod, and coild gives no addresses",
                    "put coil after another plugin in the chain, or run coild without --enable-ipam=false",
                )
            addresses = tuple(map(_address, cni_args.ips))
            await self._pods.add(
                ChainedRequest(key=key, netns=netns, pod=pod, addresses=addresses, deadline=call_deadline())
            )
        return AddResponse(result=_result_so_far(cni_args))

    async def del_(self, cni_args: CniArgs) -> Empty:
        """DEL. Anything that is unknown is deleted already."""
        with as_cni_error():
            await self._pods.delete(read_key(cni_args))
        return Empty()

    async def check(self, cni_args: CniArgs) -> Empty:
        """CHECK."""
        with as_cni_error():
            await self._pods.check(read_key(cni_args), cni_args.args.get("K8S_POD_UID", ""))
        return Empty()


def _address(text: str) -> IPAddress:
    try:
        return ip_address(text.partition("/")[0])
    except ValueError as error:
        raise CniError(CniErrorCode.INVALID_NETWORK_CONFIG, "prevResult has no address", str(error)) from None


def _result_so_far(args: CniArgs) -> bytes:
    try:
        return bytes(msgspec.json.decode(args.stdin_data, type=_NetConf).prev_result)
    except msgspec.MsgspecError as error:
        raise CniError(CniErrorCode.DECODING_FAILURE, "the network configuration cannot be read", str(error)) from None
