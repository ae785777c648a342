"""A Secret in memory: a write must be decided on the version that is there, as on the API server."""

from collections.abc import Mapping

from coil.admission.self_managed import TLS_TYPE, Secret, SecretStore
from coil.crd.meta import ObjectMeta
from coil.kube.errors import AlreadyExistsError, ApiError, ConflictError, NotFoundError


class MemorySecret(SecretStore):
    """`fault` is raised by every call while it is set; calls are counted by verb."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] | None = None
        self.fault: ApiError | None = None
        self.calls = {"read": 0, "create": 0, "replace": 0}
        self._version = 0

    @property
    def writes(self) -> int:
        return self.calls["create"] + self.calls["replace"]

    def put(self, files: Mapping[str, bytes] | None) -> None:
        """As somebody else does it."""
        self.files = None if files is None else dict(files)
        self._version += 1

    async def read(self) -> Secret | None:
        self._count("read")
        if self.files is None:
            return None
        metadata = ObjectMeta(name="secret", resource_version=str(self._version))
        return Secret(metadata=metadata, type=TLS_TYPE, data=dict(self.files))

    async def create(self, files: Mapping[str, bytes]) -> None:
        self._count("create")
        if self.files is not None:
            raise AlreadyExistsError("the Secret exists", status=409)
        self.put(files)

    async def replace(self, before: Secret, files: Mapping[str, bytes]) -> None:
        self._count("replace")
        if self.files is None:
            raise NotFoundError("no Secret", status=404)
        if before.metadata.resource_version != str(self._version):
            raise ConflictError("the Secret has changed", status=409)
        self.put(files)

    def _count(self, verb: str) -> None:
        self.calls[verb] += 1
        if self.fault is not None:
            raise self.fault
