"""caBundle: written where it is missing or wrong, and only there."""

import msgspec
import pytest

from coil.admission.ca_bundle import MUTATING, VALIDATING, BundleInjector, WebhookConfiguration, plan_patch
from coil.kube.errors import InvalidError
from tests.coil.admission.memory_configuration import NAME, MemoryConfigurations, document


def configuration(*bundles: bytes | None) -> WebhookConfiguration:
    made = document(*(f"w{number}" for number in range(len(bundles))))
    for webhook, bundle in zip(made["webhooks"], bundles, strict=True):
        if bundle is not None:
            webhook["clientConfig"]["caBundle"] = msgspec.to_builtins(bundle)
    return msgspec.convert(made, WebhookConfiguration)


def test_only_what_differs_is_patched_and_only_if_it_is_still_there() -> None:
    operations = plan_patch(configuration(b"new", b"old", None, b"new"), b"new")
    assert operations == [
        {"op": "test", "path": "/webhooks/1/name", "value": "w1.example.com"},
        {"op": "add", "path": "/webhooks/1/clientConfig/caBundle", "value": b"new"},
        {"op": "test", "path": "/webhooks/2/name", "value": "w2.example.com"},
        {"op": "add", "path": "/webhooks/2/clientConfig/caBundle", "value": b"new"},
    ]


@pytest.mark.parametrize("already", [configuration(b"new", b"new"), configuration()])
def test_nothing_to_do(already: WebhookConfiguration) -> None:
    assert plan_patch(already, b"new") == []


async def test_both_kinds_get_it_once() -> None:
    api = MemoryConfigurations()
    injector = BundleInjector(api, name=NAME)
    assert (await injector.inject(b"bundle")).patched == (MUTATING.kind, VALIDATING.kind)
    assert api.bundles() == {b"bundle"}
    assert (await injector.inject(b"bundle")).patched == ()
    assert (api.count("get"), api.count("patch")) == (4, 2)


async def test_a_missing_one_does_not_keep_the_other_from_it() -> None:
    api = MemoryConfigurations()
    api.take(MUTATING)
    done = await BundleInjector(api, name=NAME).inject(b"bundle")
    assert (done.patched, done.missing) == ((VALIDATING.kind,), (MUTATING.kind,))
    assert api.bundles() == {b"bundle"}


async def test_a_webhook_that_moved_meanwhile_is_not_given_what_is_anothers() -> None:
    api = MemoryConfigurations()
    stale = configuration(None)
    with pytest.raises(InvalidError):
        await api.patch(MUTATING, NAME, plan_patch(stale, b"bundle"))
    assert api.bundles() == {None}
