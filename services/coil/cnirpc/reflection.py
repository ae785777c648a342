"""gRPC server reflection for services whose messages carry no descriptor.

Descriptors live in a pool of our own, not in protobuf's process-wide one.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from google.protobuf import empty_pb2
from google.protobuf.descriptor_pool import DescriptorPool
from grpclib.health.v1 import health_pb2
from grpclib.reflection.service import ServerReflection
from grpclib.reflection.v1 import reflection_pb2
from grpclib.reflection.v1alpha import reflection_pb2 as reflection_alpha_pb2

from coil.cnirpc.descriptor import CNI_FILE_DESCRIPTOR

if TYPE_CHECKING:
    from grpclib._typing import IServable


def with_reflection(services: Sequence["IServable"]) -> list["IServable"]:
    """The services, and the reflection services (v1, v1alpha) that describe them."""
    pool = DescriptorPool()
    # A file may be added only after those that it imports: cni.proto needs empty.proto.
    for module in (empty_pb2, health_pb2, reflection_pb2, reflection_alpha_pb2):
        pool.AddSerializedFile(module.DESCRIPTOR.serialized_pb)
    pool.AddSerializedFile(CNI_FILE_DESCRIPTOR)
    return ServerReflection.extend(services, pool=pool)
