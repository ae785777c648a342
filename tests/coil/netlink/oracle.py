"""pyroute2 as the reader of what is written here: its message classes were written by others from the same headers."""

from typing import Any

from coil.netlink.wire import HEADER, Request


def read(message_class: Any, request: Request) -> Any:
    """The request as a message of that class."""
    header = HEADER.pack(HEADER.size + len(request.body), request.type, request.flags, 1, 0)
    message = message_class(header + request.body)
    message.decode()
    return message
