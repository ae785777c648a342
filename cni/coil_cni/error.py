"""The error document of the CNI specification (SPEC.md, "Error"), as an exception."""

INCOMPATIBLE_CNI_VERSION = 1
INVALID_ENVIRONMENT = 4
IO_FAILURE = 5
DECODING_FAILURE = 6
INVALID_NETWORK_CONFIG = 7
TRY_AGAIN_LATER = 11
NOT_AVAILABLE = 50
INTERNAL = 999


class CniError(Exception):
    """`code` is one of the above or what coild answered; `msg` one sentence; `details` may be empty."""

    def __init__(self, code: int, msg: str, details: str = "") -> None:
        super().__init__(code, msg, details)
        self.code = code
        self.msg = msg
        self.details = details

    def document(self, version: str) -> dict[str, object]:
        """What goes to standard output, as an object of the given cniVersion."""
        return {"cniVersion": version, "code": self.code, "msg": self.msg, "details": self.details}


class UnreachableError(CniError):
    """Nobody listens at the server's socket, or whoever does has not answered by the deadline."""


class UnimplementedError(CniError):
    """The server lacks the method, being of another release than the plugin."""
