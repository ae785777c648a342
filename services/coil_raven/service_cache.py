"""The caches of Services and of their EndpointSlices, with their indexes."""

from collections.abc import Mapping
from typing import Final

from coil.crd.builtin import Service
from coil.crd.endpoint_slice import EndpointSlice
from coil.reconcile.store import Indexer

BY_UID: Final = "uid"
BY_SERVICE: Final = "service"
SERVICE_INDEXERS: Final[Mapping[str, Indexer[Service]]] = {BY_UID: lambda service: (service.metadata.uid,)}
SLICE_INDEXERS: Final[Mapping[str, Indexer[EndpointSlice]]] = {BY_SERVICE: lambda each: (service_key(each),)}


def service_key(endpoint_slice: EndpointSlice) -> str:
    """The key of the Service that the slice belongs to; of none if it belongs to none."""
    return f"{endpoint_slice.metadata.namespace}/{endpoint_slice.service}"
