"""Settings of calls, TLS, and what the doctor says of them; a STUN server of our own on loopback."""

from __future__ import annotations

import datetime
import os
import socket
import ssl
import threading
from pathlib import Path

import aioice.stun
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

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


def _write(folder, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> tuple[Path, Path]:
    kinds = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    folder.mkdir(exist_ok=True)
    (folder / "key.pem").write_bytes(key.private_bytes(*kinds))
    (folder / "certificate.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    return folder / "certificate.pem", folder / "key.pem"


def _without_names(key: ec.EllipticCurvePrivateKey) -> x509.Certificate:
    """A certificate as others make it, without subjectAltName."""
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "elsewhere")])
    now = datetime.datetime.now(datetime.UTC)
    made = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    made = made.serial_number(1).not_valid_before(now).not_valid_after(now + datetime.timedelta(days=300))
    return made.sign(key, hashes.SHA256())


@pytest.mark.parametrize("broken", ["another key", "no names", "half a key", "half a certificate", "no key"])
def test_an_own_certificate_that_does_not_serve_is_made_anew(tmp_path, broken):
    mine, folder = settings("server.https=true", f"data_dir={tmp_path}"), tmp_path / "tls"
    calls.tls_context(mine)
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    match broken:
        case "another key":
            other = ec.generate_private_key(ec.SECP256R1())
            _write(folder, x509.load_pem_x509_certificate(certificate.read_bytes()), other)
        case "no names":
            other = ec.generate_private_key(ec.SECP256R1())
            _write(folder, _without_names(other), other)
        case "half a key":
            key.write_bytes(key.read_bytes()[:60])
        case "half a certificate":
            certificate.write_bytes(certificate.read_bytes()[:200])
        case "no key":
            key.unlink()
    assert calls.tls_context(mine) is not None
    assert sorted(path.name for path in folder.iterdir()) == ["certificate.pem", "key.pem"]
    assert key.stat().st_mode & 0o077 == 0
    made = key.read_bytes()
    assert calls.tls_context(mine) is not None and key.read_bytes() == made


def test_a_start_that_is_killed_between_the_files_harms_no_other(tmp_path, monkeypatch):
    mine, replace = settings("server.https=true", f"data_dir={tmp_path}"), os.replace
    calls.tls_context(mine)
    monkeypatch.setattr(calls, "_names", lambda host: [x509.DNSName("moved")])

    def killed(source, target) -> None:
        if target.name == "certificate.pem":
            raise KeyboardInterrupt
        replace(source, target)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(os, "replace", killed)
        calls.tls_context(mine)
    monkeypatch.undo()  # and the addresses are again those of the certificate that is left
    assert calls.tls_context(mine) is not None


def test_given_files_that_do_not_belong_together_are_named(tmp_path):
    keys = [ec.generate_private_key(ec.SECP256R1()) for _ in range(2)]
    certificate, key = _write(tmp_path / "given", _without_names(keys[0]), keys[1])
    given = settings(f"server.tls_cert={certificate}", f"server.tls_key={key}")
    with pytest.raises(ValueError, match=r"certificate\.pem and .*key\.pem: the key is not that of the certificate"):
        calls.tls_context(given)
    _write(tmp_path / "given", _without_names(keys[0]), keys[0])
    assert calls.tls_context(given) is not None, "names are the owner's affair"


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
