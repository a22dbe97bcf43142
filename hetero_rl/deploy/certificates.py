"""Makes certificates: a private authority and leaves that carry role and name. Pure functions on PEM texts.

EC P-256 with SHA-256: every TLS 1.2+ stack of the target images takes it. A leaf is good for client and server, because
the hub is called with one and answers with one; its role decides what it may do.
"""

import datetime as dt
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from hetero_rl.wire.roles import Caller, caller_uri

__all__ = ["KeyPair", "certificate_hosts", "issue_certificate", "new_authority"]

_BACKDATED = dt.timedelta(minutes=10)  # clocks of two sites differ


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A certificate and its private key, PEM texts."""

    certificate: str
    private_key: str
    not_after: dt.datetime
    """UTC."""

    def __repr__(self) -> str:
        return f"KeyPair(not_after={self.not_after:%Y-%m-%d})"


def new_authority(name: str, days: int) -> KeyPair:
    """A self-signed authority that may sign leaves and nothing else.

    Args:
        name: Common name.
        days: How long it lasts.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    start, end = _lifetime(days)
    subject = _subject(name)
    certificate = (
        _builder(subject, subject, key.public_key(), start, end)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return _key_pair(certificate, key, end)


def issue_certificate(authority: KeyPair, caller: Caller, hosts: Sequence[str], days: int) -> KeyPair:
    """A leaf that names its holder, and the hosts it may answer as.

    Args:
        authority: Signs it.
        caller: Role and name.
        hosts: Host names and IP addresses under which peers dial its holder; a hub and a relay need them.
        days: How long it lasts; never longer than the authority.

    Raises:
        TypeError: The authority's key is no EC key.
    """
    issuer = x509.load_pem_x509_certificate(authority.certificate.encode())
    signing_key = serialization.load_pem_private_key(authority.private_key.encode(), password=None)
    if not isinstance(signing_key, ec.EllipticCurvePrivateKey):
        raise TypeError(f"the authority's key is a {type(signing_key).__name__}, expected an EC key")
    key = ec.generate_private_key(ec.SECP256R1())
    start, end = _lifetime(days)
    end = min(end, issuer.not_valid_after_utc)
    names = [x509.UniformResourceIdentifier(caller_uri(caller)), *map(_host_name, hosts)]
    certificate = (
        _builder(_subject(caller.name), issuer.subject, key.public_key(), start, end)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(signs_certificates=False), critical=True)
        .add_extension(
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH]),
            critical=False,
        )
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(signing_key.public_key()), critical=False
        )
        .sign(signing_key, hashes.SHA256())
    )
    return _key_pair(certificate, key, end)


def certificate_hosts(certificate: str) -> tuple[str, ...]:
    """Host names and IP addresses that a leaf, a PEM text, may answer as."""
    leaf = x509.load_pem_x509_certificate(certificate.encode())
    names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    addresses = map(str, names.get_values_for_type(x509.IPAddress))
    return (*names.get_values_for_type(x509.DNSName), *addresses)


def _lifetime(days: int) -> tuple[dt.datetime, dt.datetime]:
    now = dt.datetime.now(dt.UTC).replace(microsecond=0)
    return now - _BACKDATED, now + dt.timedelta(days=days)


def _subject(name: str) -> x509.Name:
    # A common name has at most 64 characters; the alternative name is the one that counts.
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    start: dt.datetime,
    end: dt.datetime,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(end)
    )


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
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


def _host_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _key_pair(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey, end: dt.datetime) -> KeyPair:
    return KeyPair(
        certificate.public_bytes(serialization.Encoding.PEM).decode(),
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        ).decode(),
        end,
    )
