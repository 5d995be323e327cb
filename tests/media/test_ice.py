import base64
import hashlib
import hmac
import ipaddress

import pytest

from voicechat.media.ice import IceServer, IceSettings, host_addresses, parse_uri


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


def test_wrong_public_address_is_refused():
    with pytest.raises(ValueError):
        IceSettings(public_addresses=("example.org",))


@pytest.mark.parametrize(
    ("text", "scheme", "host", "port", "transport"),
    [  # the examples of RFC 7064 and RFC 7065, as far as they concern UDP, TCP and TLS
        ("stun:example.org", "stun", "example.org", 3478, "udp"),
        ("stun:example.org:8000", "stun", "example.org", 8000, "udp"),
        ("turn:example.org", "turn", "example.org", 3478, "udp"),
        ("turns:example.org", "turns", "example.org", 5349, "tcp"),
        ("turn:example.org:8000?transport=tcp", "turn", "example.org", 8000, "tcp"),
        ("turns:example.org:8000?transport=tcp", "turns", "example.org", 8000, "tcp"),
        ("turn:[2001:db8::1]:5", "turn", "2001:db8::1", 5, "udp"),
    ],
)
def test_addresses_of_servers(text, scheme, host, port, transport):
    found = parse_uri(text)
    assert (found.scheme, found.host, found.port, found.transport) == (scheme, host, port, transport)


@pytest.mark.parametrize(
    "text", ["", "example.org", "stun:", "http://x", "stun:a?transport=udp", "turns:a?transport=udp"]
)
def test_wrong_addresses_of_servers(text):
    with pytest.raises(ValueError, match="TURN over DTLS|no address"):
        IceServer((text,))


def test_credentials_for_a_time():
    server = IceServer(("turn:turn.example.org",), username="u", secret="north")
    name, credential = server.credentials(1_000_000.0)
    assert name == f"{1_000_000 + 86_400}:u"
    assert credential is not None
    assert base64.b64decode(credential) == hmac.new(b"north", name.encode(), hashlib.sha1).digest()
    told = server.to_dict(1_000_000.0)
    assert told == {"urls": ["turn:turn.example.org"], "username": name, "credential": credential}


def test_fixed_credentials_and_none():
    assert IceServer(("turn:t",), "me", "secret").credentials(5.0) == ("me", "secret")
    assert IceServer(("stun:s",)).to_dict(5.0) == {"urls": ["stun:s"]}
