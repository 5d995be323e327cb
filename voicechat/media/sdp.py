"""Offers as clients write them, and the answers: one audio section and one data section over one transport. Pure.

Only what is needed is read; whatever else stands in an offer (unknown attributes, formats that nobody listed, blank
lines) is left alone, as RFC 8866 section 5.13 asks. Sections that are not wanted are answered with port 0 (RFC 3264
section 6) and left out of the bundle (RFC 9143 section 7.3.3). RFC 9429 (JSEP) section 5.3.1 has the answer's form.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

MAX_OFFER_BYTES = 64 * 1024
MAX_SECTIONS = 64
MAX_CANDIDATES = 64
"""Of the client; what is beyond is not tried."""

DIGESTS = ("sha-256", "sha-384", "sha-512")
"""Fingerprints that can be checked."""

RTP_PROTOCOLS = ("UDP/TLS/RTP/SAVPF", "UDP/TLS/RTP/SAVP", "RTP/SAVPF", "RTP/SAVP", "TCP/DTLS/RTP/SAVPF")
SCTP_PROTOCOLS = ("UDP/DTLS/SCTP", "TCP/DTLS/SCTP", "DTLS/SCTP")

_STATIC = {"0": ("pcmu", 8000), "8": ("pcma", 8000)}
_CODECS = ("opus", "pcmu", "pcma")
"""In the order in which they are liked."""
_CLOCKS = {"opus": 48_000, "pcmu": 8_000, "pcma": 8_000}
_RTPMAP = {"opus": "opus/48000/2", "pcmu": "PCMU/8000", "pcma": "PCMA/8000"}
_ANSWERED = {"sendrecv": "sendrecv", "sendonly": "recvonly", "recvonly": "sendonly", "inactive": "inactive"}


class BadOffer(ValueError):
    """The SDP offer can't be answered; ``str()`` says why."""


@dataclass(frozen=True, slots=True)
class Codec:
    """What sound is coded with: ``name`` (opus, pcmu, pcma), its number in RTP, its clock in Hz, and the most bits
    per second that the client wants, if it says so."""

    name: str
    payload_type: int
    clock: int
    max_bitrate: int | None = None


@dataclass(frozen=True, slots=True)
class Candidate:
    """An address at which a side may be reached (RFC 8839 section 5.1)."""

    foundation: str
    component: int
    transport: str
    priority: int
    host: str
    port: int
    kind: str
    related: tuple[str, int] | None = None
    tcp_type: str | None = None

    def to_line(self) -> str:
        """The attribute's value, without its name."""
        text = f"{self.foundation} {self.component} {self.transport} {self.priority} {self.host} {self.port}"
        text += f" typ {self.kind}"
        if self.related is not None:
            text += f" raddr {self.related[0]} rport {self.related[1]}"
        return text if self.tcp_type is None else f"{text} tcptype {self.tcp_type}"


@dataclass(frozen=True, slots=True)
class Transport:
    """How the client is reached and known. ``setup`` as in RFC 4145: what the client wants to be."""

    ufrag: str
    password: str
    fingerprints: tuple[tuple[str, str], ...]
    setup: str
    lite: bool
    candidates: tuple[Candidate, ...]


@dataclass(frozen=True, slots=True)
class Section:
    """One ``m=`` line with what belongs to it."""

    kind: str
    port: int
    protocol: str
    formats: tuple[str, ...]
    attributes: tuple[tuple[str, str], ...]

    def get(self, name: str) -> str | None:
        """The first value of an attribute; empty for a flag."""
        return next((value for key, value in self.attributes if key == name), None)

    def all(self, name: str) -> list[str]:
        """Every value of an attribute."""
        return [value for key, value in self.attributes if key == name]

    @property
    def mid(self) -> str | None:
        """Its name in groups, if it has one."""
        return self.get("mid") or None

    @property
    def offered(self) -> bool:
        """False if the client itself has switched it off (RFC 9143 section 7.2.1: ``bundle-only`` has port 0 too)."""
        return self.port != 0 or self.get("bundle-only") is not None


@dataclass(frozen=True, slots=True)
class Data:
    """The data section: the client's SCTP port, and the largest message that it takes (0: any)."""

    index: int
    sctp_port: int
    max_message: int


@dataclass(frozen=True, slots=True)
class Offer:
    """What is taken of an offer: ``audio`` and ``data`` are indices of ``sections``."""

    sections: tuple[Section, ...]
    audio: int
    codec: Codec
    direction: str
    data: Data | None
    transport: Transport
    bundled: bool

    @property
    def answered(self) -> str:
        """Direction of the answer's audio."""
        return _ANSWERED[self.direction]


