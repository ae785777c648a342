"""The API server in memory keeps the contract."""

import pytest

from coil.kube.api_client import ApiClient
from tests.coil.kube.api_client_contract import ApiClientContract
from tests.coil.kube.memory_api import MemoryApi, MemoryClient


class TestMemoryApi(ApiClientContract):
    @pytest.fixture
    def client(self) -> ApiClient:
        api = MemoryApi()
        return MemoryClient(api)

    @pytest.fixture
    def name(self) -> str:
        return "some"
