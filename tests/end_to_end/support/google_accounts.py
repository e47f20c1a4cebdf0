"""Service accounts of Google's cloud: files of their keys, and the check of what they sign."""

import base64
import json
import re

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

_REFUSAL = b'{"error": {"code": 401, "message": "Invalid Credentials"}}'
# What Google answers to a key that it does not know.
UNAUTHORIZED = b"HTTP/1.1 401 Unauthorized\r\ncontent-length: %d\r\n\r\n%s" % (len(_REFUSAL), _REFUSAL)


class ServiceAccount:
    """An account with a key of its own, in a file `NAME.json`."""

    id = "the-id-of-a-key"
    email = "models@project"

    def __init__(self, folder, name="account"):
        self._key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self.pem = self._key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
        self.path = folder / f"{name}.json"
        fields = {"type": "service_account", "private_key": self.pem, "private_key_id": self.id, "client_email": self.email}
        self.path.write_text(json.dumps(fields))

    def has_signed(self, head):
        """Whether a request has a token that this account has signed, as the head of its token and its claims say, too."""
        token = re.search(r"(?i)\nauthorization: bearer ([^\s.]+)\.([^\s.]+)\.(\S+)\r", head)
        if not token:
            return False
        header, claims, signature = token.groups()
        try:
            self._key.public_key().verify(_decoded(signature), f"{header}.{claims}".encode(), padding.PKCS1v15(), SHA256())
        except InvalidSignature:
            return False
        return (json.loads(_decoded(header))["kid"], json.loads(_decoded(claims))["iss"]) == (self.id, self.email)

    def is_shown_in(self, text):
        """Whether any of its secrets is in a text."""
        return self.id in text or any(line in text for line in self.pem.splitlines())


def _decoded(part):
    return base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))