@dataclass(frozen=True, slots=True)
class Local:
    """This side of an answer. ``active``: it opens DTLS."""

    ufrag: str
    password: str
    fingerprints: Sequence[tuple[str, str]]
    active: bool
    candidates: Sequence[Candidate]
    ssrc: int
    cname: str
    session: int
    max_message: int
    version: int = 1


def parse(text: str) -> Offer:
    """What an offer asks for. Raises :class:`BadOffer`."""
    if len(text.encode(errors="replace")) > MAX_OFFER_BYTES:
        raise BadOffer(f"the offer is longer than {MAX_OFFER_BYTES} bytes")
    session, sections = _split(text)
    bundle = _bundle(session, sections)
    audio, codec = _audio(sections)
    chosen = sections[audio]
    data = _data(sections)
    bundled = chosen.mid is not None and chosen.mid in bundle
    if data is not None and (not bundled or sections[data.index].mid not in bundle):
        raise BadOffer("the offer must bundle its audio section with its data section (a=group:BUNDLE)")
    used = [chosen] + ([] if data is None else [sections[data.index]])
    head = next((s for mid in bundle for s in sections if s.mid == mid and s.offered), chosen) if bundled else chosen
    if chosen.get("rtcp-mux") is None and chosen.get("rtcp-mux-only") is None and head.get("rtcp-mux") is None:
        raise BadOffer("the audio section must offer to carry RTCP on the same port (a=rtcp-mux)")
    transport = _transport(session, [head, *used])
    direction = _direction(chosen) or _direction(session) or "sendrecv"
    return Offer(tuple(sections), audio, codec, direction, data, transport, bundled)


def answer(offer: Offer, local: Local) -> str:
    """The answer to ``offer``, with lines that end in CRLF."""
    kept = [offer.audio] + ([] if offer.data is None else [offer.data.index])
    mids = [mid for index in sorted(kept) if (mid := offer.sections[index].mid) is not None]
    lines = ["v=0", f"o=- {local.session} {local.version} IN IP4 0.0.0.0", "s=-", "t=0 0"]
    if offer.bundled:
        lines.append(f"a=group:BUNDLE {' '.join(mids)}")
    lines.append("a=msid-semantic:WMS *")
    for index, section in enumerate(offer.sections):
        if index == offer.audio:
            lines += _audio_lines(offer, section, local)
        elif offer.data is not None and index == offer.data.index:
            lines += _data_lines(section, local)
        else:
            lines += [f"m={section.kind} 0 {section.protocol} {' '.join(section.formats)}", "c=IN IP4 0.0.0.0"]
            lines += ["a=inactive"] + ([] if section.mid is None else [f"a=mid:{section.mid}"])
    return "\r\n".join(lines) + "\r\n"


def candidate(value: str) -> Candidate | None:
    """The candidate in an attribute's value; None if it can't be used."""
    words = value.split()
    if len(words) < 8 or words[6] != "typ":
        return None
    try:
        component, priority, port = int(words[1]), int(words[3]), int(words[5])
        host = str(ipaddress.ip_address(words[4].split("%")[0]))
    except ValueError:  # a name such as 0f7e….local: its owner's first packet tells its address, sooner than a look-up
        return None
    if not 1 <= port <= 65_535 or not 0 <= priority < 1 << 32:
        return None
    more = dict(zip(words[8::2], words[9::2], strict=False))
    try:
        related = (more["raddr"], int(more["rport"]))
    except (KeyError, ValueError):
        related = None
    return Candidate(
        words[0], component, words[2].lower(), priority, host, port, words[7], related, more.get("tcptype")
    )


def _split(text: str) -> tuple[Section, list[Section]]:
    """The session's own lines as a section without a kind, and the ``m=`` sections."""
    lines = [line.strip() for line in re.split(r"[\r\n]+", text.removeprefix("\ufeff"))]
    lines = [line for line in lines if line]
    if not lines or lines[0] != "v=0":
        raise BadOffer("the body is no SDP offer: it does not begin with v=0")
    heads: list[tuple[str, int, str, tuple[str, ...]]] = [("", 0, "", ())]
    attributes: list[list[tuple[str, str]]] = [[]]
    for line in lines[1:]:
        if line.startswith("m="):
            heads.append(_head(line))
            attributes.append([])
        elif line.startswith("a="):
            name, _, value = line[2:].partition(":")
            attributes[-1].append((name.strip(), value.strip()))
    if len(heads) - 1 > MAX_SECTIONS:
        raise BadOffer(f"the offer has more than {MAX_SECTIONS} sections")
    session, *sections = [Section(*head, tuple(own)) for head, own in zip(heads, attributes, strict=True)]
    if not sections:
        raise BadOffer("the body is no SDP offer: it has no section (m= line)")
    return session, sections


