"""The peer alone: offers of every kind are answered or refused, and nothing stays behind."""

import asyncio
import random

import aioice.ice
import pytest
from aiortc import RTCConfiguration, RTCPeerConnection

from voicechat.media import ice
from voicechat.media.playout import Playout
from voicechat.media.rtc import BadOffer, Peer, PeerSettings

LOOPBACK = ice.IceSettings(interfaces=("none",), loopback=True)


class Handler:
    """Takes note of how peers end."""

    def __init__(self) -> None:
        self.reasons: list[str] = []
        self.on_open = self.on_message = self.on_audio = self.on_starved = self.on_played = lambda *_: None

    def on_closed(self, reason: str) -> None:
        self.reasons.append(reason)


@pytest.fixture(autouse=True)
def only_loopback(monkeypatch):
    monkeypatch.setattr(aioice.ice, "get_host_addresses", aioice.ice.get_host_addresses)
    ice.use_host_addresses(LOOPBACK)


@pytest.fixture
async def offer():
    connection = RTCPeerConnection(RTCConfiguration(iceServers=[]))
    connection.addTransceiver("audio")
    connection.createDataChannel("oai-events")
    await connection.setLocalDescription(await connection.createOffer())
    yield connection.localDescription.sdp
    await connection.close()


async def answer(sdp: str) -> str:
    """The answer of a peer that is closed then; checks that it ends once and leaves no task."""
    before = asyncio.all_tasks()
    handler = Handler()
    peer = Peer(handler, Playout(), PeerSettings(ice=LOOPBACK))
    try:
        return await peer.answer(sdp)
    finally:
        await peer.close("done")
        await peer.close("again")
        await asyncio.sleep(0.05)
        assert len(handler.reasons) == 1
        assert not {task for task in asyncio.all_tasks() - before if not task.done()}


async def test_good_offer(offer):
    text = await answer(offer)
    assert "m=audio" in text
    assert "m=application" in text
    assert "127.0.0.1" in text


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("opus/48000/2", "speex/48000/2", "no Opus"),
        ("m=audio", "m=video", "one audio section"),
        ("m=application", "m=audio", "no SDP offer"),
        ("a=group:BUNDLE 0 1", "a=group:BUNDLE 0", "bundle"),
        ("a=group:BUNDLE 0 1", "a=group:BUNDLE 0 0", "bundle"),
        ("a=group:BUNDLE 0 1", "a=group:BUNDLE 1 7", "bundle"),
        ("a=mid:1", "a=mid:0", "bundle"),
        ("a=fingerprint:", "a=footprint:", "DTLS"),
        ("a=setup:actpass", "a=setup:sideways", "no SDP offer"),
        ("a=ice-ufrag:", "a=ice-nothing:", "ICE"),
        ("a=ice-pwd:", "a=ice-nothing:", "ICE"),
    ],
)
async def test_bad_offers_are_refused_with_a_reason(offer, old, new, words):
    assert old in offer
    with pytest.raises(BadOffer, match=words):
        await answer(offer.replace(old, new))


async def test_machine_without_a_usable_interface(offer):
    ice.use_host_addresses(ice.IceSettings(interfaces=("none",)))
    with pytest.raises(RuntimeError, match="interface"):
        await answer(offer)


def mutate(lines: list[str], rng: random.Random) -> list[str]:
    """A few lines lost, doubled, cut or garbled."""
    lines = list(lines)
    for _ in range(rng.randint(1, 4)):
        index = rng.randrange(len(lines))
        words = lines[index].split(" ")
        match rng.randrange(5):
            case 0:
                del lines[index]
            case 1:
                lines.insert(index, rng.choice(lines))
            case 2:
                words[rng.randrange(len(words))] = rng.choice(["", "0", "-1", "x", "99999999999", "::1", "1.2.3.4"])
                lines[index] = " ".join(words)
            case 3:
                lines[index] = lines[index][: rng.randrange(len(lines[index]) + 1)]
            case 4:
                cut = rng.randrange(len(lines[index]) + 1)
                lines[index] = lines[index][:cut] + chr(rng.randrange(32, 127)) + lines[index][cut + 1 :]
    return lines


async def test_garbled_offers_are_answered_or_refused(offer):
    rng = random.Random(11)
    refused = 0
    for _ in range(80):
        try:
            await answer("\r\n".join(mutate(offer.splitlines(), rng)) + "\r\n")
        except BadOffer:
            refused += 1
    assert 20 < refused < 70
