"""What is used of aiortc's and aioice's insides is still there: a new version fails here first, and says what moved."""

import aioice
import pytest
from aiortc import RTCDtlsTransport

from voicechat.media import aioice_adapter, aiortc_adapter


async def test_the_installed_versions_are_those_we_know():
    aiortc_adapter.check()
    aioice_adapter.check()


async def test_a_moved_attribute_is_named(monkeypatch):
    monkeypatch.delattr(RTCDtlsTransport, "_set_role")
    with pytest.raises((RuntimeError, AttributeError), match="_set_role"):
        aiortc_adapter.check()


async def test_a_moved_method_is_named(monkeypatch):
    monkeypatch.delattr(aioice.Connection, "query_consent")
    with pytest.raises(RuntimeError, match="query_consent"):
        aioice_adapter.check()


def test_one_certificate_serves_many_calls():
    assert aiortc_adapter.certificate() is aiortc_adapter.certificate()
    ((name, value),) = aiortc_adapter.fingerprints(aiortc_adapter.certificate())
    assert (name, value.count(":")) == ("sha-256", 31)
