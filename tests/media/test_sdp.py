"""Offers after the formats of other stacks are answered; what is made of them is read back by aiortc's own parser."""

from __future__ import annotations

import contextlib
import random
from pathlib import Path

import pytest
from aiortc.sdp import SessionDescription
from hypothesis import given, settings
from hypothesis import strategies as st

from voicechat.media import sdp
from voicechat.media.sdp import BadOffer, Candidate, Local

OFFERS = {path.stem: path.read_text() for path in sorted((Path(__file__).parent / "offers").glob("*.sdp"))}
HOST = Candidate("f1", 1, "udp", 2130706431, "192.0.2.1", 40000, "host")
LOCAL = Local("ours", "secret" * 4, [("sha-256", "AB:" * 31 + "CD")], True, [HOST], 1234, "name", 7, 262_144)


def answered(text: str) -> tuple[sdp.Offer, str]:
    offer = sdp.parse(text)
    return offer, sdp.answer(offer, LOCAL)


def sections(text: str) -> list[list[str]]:
    """The lines of each section."""
    return [part.splitlines() for part in ("\n" + text.replace("\r\n", "\n")).split("\nm=")[1:]]


@pytest.mark.parametrize("name", OFFERS)
@pytest.mark.parametrize("end", ["\r\n", "\n", "\r\n\r\n"])
def test_every_stack_is_answered(name, end):
    text = OFFERS[name].replace("\n", end)
    offer, answer = answered(text)
    theirs, ours = sections(OFFERS[name]), sections(answer)
    assert [lines[0].split()[0] for lines in ours] == [lines[0].split()[0] for lines in theirs]
    assert [lines[0].split()[2] for lines in ours] == [lines[0].split()[2] for lines in theirs], "the same protocols"
    mids = [[line for line in lines if line.startswith("a=mid:")] for lines in theirs]
    assert [[line for line in lines if line.startswith("a=mid:")] for lines in ours] == mids
    live = [lines for lines in ours if lines[0].split()[1] != "0"]
    assert len(live) == 1 + (offer.data is not None)
    if offer.bundled:
        group = next(line for line in answer.splitlines() if line.startswith("a=group:BUNDLE"))
        assert group.split()[1:] == [line[6:] for lines in live for line in lines if line.startswith("a=mid:")]
    else:
        assert "BUNDLE" not in answer
    for lines in live:
        assert "a=setup:active" in lines
        assert "a=ice-ufrag:ours" in lines
    parsed = SessionDescription.parse(answer)
    audio = parsed.media[offer.audio]
    assert (audio.rtp.codecs[0].payloadType, audio.rtcp_mux) == (offer.codec.payload_type, True)
    assert audio.ice_candidates[0].ip == "192.0.2.1"


def test_what_each_says():
    codecs = {name: sdp.parse(text).codec for name, text in OFFERS.items()}
    assert {name: codec.name for name, codec in codecs.items()} == {
        "aiortc": "opus", "chromium": "opus", "chromium-video": "opus", "firefox-esr": "opus",
        "firefox-esr-max-bundle": "opus", "firefox-max-bundle": "opus",
        "gateway-pcmu": "pcmu", "gstreamer": "opus", "libpeer-esp32": "pcma", "libwebrtc-native": "opus",
        "pion": "opus", "recvonly": "opus", "safari": "opus",
    }  # fmt: skip
    assert (codecs["gateway-pcmu"].clock, codecs["chromium"].clock) == (8_000, 48_000)
    assert (codecs["libwebrtc-native"].max_bitrate, codecs["chromium"].max_bitrate) == (24_000, None)
    data = {name: offer.data for name, text in OFFERS.items() if (offer := sdp.parse(text))}
    assert {name for name, found in data.items() if found is None} == {"gateway-pcmu", "recvonly"}
    assert {found.sctp_port for found in data.values() if found is not None} == {5000}
    setups = {name: sdp.parse(text).transport.setup for name, text in OFFERS.items()}
    assert {name for name, setup in setups.items() if setup != "actpass"} == {"libpeer-esp32"}


def test_unwanted_sections_are_refused_and_not_bundled():
    _, answer = answered(OFFERS["chromium-video"])
    assert "a=group:BUNDLE 0 2\r\n" in answer
    audio, video, data, second = sections(answer)
    assert [lines[0].split()[1] for lines in (audio, video, data, second)] == ["40000", "0", "40000", "0"]
    assert "a=mid:1" in video
    assert not any("ice-ufrag" in line or "rtpmap" in line for line in video + second)


def test_addresses_are_those_of_the_first_component():
    found = sdp.parse(OFFERS["firefox-max-bundle"]).transport.candidates
    assert [(one.host, one.port) for one in found] == [("198.51.100.20", 45664)]
    assert [one.host for one in sdp.parse(OFFERS["chromium"]).transport.candidates] == ["192.0.2.17"], "no .local"


