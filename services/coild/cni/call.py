"""A call of the plugin as both of coild's CNI services read it, and what its failures are to the runtime.

Every refusal says what was wrong. A failure that may pass by itself (no free address yet, the API server away, a kernel
that refuses tunnels, an Egress that does not exist yet, too much to do) is TRY_AGAIN_LATER, code 11, so that the
runtime asks again instead of giving the pod up.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from coil.cnirpc.error import CniError, CniErrorCode
from coil.cnirpc.messages import CniArgs
from coil.ipam.attachment import AttachmentKey, ContainerId
from coil.kernel.link import parse_link_name
from coil.kube.errors import ApiError, NotFoundError
from coil.netlink.error import BusyError, NamespaceError, NetlinkError, PodCheckError
from coil.netlink.host import NetnsPath
from coild.model.address_source import AddressUnavailableError, PodName
from coild.model.pod_egress import EgressRefusedError, EgressUnresolvedError, PodUnknownError
from coild.pods.pod_service import UnknownAttachmentError


def read_key(args: CniArgs) -> AttachmentKey:
    """Which attachment. Raises CniError, as all of these."""
    if not args.container_id or ":" in args.container_id:
        raise CniError(
            CniErrorCode.INVALID_ENVIRONMENT_VARIABLES, f"CNI_CONTAINERID is not a container: {args.container_id!r}"
        )
    try:
        return AttachmentKey(ContainerId(args.container_id), parse_link_name(args.ifname))
    except ValueError as error:
        raise CniError(CniErrorCode.INVALID_ENVIRONMENT_VARIABLES, f"CNI_IFNAME: {error}") from None


def read_netns(args: CniArgs) -> NetnsPath:
    """Where the pod's namespace is."""
    if not args.netns.startswith("/"):
        raise CniError(CniErrorCode.INVALID_ENVIRONMENT_VARIABLES, f"CNI_NETNS is not a path: {args.netns!r}")
    return NetnsPath(Path(args.netns))


def read_argument(args: CniArgs, name: str) -> str:
    """One of CNI_ARGS that must be there."""
    if not (value := args.args.get(name, "")):
        raise CniError(CniErrorCode.INVALID_ENVIRONMENT_VARIABLES, f"CNI_ARGS has no {name}")
    return value


def read_pod(args: CniArgs) -> PodName:
    """Whose attachment it is."""
    return PodName(
        read_argument(args, "K8S_POD_NAMESPACE"),
        read_argument(args, "K8S_POD_NAME"),
        args.args.get("K8S_POD_UID", ""),
    )


class _ValidAttachment(msgspec.Struct, frozen=True):
    container_id: str = msgspec.field(name="containerID")
    ifname: str


class _Network(msgspec.Struct, frozen=True):
    name: str
    valid_attachments: tuple[_ValidAttachment, ...] | None = msgspec.field(
        name="cni.dev/valid-attachments", default=None
    )


def read_network(args: CniArgs) -> str:
    """The network's name; "" in a configuration that cannot be read, which is the plugin's affair."""
    try:
        return msgspec.json.decode(args.stdin_data, type=_Network).name
    except msgspec.MsgspecError:
        return ""


def read_valid_attachments(args: CniArgs) -> tuple[str, frozenset[AttachmentKey]]:
    """The network's name, and all attachments to it that the runtime knows of (CNI 1.1.0, GC)."""
    try:
        conf = msgspec.json.decode(args.stdin_data, type=_Network)
    except msgspec.MsgspecError as error:
        raise CniError(CniErrorCode.DECODING_FAILURE, "the network configuration cannot be read", str(error)) from None
    if not conf.name or conf.valid_attachments is None:
        # Nothing said is not nothing valid.
        raise CniError(
            CniErrorCode.INVALID_NETWORK_CONFIG, "a GC needs the network's name and its cni.dev/valid-attachments"
        )
    return conf.name, frozenset(
        AttachmentKey(ContainerId(entry.container_id), entry.ifname) for entry in conf.valid_attachments
    )


def is_chained(args: CniArgs) -> bool:
    """Whether there is a result so far. Outside an ADD that says nothing: the runtime hands on the ADD's own result."""
    return args.args.get("IS_CHAINED") == "true"


@contextmanager
def as_cni_error() -> Iterator[None]:
    """Give each failure of the layers below the code that tells the runtime what to do about it."""
    try:
        yield
    except EgressRefusedError as error:
        raise CniError(CniErrorCode.TRY_AGAIN_LATER, "the kernel did not take the pod's egress", str(error)) from error
    except EgressUnresolvedError as error:
        raise CniError(CniErrorCode.TRY_AGAIN_LATER, "the pod's egress is not available", str(error)) from error
    except PodUnknownError as error:
        raise CniError(CniErrorCode.TRY_AGAIN_LATER, "the pod's object is not known", str(error)) from error
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