def _head(line: str) -> tuple[str, int, str, tuple[str, ...]]:
    match = re.fullmatch(r"m=(\S+)\s+(\d{1,5})(?:/\d+)?\s+(\S+)((?:\s+\S+)*)", line, flags=re.ASCII)
    if match is None or int(match[2]) > 65_535 or not match[4].strip():
        raise BadOffer(f"the body is no SDP offer: {line[:80]!r} is no section")
    return match[1].lower(), int(match[2]), match[3], tuple(match[4].split())


def _bundle(session: Section, sections: Sequence[Section]) -> list[str]:
    """Names of the sections that share the transport of the audio."""
    mids = [section.mid for section in sections if section.mid is not None]
    if len(set(mids)) != len(mids):
        raise BadOffer("the offer gives two sections the same name (a=mid)")
    groups = [words[1:] for value in session.all("group") if (words := value.split()) and words[0] == "BUNDLE"]
    audio = {section.mid for section in sections if section.kind == "audio" and section.offered}
    group = next((group for group in groups if audio & set(group)), [])
    if len(set(group)) != len(group) or any(mid not in mids for mid in group):
        raise BadOffer("the offer's bundle (a=group:BUNDLE) names sections that are not there, or one twice")
    return group


def _audio(sections: Sequence[Section]) -> tuple[int, Codec]:
    found = [index for index, section in enumerate(sections) if section.kind == "audio" and section.offered]
    if not found:
        raise BadOffer("the offer must have an audio section, and has none")
    spoken = [index for index in found if sections[index].protocol.upper() in RTP_PROTOCOLS]
    if not spoken:
        raise BadOffer(f"the audio section must be sent over DTLS-SRTP, not {sections[found[0]].protocol[:40]}")
    for index in spoken:
        if (codec := _codec(sections[index])) is not None:
            return index, codec
    raise BadOffer("the offer has no Opus audio, nor PCMU or PCMA at 8 kHz")


def _codec(section: Section) -> Codec | None:
    known = dict(_STATIC)
    for value in section.all("rtpmap"):
        match = re.fullmatch(r"(\d{1,3})\s+([\w.+-]+)/(\d{1,6})(?:/(\d+))?", value, flags=re.ASCII)
        if match is not None:
            known[match[1]] = (match[2].lower(), int(match[3]))
    for name in _CODECS:
        for number in section.formats:
            if known.get(number) == (name, _CLOCKS[name]) and int(number) < 128:
                return Codec(name, int(number), _CLOCKS[name], _max_bitrate(section, number))
    return None


def _max_bitrate(section: Section, number: str) -> int | None:
    for value in section.all("fmtp"):
        match = re.match(rf"{number}\s.*\bmaxaveragebitrate\s*=\s*(\d{{4,7}})\b", value, flags=re.ASCII)
        if match is not None:
            return int(match[1])
    return None


def _data(sections: Sequence[Section]) -> Data | None:
    """The first data section that is offered and speaks SCTP; others are refused."""
    for index, section in enumerate(sections):
        if section.kind != "application" or not section.offered or section.protocol.upper() not in SCTP_PROTOCOLS:
            continue
        form = section.formats[0]
        port = section.get("sctp-port") or ("5000" if form == "webrtc-datachannel" else form)
        if not re.fullmatch(r"\d{1,5}", port, flags=re.ASCII) or not 0 < int(port) < 65_536:
            raise BadOffer("the data section names no SCTP port")
        size = section.get("max-message-size") or "65536"
        largest = int(size) if re.fullmatch(r"\d{1,19}", size, flags=re.ASCII) else 65_536
        return Data(index, int(port), largest)
    return None


