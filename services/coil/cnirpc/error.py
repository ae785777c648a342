"""The error document of the CNI specification, as the exception that coild's services raise."""

from enum import IntEnum


class CniErrorCode(IntEnum):
    """Well-known codes (CNI specification, "Error") and the two that Coil adds: UNKNOWN and INTERNAL."""

    UNKNOWN = 0
    INCOMPATIBLE_CNI_VERSION = 1
    UNSUPPORTED_FIELD = 2
    UNKNOWN_CONTAINER = 3
    INVALID_ENVIRONMENT_VARIABLES = 4
    IO_FAILURE = 5
    DECODING_FAILURE = 6
    INVALID_NETWORK_CONFIG = 7
    TRY_AGAIN_LATER = 11
    INTERNAL = 999


class CniError(Exception):
    """A call failed. `msg` is one sentence for the pod's event, `details` whatever helps to find the cause."""

    def __init__(self, code: CniErrorCode, msg: str, details: str = "") -> None:
        super().__init__(code, msg, details)
        self.code = code
        self.msg = msg
        self.details = details

    def __str__(self) -> str:
        return f"{self.msg}: {self.details}" if self.details else self.msg
