"""The peer alone: offers of every kind are answered or refused, and nothing stays behind."""

import asyncio
import random

import pytest

from tests.media.test_sdp import OFFERS, mutate
from voicechat.media import ice
from voicechat.media.playout import Playout
from voicechat.media.rtc import BadOffer, Peer, PeerSettings

LOOPBACK = ice.IceSettings(interfaces=("none",), loopback=True)


class Handler:
    """Takes note of how peers end."""

    def __init__(self) -> None:
        self.reasons: list[str] = []
        self.on_open = self.on_message = self.on_audio = self.on_starved = self.on_played = lambda *_: None
        self.on_rewound = lambda: None

    def on_closed(self, reason: str) -> None:
        self.reasons.append(reason)


async def answer(sdp: str, settings: ice.IceSettings = LOOPBACK) -> str:
    """The answer of a peer that is closed then; checks that it ends once and leaves no task."""
    before = asyncio.all_tasks()
    handler = Handler()
    peer = Peer(handler, Playout(), PeerSettings(ice=settings))
    try:
        return await peer.answer(sdp)
    finally:
        await peer.close("done")
        await peer.close("again")
        await asyncio.sleep(0.02)
        assert len(handler.reasons) == 1
        assert not {task for task in asyncio.all_tasks() - before if not task.done()}


@pytest.mark.parametrize("name", OFFERS)
async def test_good_offers(name):
    text = await answer(OFFERS[name])
    assert "m=audio" in text
    assert "typ host" in text
    assert "127.0.0.1" in text


async def test_bad_offer():
    with pytest.raises(BadOffer, match="no SDP offer"):
        await answer("hello")


async def test_machine_without_a_usable_interface():
    with pytest.raises(RuntimeError, match=r"rtc\.\*"):
        await answer(OFFERS["chromium"], ice.IceSettings(interfaces=("none",)))


async def test_public_address_is_offered_beside_private_ones():
    host = ice.host_addresses(ice.IceSettings(ipv6=False))
    if not host:
        pytest.skip("this machine has no address but 127.0.0.1")
    text = await answer(OFFERS["chromium"], ice.IceSettings(ipv6=False, public_addresses=("203.0.113.9",)))
    assert f"203.0.113.9 {text.split(' typ srflx')[0].split()[-1]} typ srflx raddr {host[0]}" in text


async def test_garbled_offers_are_answered_or_refused():
    rng = random.Random(11)
    answered = 0
    for _ in range(60):
        try:
            await answer(mutate(OFFERS[rng.choice(sorted(OFFERS))], rng.getrandbits(32)))
            answered += 1
        except BadOffer:
            pass
    assert 5 < answered < 55
