"""Settings of calls, TLS, and what the doctor says of them; a STUN server of our own on loopback."""

from __future__ import annotations

import socket
import ssl
import threading

import aioice.stun
import pytest

from voicechat import calls, doctor_rtc
from voicechat.config import ConfigError, Settings, load_settings
from voicechat.doctor_findings import Level
from voicechat.media import stun


def settings(*overrides: str) -> Settings:
    return load_settings(overrides=overrides, environ={})


@pytest.fixture
def stun_server():
    """Answers every binding request, by aioice's own messages, that it came from 203.0.113.9:777."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind(("127.0.0.1", 0))

        def serve() -> None:
            while True:
                try:
                    data, peer = sock.recvfrom(2048)
                except OSError:
                    return
                asked = aioice.stun.parse_message(data)
                answer = aioice.stun.Message(
                    message_method=aioice.stun.Method.BINDING,
                    message_class=aioice.stun.Class.RESPONSE,
                    transaction_id=asked.transaction_id,
                )
                answer.attributes["XOR-MAPPED-ADDRESS"] = ("203.0.113.9", 777)
                sock.sendto(bytes(answer), peer)

        threading.Thread(target=serve, daemon=True).start()
        yield f"stun:127.0.0.1:{sock.getsockname()[1]}"
        sock.close()


def test_defaults_ask_nobody():
    made = calls.ice_settings(settings(), loopback=True)
    assert (made.servers, made.public_addresses, made.relay_only, made.loopback) == ((), (), False, True)
    assert calls.ports(settings()) == (0, 0)


def test_everything_reaches_the_calls(stun_server):
    mine = settings(
        f"rtc.stun={stun_server}", "rtc.turn=turn:t:3478?transport=tcp,turns:t", "rtc.turn_secret=north",
        "rtc.public_address=auto,198.51.100.7", "rtc.interfaces=eth0,10.0.0.0/8", "rtc.ports=40000-40100",
        "rtc.relay_only=true", "rtc.ipv6=false",
    )  # fmt: skip
    made = calls.ice_settings(mine, loopback=False)
    assert made.public_addresses == ("198.51.100.7", "203.0.113.9")
    assert made.interfaces == ("eth0", "10.0.0.0/8")
    assert (made.relay_only, made.ipv6, calls.ports(mine)) == (True, False, (40_000, 40_100))
    assert [server.urls for server in made.servers] == [(stun_server,), ("turn:t:3478?transport=tcp", "turns:t")]
    assert made.servers[1].secret == "north"
    assert calls.ports(settings("rtc.ports=3478")) == (3478, 3478)


@pytest.mark.parametrize(
    "wrong",
    [
        ["rtc.ports=5-1"], ["rtc.ports=x"], ["rtc.ports=70000"], ["rtc.stun=example.org"], ["rtc.turn=turn:t"],
        ["rtc.turn=http://t", "rtc.turn_secret=s"], ["rtc.relay_only=true"], ["rtc.public_address=auto"],
        ["rtc.public_address=example.org"], ["server.tls_cert=/c.pem"],
    ],
)  # fmt: skip
def test_what_does_not_fit_is_said(wrong):
    with pytest.raises(ConfigError, match=r"rtc|server"):
        settings(*wrong)


def test_nobody_answers():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind(("127.0.0.1", 0))
        with pytest.raises(OSError, match="not answer|refused"):
            stun.ask(sock, "127.0.0.1", 9)


def test_a_certificate_is_made_once_and_serves(tmp_path):
    mine = settings("server.https=true", f"data_dir={tmp_path}")
    assert calls.tls_context(settings()) is None
    context = calls.tls_context(mine)
    assert context is not None
    key = (tmp_path / "tls" / "key.pem").read_bytes()
    assert (tmp_path / "tls" / "key.pem").stat().st_mode & 0o077 == 0
    calls.tls_context(mine)
    assert (tmp_path / "tls" / "key.pem").read_bytes() == key
    client = ssl.create_default_context(cafile=tmp_path / "tls" / "certificate.pem")
    there, here = ssl.MemoryBIO(), ssl.MemoryBIO()
    server, caller = (
        context.wrap_bio(there, here, server_side=True),
        client.wrap_bio(here, there, server_hostname="localhost"),
    )
    for _ in range(4):
        for side in (caller, server):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    assert caller.version() == "TLSv1.3"


def test_the_doctor_says_what_a_client_meets(stun_server):
    found = {finding.check: finding for finding in doctor_rtc.examine(settings(f"rtc.stun={stun_server}"))}
    assert "203.0.113.9" in found["stun"].text
    assert found["outside"].level is Level.OK
    mine = settings(f"rtc.stun={stun_server}", "server.host=0.0.0.0", "rtc.interfaces=127.0.0.0/8")
    found = {finding.check: finding for finding in doctor_rtc.examine(mine)}
    assert found["addresses"].level is Level.FAIL
    assert found["tls"].level is Level.WARN
    assert "203.0.113.9" in found["outside"].text


def test_the_doctor_tries_turn_servers():
    mine = settings("rtc.turn=turn:127.0.0.1:9?transport=tcp", "rtc.turn_secret=s", "rtc.relay_only=true")
    found = {finding.check: finding for finding in doctor_rtc.examine(mine)}
    assert found["turn"].level is Level.FAIL