@pytest.mark.parametrize(
    ("offered", "given"),
    [("sendrecv", "sendrecv"), ("recvonly", "sendonly"), ("sendonly", "recvonly"), ("inactive", "inactive")],
)
def test_directions(offered, given):
    offer, answer = answered(OFFERS["recvonly"].replace("a=recvonly", f"a={offered}"))
    assert f"a={given}" in sections(answer)[offer.audio]
    assert ("a=ssrc:1234" in answer) == (given in ("sendrecv", "sendonly"))


def test_direction_of_the_session_holds_where_a_section_has_none():
    text = OFFERS["gateway-pcmu"].replace("t=0 0\n", "t=0 0\na=recvonly\n")
    assert sdp.parse(text).answered == "sendonly"
    assert sdp.parse(OFFERS["gateway-pcmu"]).answered == "sendrecv"


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("v=0", "hello", "no SDP offer"),
        ("opus/48000/2", "speex/48000/2", "no Opus"),
        ("m=audio", "m=video", "audio section"),
        ("UDP/TLS/RTP/SAVPF", "RTP/AVP", "DTLS-SRTP"),
        ("m=audio 9", "m=audio x", "no SDP offer"),
        ("a=group:BUNDLE 0 1", "a=group:BUNDLE 0", "bundle"),
        ("a=group:BUNDLE 0 1", "a=group:BUNDLE 0 0", "bundle"),
        ("a=group:BUNDLE 0 1", "a=group:BUNDLE 0 7", "bundle"),
        ("a=group:BUNDLE 0 1", "a=nothing", "bundle"),
        ("a=mid:1", "a=mid:0", "the same name"),
        ("a=fingerprint:", "a=footprint:", "DTLS"),
        ("a=fingerprint:sha-256", "a=fingerprint:md5", "fingerprints"),
        ("a=setup:actpass", "a=setup:holdconn", "setup"),
        ("a=ice-ufrag:", "a=ice-nothing:", "ICE"),
        ("a=ice-pwd:", "a=ice-nothing:", "ICE"),
        ("a=rtcp-mux\n", "", "rtcp-mux"),
        ("a=sctp-port:5000", "a=sctp-port:0", "SCTP port"),
    ],
)
def test_what_cannot_be_answered_is_refused_with_a_reason(old, new, words):
    text = OFFERS["chromium"].replace("a=rtpmap:0 PCMU", "a=rtpmap:0 X").replace("a=rtpmap:8 PCMA", "a=rtpmap:8 X")
    assert old in text
    sdp.parse(text)
    with pytest.raises(BadOffer, match=words):
        sdp.parse(text.replace(old, new))


def test_too_long():
    with pytest.raises(BadOffer, match="longer"):
        sdp.parse(OFFERS["chromium"] + "a=x\r\n" * 20_000)


ODD = ["", "0", "-1", "x", "99999999999", "::1", "1.2.3.4", "*", "²", "\0", "a=mid:", "BUNDLE", "opus/48000/2"]


def mutate(text: str, seed: int) -> str:
    """A few lines lost, doubled, moved, cut or garbled."""
    rng = random.Random(seed)
    lines = text.splitlines()
    for _ in range(rng.randint(1, 5)):
        index = rng.randrange(len(lines))
        words = lines[index].split(" ")
        match rng.randrange(6):
            case 0:
                del lines[index]
            case 1:
                lines.insert(index, rng.choice(lines))
            case 2:
                words[rng.randrange(len(words))] = rng.choice(ODD)
                lines[index] = " ".join(words)
            case 3:
                lines[index] = lines[index][: rng.randrange(len(lines[index]) + 1)]
            case 4:
                cut = rng.randrange(len(lines[index]) + 1)
                lines[index] = lines[index][:cut] + chr(rng.randrange(1, 0x250)) + lines[index][cut + 1 :]
            case 5:
                rng.shuffle(lines)
        lines = lines or ["v=0"]
    return "\r\n".join(lines)


@settings(max_examples=400, deadline=None)
@given(st.sampled_from(sorted(OFFERS)), st.integers(0, 1 << 32))
def test_a_garbled_offer_is_answered_or_refused_and_nothing_else(name, seed):
    try:
        _, answer = answered(mutate(OFFERS[name], seed))
    except BadOffer:
        pass
    else:
        assert answer.count("\r\nm=") == answer.count("\r\nc=")


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=300))
def test_any_text_at_all(text):
    for whole in (text, f"v=0\n{text}", f"v=0\nm=audio 9 UDP/TLS/RTP/SAVPF 0\n{text}"):
        with contextlib.suppress(BadOffer):
            answered(whole)


def test_candidate_lines_round_trip():
    line = "x 1 udp 1694498815 203.0.113.9 40000 typ srflx raddr 10.0.0.4 rport 40001"
    found = sdp.candidate(line)
    assert found is not None
    assert found.to_line() == line
    assert sdp.candidate("x 1 udp 1694498815 203.0.113.9 0 typ host") is None
