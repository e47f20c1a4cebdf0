"""Makes certificates: authorities, and what they sign. Knows no server."""

import datetime
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_LIFE = datetime.timedelta(days=1)


@dataclass
class Identity:
    """A certificate and its private key, in files and in memory."""

    certificate: Path
    key: Path
    serial: int

    def take_the_place_of(self, other):
        """Puts these files where the other's are, one after the other, as tools that renew certificates do."""
        self.certificate.replace(other.certificate)
        self.key.replace(other.key)


class Authority:
    """An authority that signs certificates, for this machine and for clients."""

    def __init__(self, folder, name):
        self._folder = folder
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self._key = ec.generate_private_key(ec.SECP256R1())
        certificate = self._builder(self._name, self._key).add_extension(
            x509.BasicConstraints(ca=True, path_length=None), critical=True
        )
        self.certificate = folder / f"{name}-ca.pem"
        self.certificate.write_bytes(_pem(certificate.sign(self._key, hashes.SHA256())))

    def _builder(self, subject, key):
        now = datetime.datetime.now(datetime.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _LIFE)
            .not_valid_after(now + _LIFE)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
        )

    def sign(self, name, *hosts, is_here=True):
        """A new identity, of a host at 127.0.0.1, unless it is elsewhere, and of these names, or of a client."""
        key = ec.generate_private_key(ec.SECP256R1())
        here = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))] if is_here else []
        names = [*map(x509.DNSName, hosts), *here]
        certificate = (
            self._builder(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]), key)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        identity = Identity(self._folder / f"{name}.pem", self._folder / f"{name}.key", certificate.serial_number)
        identity.certificate.write_bytes(_pem(certificate))
        identity.key.write_bytes(
            key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        )
        return identity


def _pem(certificate):
    return certificate.public_bytes(serialization.Encoding.PEM)


def serial_of(der):
    """The serial number of a certificate as it came over a connection."""
    return x509.load_der_x509_certificate(der).serial_number
