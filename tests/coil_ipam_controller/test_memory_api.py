"""The API server in memory keeps the contract."""

import pytest

from coil.kube.api_client import ApiClient
from tests.coil_ipam_controller.api_client_contract import ApiClientContract
from tests.coil_ipam_controller.memory_api import MemoryApi, MemoryClient


class TestMemoryApi(ApiClientContract):
    @pytest.fixture
    def client(self) -> ApiClient:
        return MemoryClient(MemoryApi())

    @pytest.fixture
    def name(self) -> str:
        return "some"
