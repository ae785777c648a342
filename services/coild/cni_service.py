"""The gRPC face of coild: turns the plugin's arguments into operations of `coild.pod_service`, and failures into codes.

Every refusal says what was wrong and changes nothing. A failure that may pass by itself (no free address yet, the API
server away, too much to do) is TRY_AGAIN_LATER, code 11, so that the runtime asks again instead of giving the pod up.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from betterproto.lib.google.protobuf import Empty

from coil.cnirpc.deadline import call_deadline
from coil.cnirpc.error import CniError, CniErrorCode
from coil.cnirpc.messages import AddResponse, CniArgs, CniBase
from coil.ipam.node_ledger import AttachmentKey, ContainerId
from coil.kernel.link import parse_link_name
from coil.kube.errors import ApiError, NotFoundError
from coil.netlink.error import BusyError, NamespaceError, NetlinkError, PodCheckError
from coil.netlink.host import NetnsPath
from coild.address_source import AddressUnavailableError, PodName
from coild.pod_service import AddRequest, PodService, UnknownAttachmentError
from coild.result import render_result


class CniService(CniBase):
    """Implements `pkg.cnirpc.CNI`. Raises CniError only; a cancelled caller leaves the operation to complete."""

    def __init__(self, pods: PodService) -> None:
        self._pods = pods

    async def add(self, cni_args: CniArgs) -> AddResponse:
        """ADD. Idempotent: the same container and interface get the same addresses again."""
        with _as_cni_error():
            key = _key(cni_args)
            netns = _netns(cni_args)
            pod = PodName(
                _argument(cni_args, "K8S_POD_NAMESPACE"),
                _argument(cni_args, "K8S_POD_NAME"),
                cni_args.args.get("K8S_POD_UID", ""),
            )
            plan = await self._pods.add(AddRequest(key=key, netns=netns, pod=pod, deadline=call_deadline()))
        return AddResponse(result=render_result(plan, netns=cni_args.netns))

    async def del_(self, cni_args: CniArgs) -> Empty:
        """DEL. An attachment that is unknown is deleted already."""
        with _as_cni_error():
            await self._pods.delete(_key(cni_args))
        return Empty()

    async def check(self, cni_args: CniArgs) -> Empty:
        """CHECK."""
        with _as_cni_error():
            await self._pods.check(_key(cni_args), _netns(cni_args))
        return Empty()


def _key(args: CniArgs) -> AttachmentKey:
    if not args.container_id or ":" in args.container_id:
        raise CniError(
            CniErrorCode.INVALID_ENVIRONMENT_VARIABLES, f"CNI_CONTAINERID is not a container: {args.container_id!r}"
        )
    try:
        return AttachmentKey(ContainerId(args.container_id), parse_link_name(args.ifname))
    except ValueError as error:
        raise CniError(CniErrorCode.INVALID_ENVIRONMENT_VARIABLES, f"CNI_IFNAME: {error}") from None


def _netns(args: CniArgs) -> NetnsPath:
    if not args.netns.startswith("/"):
        raise CniError(CniErrorCode.INVALID_ENVIRONMENT_VARIABLES, f"CNI_NETNS is not a path: {args.netns!r}")
    return NetnsPath(Path(args.netns))


def _argument(args: CniArgs, name: str) -> str:
    if not (value := args.args.get(name, "")):
        raise CniError(CniErrorCode.INVALID_ENVIRONMENT_VARIABLES, f"CNI_ARGS has no {name}")
    return value


@contextmanager
def _as_cni_error() -> Iterator[None]:
    """Give each failure of the layers below the code that tells the runtime what to do about it."""
    try:
        yield
    except (AddressUnavailableError, BusyError) as error:
        raise CniError(CniErrorCode.TRY_AGAIN_LATER, str(error)) from error
    except NotFoundError as error:
        raise CniError(CniErrorCode.UNKNOWN_CONTAINER, "the pod's namespace does not exist", str(error)) from error
    except ApiError as error:
        raise CniError(CniErrorCode.TRY_AGAIN_LATER, "the API server did not answer", str(error)) from error
    except UnknownAttachmentError as error:
        raise CniError(CniErrorCode.UNKNOWN_CONTAINER, str(error)) from error
    except NamespaceError as error:
        raise CniError(CniErrorCode.UNKNOWN_CONTAINER, "the pod's network namespace is gone", str(error)) from error
    except PodCheckError as error:
        raise CniError(CniErrorCode.INTERNAL, "the pod's network is not as it was made", str(error)) from error
    except NetlinkError as error:
        raise CniError(CniErrorCode.INTERNAL, "the kernel did not take the pod's network", str(error)) from error
    except ValueError as error:
        raise CniError(CniErrorCode.INVALID_ENVIRONMENT_VARIABLES, "the pod cannot be wired", str(error)) from error
