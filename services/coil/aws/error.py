"""What EC2 says when it does not do what it was asked to.

Error codes are EC2's own (EC2 API Reference, "Error codes"). A caller tells apart what it can act upon; after an
UnavailableError of a call that changes something, nobody knows whether it took place: look again.
"""

from typing import Final

LONGEST_MESSAGE: Final = 300
"""What is kept of EC2's words: they end up in logs, Events and answers to ADDs. A refusal for want of a permission has
kilobytes of cipher behind it."""


class Ec2Error(Exception):
    """EC2 has refused a call. `call` is the operation's name, `code` EC2's word."""

    def __init__(self, call: str, code: str, message: str) -> None:
        super().__init__(f"{call}: {code}: {message}")
        self.call = call
        self.code = code


class ThrottledError(Ec2Error):
    """Too many calls of this account in this region; nothing was done."""


class UnavailableError(Ec2Error):
    """No answer, or none of EC2's own handlers."""


class NotSentError(UnavailableError):
    """There was no connection to EC2, or nothing to sign the call with: it has not heard of it."""


class DeniedError(Ec2Error):
    """The instance's role does not allow this; the message names the action."""


class SubnetFullError(Ec2Error):
    """The subnet has no address, or no whole prefix, to give."""


class LimitError(Ec2Error):
    """The interface has as many addresses, or the instance as many interfaces, as EC2 allows."""


class GoneError(Ec2Error):
    """What was named does not exist any more."""


class InUseError(Ec2Error):
    """The interface is attached, or the address is not one that can be taken away."""


_THROTTLED: Final = frozenset(
    {
        *("RequestLimitExceeded", "Throttling", "ThrottlingException", "ThrottledException", "EC2ThrottledException"),
        *("RequestThrottled", "RequestThrottledException", "TooManyRequestsException", "SlowDown"),
    }
)
_UNAVAILABLE: Final = frozenset({"InternalError", "InternalFailure", "ServiceUnavailable", "Unavailable"})
_KINDS: Final[dict[str, type[Ec2Error]]] = {
    **dict.fromkeys(_THROTTLED, ThrottledError),
    **dict.fromkeys(_UNAVAILABLE, UnavailableError),
    **dict.fromkeys(("UnauthorizedOperation", "AuthFailure", "AccessDenied", "AccessDeniedException"), DeniedError),
    **dict.fromkeys(("InsufficientFreeAddressesInSubnet", "InsufficientCidrBlocks"), SubnetFullError),
    **dict.fromkeys(
        ("PrivateIpAddressLimitExceeded", "AttachmentLimitExceeded", "NetworkInterfaceLimitExceeded"), LimitError
    ),
    **dict.fromkeys(
        (
            *("InvalidNetworkInterfaceID.NotFound", "InvalidNetworkInterfaceId.NotFound"),
            *("InvalidAttachmentID.NotFound", "InvalidSubnetID.NotFound"),
        ),
        GoneError,
    ),
    **dict.fromkeys(("InvalidParameterValue.InUse", "InvalidNetworkInterface.InUse"), InUseError),
}

_FULL_BY_MESSAGE: Final = "aren't sufficient free Ipv4 addresses or prefixes"
"""What CreateNetworkInterface says of a full subnet at times, with the code InvalidParameterValue
(https://github.com/aws/amazon-vpc-cni-k8s/issues/3105)."""
_CIPHER: Final = "Encoded authorization failure message:"


def error_of(call: str, code: str, message: str, *, status: int = 400) -> Ec2Error:
    """The error of that code; one that nobody acts upon is a plain Ec2Error."""
    kind = _KINDS.get(code, UnavailableError if status >= 500 else ThrottledError if status == 429 else Ec2Error)
    if _FULL_BY_MESSAGE in message:
        kind = SubnetFullError
    said, _, _ = message.partition(_CIPHER)
    said = said.rstrip()
    return kind(call, code, said if len(said) <= LONGEST_MESSAGE else f"{said[:LONGEST_MESSAGE]}…")
