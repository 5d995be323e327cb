"""A signing certificate, its key, and the authority above it: made for one test run."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

ORGANIZATION = "Test Voices"


@dataclass(frozen=True)
class Papers:
    """PEM files."""

    certificate: Path
    private_key: Path
    authority: Path


def papers(folder: Path) -> Papers:
    """Write them, as the C2PA specification wants them (14.5.1)."""
    root, signer = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    now = datetime.now(UTC)

    def begun(name: str, key: ec.EllipticCurvePrivateKey, serial: int) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(_name(name))
            .issuer_name(_name("root"))
            .public_key(key.public_key())
            .serial_number(serial)
            .not_valid_before(now - timedelta(days=1))
            .not_valid_after(now + timedelta(days=30))
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False)
        )

    authority = (
        begun("root", root, 1)
        .add_extension(x509.BasicConstraints(True, None), True)
        .add_extension(_usage(signs_certificates=True), True)
        .sign(root, hashes.SHA256())
    )
    own = (
        begun("signer", signer, 2)
        .add_extension(x509.BasicConstraints(False, None), True)
        .add_extension(_usage(signs_certificates=False), True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.EMAIL_PROTECTION]), True)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(root.public_key()), False)
        .sign(root, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    made = Papers(folder / "certificate.pem", folder / "key.pem", folder / "authority.pem")
    made.certificate.write_bytes(own.public_bytes(pem) + authority.public_bytes(pem))
    plain = serialization.NoEncryption()
    made.private_key.write_bytes(signer.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain))
    made.authority.write_bytes(authority.public_bytes(pem))
    return made


def _name(name: str) -> x509.Name:
    return x509.Name(
        [x509.NameAttribute(NameOID.ORGANIZATION_NAME, ORGANIZATION), x509.NameAttribute(NameOID.COMMON_NAME, name)]
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )
