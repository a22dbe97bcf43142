"""A small HTTP server for scrapes: one page, few at a time, TLS with client certificates wherever the calls to the hub have it.

    accept (one thread) ──► a slot? ──no──► closed at once
                              └─ yes ──► a thread: handshake, request, who is it?, page ──► slot free
    close: no new connections; threads under way are daemons and end with the process

The handshake belongs to the thread of its connection, so a client that dawdles holds one slot and never the door. Certificates are read
again when their file changes.
"""

import http
import logging
import os
import socket
import ssl
import sys
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from typing_extensions import override

from hetero_rl.config.tree import SecurityConfig
from hetero_rl.errors import ConfigError, HeteroRLError, RefusedError
from hetero_rl.hub.callers import Callers
from hetero_rl.wire.credentials import Identity, server_identity

__all__ = ["MetricsServer", "Page"]

Page = Callable[[str], tuple[bytes, str]]
"""From an Accept header to a body and its content type; raises HeteroRLError or TimeoutError when there is none now."""

_MOST_CONNECTIONS = 16
_SECONDS = 10.0
_POLL_SECONDS = 0.1
# Whoever may ask the hub for the run's status may read these numbers, which hold nothing else.
_METHOD = "/hetero_rl.v1.FleetService/GetRunStatus"

_logger = logging.getLogger(__name__)


class MetricsServer(ThreadingHTTPServer):
    """Serves `/metrics` from a thread of its own until it is closed.

    Args:
        host: To listen on.
        port: 0 picks one.
        page: Makes the page.
        security: TLS or none, and who may look.

    Raises:
        ConfigError: A credentials file cannot be used.
        OSError: The address cannot be listened on.
    """

    daemon_threads = True
    block_on_close = False

    def __init__(self, host: str, port: int, page: Page, security: SecurityConfig) -> None:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        self.address_family = found[0][0]
        address: Any = found[0][4]  # a pair for IPv4, longer for IPv6
        self.page = page
        self._tls = _Tls(security) if security.serves_tls else None
        self.callers = Callers(security.registry) if security.serves_tls else None
        self._slots = threading.BoundedSemaphore(_MOST_CONNECTIONS)
        super().__init__(address, _Handler)
        self._thread = threading.Thread(
            target=self.serve_forever, args=(_POLL_SECONDS,), name="metrics", daemon=True
        )

    def start(self) -> None:
        """Begins to answer."""
        self._thread.start()

    def close(self) -> None:
        """Stops listening."""
        if self._thread.is_alive():
            self.shutdown()
        self.server_close()

    @override
    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._slots.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    @override
    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._slots.release()

    @override
    def finish_request(self, request: Any, client_address: Any) -> None:
        request.settimeout(_SECONDS)
        if self._tls is None:
            super().finish_request(request, client_address)
            return
        with self._tls.context().wrap_socket(request, server_side=True) as secured:
            super().finish_request(secured, client_address)

    @override
    def handle_error(self, request: Any, client_address: Any) -> None:
        _logger.info("a scrape from %s failed: %r", client_address, sys.exception())


class _Handler(BaseHTTPRequestHandler):
    server: MetricsServer
    server_version = "hetero-rl"
    sys_version = ""

    def do_GET(self) -> None:
        """Answers a scrape."""
        if self.path.partition("?")[0] != "/metrics":
            self._answer(http.HTTPStatus.NOT_FOUND, b"metrics are at /metrics\n")
            return
        try:
            self._admit()
            body, kind = self.server.page(self.headers.get("Accept", ""))
        except RefusedError as error:
            status = (
                http.HTTPStatus.FORBIDDEN
                if error.reason == "NOT_AUTHORIZED"
                else http.HTTPStatus.SERVICE_UNAVAILABLE
            )
            self._answer(status, f"{error}\n".encode())
        except (HeteroRLError, TimeoutError) as error:
            self._answer(http.HTTPStatus.SERVICE_UNAVAILABLE, f"no metrics now: {error}\n".encode())
        else:
            self._answer(http.HTTPStatus.OK, body, kind)

    def _admit(self) -> None:
        connection = self.connection
        if self.server.callers is None or not isinstance(connection, ssl.SSLSocket):
            return
        der = connection.getpeercert(binary_form=True) or b""
        certificate: dict[str, Any] = connection.getpeercert() or {}
        names = certificate.get("subjectAltName", ())
        peer = {
            "x509_pem_cert": [ssl.DER_cert_to_PEM_cert(der).encode()],
            "x509_subject_alternative_name": [str(name).encode() for _, name in names],
        }
        self.server.callers.admit(_METHOD, peer, [("authorization", self.headers.get("Authorization", ""))])

    def _answer(self, status: http.HTTPStatus, body: bytes, kind: str = "text/plain; charset=utf-8") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    @override
    def log_message(self, format: str, *args: Any) -> None:
        _logger.debug(format, *args)


class _Tls:
    """The TLS settings of this process, made again when its credentials changed."""

    def __init__(self, security: SecurityConfig) -> None:
        self._security = security
        self._lock = threading.Lock()
        self._identity = _read(security)
        self._context = _context(self._identity)

    def context(self) -> ssl.SSLContext:
        """The newest that can be used."""
        with self._lock:
            try:
                identity = _read(self._security)
                if identity != self._identity:
                    self._identity, self._context = identity, _context(identity)
            except (ConfigError, ssl.SSLError) as error:
                _logger.warning("the exporter keeps its former certificate: %s", error)
            return self._context


def _read(security: SecurityConfig) -> Identity:
    identity = server_identity(security)
    if identity is None:
        raise ConfigError("TLS is on, but security names no credentials")
    return identity


def _context(identity: Identity) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=identity.authority.decode())
    # The ssl module reads keys from files only; this one is in memory.
    descriptor = os.memfd_create("hetero-rl-metrics", os.MFD_CLOEXEC)
    with os.fdopen(descriptor, "wb") as file:
        file.write(identity.private_key + b"\n" + identity.certificate)
        file.flush()
        context.load_cert_chain(f"/proc/self/fd/{descriptor}")
    return context
