import ipaddress

import aioice.ice
import pytest

from voicechat.media.ice import (
    IceServer,
    IceSettings,
    configuration,
    finish_answer,
    host_addresses,
    prepare_offer,
    use_host_addresses,
)


def test_no_server_is_asked_unless_configured():
    assert configuration(IceSettings()).iceServers == []
    server = IceServer(("turn:turn.example.org:3478",), "me", "secret")
    (configured,) = configuration(IceSettings(servers=(server,))).iceServers
    assert (configured.urls, configured.username, configured.credential) == (list(server.urls), "me", "secret")


def test_loopback_only_if_asked_for():
    assert "127.0.0.1" not in host_addresses(IceSettings())
    assert host_addresses(IceSettings(loopback=True))[-1] == "127.0.0.1"


def test_interfaces_can_be_chosen():
    assert host_addresses(IceSettings(interfaces=("no-such-interface",))) == []
    assert host_addresses(IceSettings(interfaces=("no-such-interface",), loopback=True)) == ["127.0.0.1"]
    everything = host_addresses(IceSettings(ipv6=False))
    assert host_addresses(IceSettings(interfaces=("0.0.0.0/0",), ipv6=False)) == everything
    for address in everything:
        assert host_addresses(IceSettings(interfaces=(address,))) == [address]
        assert ipaddress.ip_address(address).version == 4


def test_aioice_uses_the_choice(monkeypatch):
    monkeypatch.setattr(aioice.ice, "get_host_addresses", aioice.ice.get_host_addresses)
    use_host_addresses(IceSettings(interfaces=("no-such-interface",), loopback=True))
    assert aioice.ice.get_host_addresses(use_ipv4=True, use_ipv6=True) == ["127.0.0.1"]
    assert aioice.ice.get_host_addresses(use_ipv4=False, use_ipv6=True) == []


def test_offer_is_freed_of_what_delays():
    kept = "a=candidate:1 1 udp 2122260223 192.0.2.7 50000 typ host generation 0\r\n"
    hidden = "a=candidate:2 1 udp 2122260223 0f7e2d6a-1c1e-4c6a-8a56-8e1f7f6f6f6f.local 50001 typ host\r\n"
    assert prepare_offer(f"v=0\r\n{hidden}{kept}a=end-of-candidates\r\n") == f"v=0\r\n{kept}"


def test_answer_asks_for_fec_and_mono():
    answer = finish_answer("m=audio 9 UDP/TLS/RTP/SAVPF 111\r\na=rtpmap:111 opus/48000/2\r\na=rtcp-mux\r\n")
    assert "a=rtpmap:111 opus/48000/2\r\na=fmtp:111 minptime=10;useinbandfec=1;stereo=0;sprop-stereo=0\r\n" in answer


def test_public_address_is_offered_beside_private_ones():
    host = "a=candidate:abc 1 udp 2130706431 10.0.0.4 40000 typ host"
    loop = "a=candidate:def 1 udp 2130706431 127.0.0.1 40001 typ host"
    answer = finish_answer(f"{host}\r\n{loop}\r\n", public_ip="203.0.113.9")
    assert answer.splitlines() == [
        host,
        "a=candidate:abcp 1 udp 2130706430 203.0.113.9 40000 typ srflx raddr 10.0.0.4 rport 40000",
        loop,
    ]


def test_wrong_public_address_is_refused():
    with pytest.raises(ValueError):
        IceSettings(public_ip="example.org")
