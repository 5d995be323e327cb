"""The peer alone: offers of every kind are answered or refused, and nothing stays behind."""

import asyncio
import random
import re

import pytest

from tests.media.test_sdp import OFFERS, mutate
from voicechat.media import ice
from voicechat.media.aioice_adapter import IceLink
from voicechat.media.aiortc_adapter import Line
from voicechat.media.playout import Playout
from voicechat.media.rtc import MAX_MAKING, BadOffer, Peer, PeerSettings
from voicechat.media.sdp import parse

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


FIRST = OFFERS["chromium"]


def again(number: int, *, other: bool = False) -> str:
    """The offer of an ICE restart, and with ``other``, by a client that has made its connection anew."""
    text = re.sub(r"a=ice-ufrag:\S+", f"a=ice-ufrag:again{number}", FIRST)
    return re.sub(r"(a=fingerprint:sha-256 )\S\S", rf"\g<1>{number:02X}", text) if other else text


@pytest.fixture
async def connected(monkeypatch):
    """A peer whose client has connected, and answers no check over any other way but ``again7``."""
    there = {parse(FIRST).transport.ufrag, "again7"}

    async def reach(_link, _candidates, ufrag, _password, *, lite):
        await asyncio.sleep(0 if ufrag in there else 3600)

    async def start(_line):
        pass

    monkeypatch.setattr(IceLink, "reach", reach)
    monkeypatch.setattr(Line, "start", start)
    peer = Peer(Handler(), Playout(), PeerSettings(ice=LOOPBACK))
    await peer.answer(FIRST)
    await asyncio.wait(peer._tasks)
    assert [way.made for way in peer._ways] == [True]
    yield peer
    await peer.close("done")


async def test_renewals_in_the_making_are_bounded(connected):
    for number in range(MAX_MAKING):
        await connected.renew(again(number))
    with pytest.raises(BadOffer, match="4 connections in the making"):
        await connected.renew(again(MAX_MAKING))
    assert "again" not in await connected.renew(again(0)), "what is in the making may be offered again"
    assert len(connected._ways) == 1 + MAX_MAKING
    await connected.renew(FIRST)


async def test_a_call_that_has_ended_is_not_renewed(connected):
    await connected.close("done")
    with pytest.raises(BadOffer, match="ended"):
        await connected.renew(FIRST)


async def test_renewals_at_the_same_moment_are_bounded(connected):
    answers = await asyncio.gather(*(connected.renew(again(n)) for n in range(9)), return_exceptions=True)
    assert sum(isinstance(one, BadOffer) for one in answers) == 9 - MAX_MAKING


async def test_a_renewal_that_does_not_connect_is_given_up_and_changes_nothing(connected):
    offer, sender, microphone, line = connected._offer, connected.sender, connected.microphone, connected._line
    connected._settings = PeerSettings(ice=LOOPBACK, connect=0.05)
    pcmu = re.sub(r"(m=audio \d+ \S+) .*", r"\g<1> 0", again(1, other=True))
    assert "PCMU" in await connected.renew(pcmu)
    await connected.renew(again(2))
    failed = connected._ways[1:]
    assert failed[0].line is not line and failed[1].line is line
    assert (connected._offer, connected.sender, connected.microphone) == (offer, sender, microphone)
    tasks = list(connected._tasks)
    await asyncio.wait(tasks)
    assert len(connected._ways) == 1 and connected._closing is None
    assert (connected._offer, connected.sender, connected._line) == (offer, sender, line)
    assert failed[0].line._over and not line._over, "the line that was begun is closed"
    assert not any(way.link._protocols for way in failed), "and so are the sockets"


async def test_a_renewal_that_connects_takes_over(connected):
    line, first = connected._line, connected._ways[0]
    await connected.renew(again(1))
    pcmu = re.sub(r"(m=audio \d+ \S+) .*", r"\g<1> 0", again(7, other=True))
    before = set(connected._tasks)
    await connected.renew(pcmu)
    await asyncio.wait(connected._tasks - before)
    (way,) = connected._ways
    assert way.offer is connected._offer and connected._offer.codec.name.lower() == "pcmu"
    assert connected._line is way.line is not line and line._over and not first.link._protocols
