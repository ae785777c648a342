"""What failures are to the runtime: the one table from exceptions to the error codes of CNI.

Errors are raised as what they are where they happen; here each kind gets its code. A failure that may pass by itself
(no free address yet, an Egress that is not there, a kernel that refuses tunnels, the API server away, too much to do)
is TRY_AGAIN_LATER, code 11, so that the runtime asks again instead of giving the pod up. What is not in the table is a
bug; the server logs it with its traceback and answers INTERNAL.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from coil.cnirpc.error import CniError, CniErrorCode
from coil.kube.errors import ApiError
from coil.netlink.error import BusyError, NamespaceError, NetlinkError, PodCheckError
from coild.model.attachment import (
    AddressUnavailableError,
    InvalidPodError,
    NoSuchNamespaceError,
    UnknownAttachmentError,
)
from coild.model.pod_egress import EgressRefusedError, EgressUnresolvedError, PodUnknownError

_Code = CniErrorCode

CODES: Mapping[type[Exception], tuple[CniErrorCode, str]] = {
    AddressUnavailableError: (_Code.TRY_AGAIN_LATER, ""),
    BusyError: (_Code.TRY_AGAIN_LATER, ""),
    EgressRefusedError: (_Code.TRY_AGAIN_LATER, "the kernel did not take the pod's egress"),
    EgressUnresolvedError: (_Code.TRY_AGAIN_LATER, "the pod's egress is not available"),
    PodUnknownError: (_Code.TRY_AGAIN_LATER, "the pod's object is not known"),
    ApiError: (_Code.TRY_AGAIN_LATER, "the API server did not answer"),
    NoSuchNamespaceError: (_Code.UNKNOWN_CONTAINER, "the pod's namespace does not exist"),
    UnknownAttachmentError: (_Code.UNKNOWN_CONTAINER, ""),
    NamespaceError: (_Code.UNKNOWN_CONTAINER, "the pod's network namespace is gone"),
    InvalidPodError: (_Code.INVALID_ENVIRONMENT_VARIABLES, "the pod cannot be wired"),
    PodCheckError: (_Code.INTERNAL, "the pod's network is not as it was made"),
    NetlinkError: (_Code.INTERNAL, "the kernel did not take the pod's network"),
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
