"""From the settings ``rtc`` and ``server.tls_*`` to what calls and the page need."""

from __future__ import annotations

import datetime
import ipaddress
import logging
import os
import socket
import ssl
import tempfile
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from voicechat.config import Settings
from voicechat.config_rtc import port_range
from voicechat.media import ice, stun
from voicechat.media.ice import IceServer, IceSettings

log = logging.getLogger(__name__)

_DAYS = 365
_RENEW_DAYS = 30


def ice_settings(settings: Settings, *, loopback: bool, public: tuple[str, ...] | None = None) -> IceSettings:
    """How calls find their way. ``public`` are the addresses that stand for ``auto``; None: ask for them."""
    rtc = settings.rtc
    servers: list[IceServer] = []
    if rtc.stun:
        servers.append(IceServer(rtc.stun))
    if rtc.turn:
        servers.append(IceServer(rtc.turn, rtc.turn_username, rtc.turn_credential, rtc.turn_secret))
    fixed = tuple(address for address in rtc.public_address if address != "auto")
    asked: tuple[str, ...] = ()
    if "auto" in rtc.public_address:
        asked = seen_addresses(rtc.stun) if public is None else public
    return IceSettings(
        servers=tuple(servers),
        interfaces=rtc.interfaces,
        loopback=loopback,
        ipv6=rtc.ipv6,
        public_addresses=tuple(dict.fromkeys([*fixed, *asked])),
        relay_only=rtc.relay_only,
    )


def ports(settings: Settings) -> tuple[int, int]:
    """First and last UDP port of calls; (0, 0): any."""
    return port_range(settings.rtc.ports) or (0, 0)


def seen_addresses(servers: tuple[str, ...]) -> tuple[str, ...]:
    """This machine's IPv4 address as the first STUN server that answers sees it; none if none does."""
    for server in servers:
        place = ice.parse_uri(server)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.bind(("", 0))
            try:
                return (stun.ask(sock, place.host, place.port)[0],)
            except OSError as error:
                log.warning("the public address is not known: %s", error)
    return ()


def tls_context(settings: Settings) -> ssl.SSLContext | None:
    """TLS of the HTTP server; None without. Raises OSError or ValueError for files that can't be used."""
    server = settings.server
    if server.tls_cert is not None and server.tls_key is not None:
        certificate, key = server.tls_cert, server.tls_key
    elif server.https:
        certificate, key = own_certificate(settings.data_dir / "tls", server.host)
    else:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(certificate, key)
    except ssl.SSLError as error:
        reasons = {"KEY_VALUES_MISMATCH": "the key is not that of the certificate"}
        raise ValueError(f"{certificate} and {key}: {reasons.get(error.reason, error.reason or error)}") from None
    return context


def own_certificate(folder: Path, host: str) -> tuple[Path, Path]:
    """Files with a certificate for this machine's names and addresses, signed by itself, and its key. Made when
    there is no such pair, when it ends within a month, or when the addresses are others."""
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    names = _names(host)
    if _serves(certificate, key, names):
        return certificate, key
    private = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "voicechat")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(private.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=_DAYS))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .sign(private, hashes.SHA256())
    )
    folder.mkdir(parents=True, exist_ok=True)
    secret = private.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    _replace(key, secret)
    _replace(certificate, made.public_bytes(serialization.Encoding.PEM))
    return certificate, key


def _serves(certificate: Path, key: Path, names: Sequence[x509.GeneralName]) -> bool:
    """True if ``key`` is that of ``certificate``, which is good for ``names`` for another month. Raises OSError for
    files that are there and can't be read."""
    try:
        have = x509.load_pem_x509_certificate(certificate.read_bytes())
        private = serialization.load_pem_private_key(key.read_bytes(), None)
        told = have.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        same = have.public_key() == private.public_key()
    except (FileNotFoundError, x509.ExtensionNotFound):
        return False
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:  # TypeError: the key has a password
        log.warning("%s is made anew: what is there can't be read: %s", certificate, error)
        return False
    soon = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=_RENEW_DAYS)
    return same and have.not_valid_after_utc > soon and set(names) <= set(told)


def _replace(file: Path, content: bytes) -> None:
    """``file`` holds either what it held or ``content``, whole, whenever this is broken off. Its owner may read it."""
    handle, temporary = tempfile.mkstemp(prefix=f"{file.name}.", dir=file.parent)  # mode 0600
    try:
        with os.fdopen(handle, "wb") as out:
            out.write(content)
            out.flush()
            os.fsync(out.fileno())
        Path(temporary).replace(file)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _names(host: str) -> list[x509.GeneralName]:
    """What browsers may call this machine."""
    names = dict.fromkeys(["localhost", socket.gethostname(), f"{socket.gethostname()}.local"])
    addresses = dict.fromkeys(["127.0.0.1", "::1", *ice.host_addresses(IceSettings())])
    try:
        addresses[str(ipaddress.ip_address(host))] = None
    except ValueError:
        names[host] = None
    made: list[x509.GeneralName] = [x509.DNSName(name) for name in names if name and name.isascii()]
    return made + [x509.IPAddress(ipaddress.ip_address(text)) for text in addresses]
