"""What is wrong with this process's own certificate, when a server has closed the connection without a reason.

In TLS 1.3 a client learns nothing of a refused certificate but that the connection ends. So the client looks at its own
files: the certificate may have expired, or be of another authority.
"""

from __future__ import annotations

from datetime import UTC, datetime

from cryptography import x509
from cryptography.exceptions import InvalidSignature

from millwheel.rpc.failures import FailureCode, RequestError
from millwheel.rpc.identity import TlsFiles

__all__ = ["own_certificate_problem"]


def own_certificate_problem(files: TlsFiles) -> RequestError | None:
    """Return what is wrong with a client's certificate. None: nothing, or the files cannot be read."""
    try:
        certificate, *chain = x509.load_pem_x509_certificates(files.cert.read_bytes())
        authorities = x509.load_pem_x509_certificates(files.ca.read_bytes())
    except (OSError, ValueError):
        return None
    if datetime.now(UTC) >= certificate.not_valid_after_utc:
        return RequestError(
            FailureCode.UNAUTHENTICATED,
            f"the certificate {files.cert} has expired on {certificate.not_valid_after_utc:%Y-%m-%d %H:%M} UTC",
            "get a new one: `millwheel certificates create --renew`, where the CA's key is",
            reason="CERTIFICATE_EXPIRED",
        )
    if not any(_has_signed(one, certificate) for one in (*authorities, *chain)):
        return RequestError(
            FailureCode.UNAUTHENTICATED,
            f"the certificate {files.cert} was not signed by the CA in {files.ca}",
            "use a certificate of this cluster's CA",
            reason="CERTIFICATE_OF_OTHER_CA",
        )
    return None


def _has_signed(authority: x509.Certificate, certificate: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True
