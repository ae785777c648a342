"""ConfigMaps: a kind with next to no meaning, for tests of the client and the informer."""

import msgspec

from coil.crd.meta import ObjectMeta, Struct
from coil.crd.resource import Resource


class ConfigMap(Struct, frozen=True, kw_only=True):
    metadata: ObjectMeta
    data: dict[str, str] = msgspec.field(default_factory=dict)


CONFIG_MAPS: Resource[ConfigMap] = Resource("", "v1", "configmaps", "ConfigMap", namespaced=True, type=ConfigMap)
