"""A CNI service on grpcio (C-core): an implementation of gRPC that shares nothing with ours."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc

from tests.coil_cni.protobuf import protobuf_message

Handler = Callable[[Any, grpc.ServicerContext], Any]
"""(CNIArgs, context) → the response message."""


@contextmanager
def foreign_server(path: Path, handlers: dict[str, Handler], *, service: str = "pkg.cnirpc.CNI") -> Iterator[None]:
    """Serve the methods ("Add", …) of the service at the Unix socket `path`."""

    def method(handler: Handler) -> grpc.RpcMethodHandler:
        def parse(data: bytes) -> Any:
            message = protobuf_message("pkg.cnirpc.CNIArgs")
            message.ParseFromString(data)
            return message

        return grpc.unary_unary_rpc_method_handler(handler, parse, lambda message: message.SerializeToString())

    with ThreadPoolExecutor(4) as threads:
        server = grpc.server(threads)
        methods = {name: method(handler) for name, handler in handlers.items()}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, methods),))
        server.add_insecure_port(f"unix:{path}")
        server.start()
        try:
            yield
        finally:
            server.stop(grace=None).wait(60)


def abort(context: grpc.ServicerContext, code: grpc.StatusCode, message: str, *details: Any) -> None:
    """End the call with a google.rpc.Status in grpc-status-details-bin, as Go's `status.WithDetails` does."""
    status = protobuf_message("google.rpc.Status", code=code.value[0], message=message)
    for detail in details:
        status.details.add().Pack(detail)
    context.set_trailing_metadata((("grpc-status-details-bin", status.SerializeToString()),))
    context.abort(code, message)