def _transport(session: Section, sections: Sequence[Section]) -> Transport:
    """Of the section that leads the bundle, else of the next that says it, else of the session."""
    layers = [*sections, session]

    def first(name: str) -> str | None:
        return next((value for layer in layers if (value := layer.get(name))), None)

    ufrag, password = first("ice-ufrag"), first("ice-pwd")
    if not ufrag or not password or not all(re.fullmatch(r"[\x21-\x7e]{1,256}", text) for text in (ufrag, password)):
        raise BadOffer("the offer lacks ICE parameters (a=ice-ufrag, a=ice-pwd)")
    prints = next((values for layer in layers if (values := layer.all("fingerprint"))), [])
    usable = tuple(pair for value in prints if (pair := _fingerprint(value)) is not None)
    if not prints:
        raise BadOffer("the offer lacks DTLS parameters (a=fingerprint)")
    if not usable:
        raise BadOffer(f"none of the offer's fingerprints is by {', '.join(DIGESTS)}: {prints[0][:40]!r}")
    setup = first("setup") or "active"  # RFC 4145 section 4
    if setup not in ("actpass", "active", "passive"):
        raise BadOffer(f"the offer lacks DTLS parameters: a=setup:{setup[:40]} is not one of actpass, active, passive")
    found: dict[tuple[str, str, int], Candidate] = {}
    for layer in layers:
        for value in layer.all("candidate"):
            one = candidate(value)
            if one is not None and one.component == 1 and one.transport == "udp":
                found.setdefault((one.transport, one.host, one.port), one)
    return Transport(
        ufrag, password, usable, setup, session.get("ice-lite") is not None, tuple(found.values())[:MAX_CANDIDATES]
    )


def _fingerprint(value: str) -> tuple[str, str] | None:
    words = value.split()
    if len(words) != 2 or words[0].lower() not in DIGESTS:
        return None
    size = int(words[0][-3:]) // 8
    if not re.fullmatch(rf"[0-9a-fA-F]{{2}}(:[0-9a-fA-F]{{2}}){{{size - 1}}}", words[1]):
        return None
    return words[0].lower(), words[1].upper()


def _direction(section: Section) -> str | None:
    return next((name for name, _ in section.attributes if name in _ANSWERED), None)


def _transport_lines(local: Local) -> list[str]:
    lines = [f"a=ice-ufrag:{local.ufrag}", f"a=ice-pwd:{local.password}"]
    lines += [f"a=fingerprint:{name} {value}" for name, value in local.fingerprints]
    lines.append(f"a=setup:{'active' if local.active else 'passive'}")
    lines += [f"a=candidate:{one.to_line()}" for one in local.candidates]
    return [*lines, "a=end-of-candidates"]


def _default(candidates: Iterable[Candidate]) -> tuple[int, str]:
    """Port and ``c=`` line: the address that is most likely to be reached by who knows no ICE."""
    ranked = sorted(candidates, key=lambda one: one.priority)
    if not ranked:
        return 9, "c=IN IP4 0.0.0.0"
    version = ipaddress.ip_address(ranked[0].host).version
    return ranked[0].port, f"c=IN IP{version} {ranked[0].host}"


def _audio_lines(offer: Offer, section: Section, local: Local) -> list[str]:
    codec = offer.codec
    port, connection = _default(local.candidates)
    lines = [f"m=audio {port} {section.protocol} {codec.payload_type}", connection, "a=rtcp:9 IN IP4 0.0.0.0"]
    lines += _transport_lines(local)
    if section.mid is not None:
        lines.append(f"a=mid:{section.mid}")
    lines += [f"a={offer.answered}", "a=rtcp-mux", f"a=rtpmap:{codec.payload_type} {_RTPMAP[codec.name]}"]
    if codec.name == "opus":
        lines.append(f"a=fmtp:{codec.payload_type} minptime=10;useinbandfec=1;stereo=0;sprop-stereo=0")
    lines.append("a=ptime:20")
    if offer.answered in ("sendrecv", "sendonly"):
        lines += ["a=msid:voicechat voice", f"a=ssrc:{local.ssrc} cname:{local.cname}"]
        lines.append(f"a=ssrc:{local.ssrc} msid:voicechat voice")
    return lines


def _data_lines(section: Section, local: Local) -> list[str]:
    port, connection = _default(local.candidates)
    legacy = section.formats[0] != "webrtc-datachannel"
    form = "5000" if legacy else "webrtc-datachannel"
    lines = [f"m=application {port} {section.protocol} {form}", connection, *_transport_lines(local)]
    if section.mid is not None:
        lines.append(f"a=mid:{section.mid}")
    lines.append("a=sctpmap:5000 webrtc-datachannel 65535" if legacy else "a=sctp-port:5000")
    return [*lines, f"a=max-message-size:{local.max_message}"]
