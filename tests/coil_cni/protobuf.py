"""protobuf's own message classes for cni.proto and google.rpc.Status: the oracle for hand-written encodings."""

from typing import Any

from google.protobuf import any_pb2, empty_pb2
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

from coil.cnirpc.descriptor import CNI_FILE_DESCRIPTOR


def _status_file() -> FileDescriptorProto:
    file = FileDescriptorProto(
        name="google/rpc/status.proto",
        package="google.rpc",
        dependency=["google/protobuf/any.proto"],
        syntax="proto3",
    )
    status = file.message_type.add(name="Status")
    one, many = FieldDescriptorProto.LABEL_OPTIONAL, FieldDescriptorProto.LABEL_REPEATED
    status.field.add(name="code", number=1, type=FieldDescriptorProto.TYPE_INT32, label=one)
    status.field.add(name="message", number=2, type=FieldDescriptorProto.TYPE_STRING, label=one)
    status.field.add(
        name="details",
        number=3,
        type=FieldDescriptorProto.TYPE_MESSAGE,
        type_name=".google.protobuf.Any",
        label=many,
    )
    return file


def _pool() -> DescriptorPool:
    pool = DescriptorPool()
    pool.AddSerializedFile(any_pb2.DESCRIPTOR.serialized_pb)
    pool.AddSerializedFile(empty_pb2.DESCRIPTOR.serialized_pb)
    pool.AddSerializedFile(_status_file().SerializeToString())
    pool.AddSerializedFile(CNI_FILE_DESCRIPTOR)
    return pool


_POOL = _pool()


def protobuf_message(name: str, /, **fields: Any) -> Any:
    """A new message of the full name, such as "pkg.cnirpc.CNIArgs"."""
    return GetMessageClass(_POOL.FindMessageTypeByName(name))(**fields)
