"""An OAuth2 issuer: its openid-configuration, and tokens by client credentials (RFC 6749, section 4.4)."""

from __future__ import annotations

import json
import ssl
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs

from tests.support.certificates import HOST, Pem

__all__ = ["Issuer"]


class Issuer:
    """Gives tokens to clients that know their secret. Listens on a free loopback port, with TLS if it has a certificate."""

    def __init__(self, token: Callable[[str], str], *, seconds: float = 600, certificate: Pem | None = None) -> None:
        """``token`` makes a token for a client id; ``seconds`` is the lifetime that the answer names."""
        self.clients: dict[str, str] = {}
        """The secret of each client."""
        self.requests: list[dict[str, str]] = []
        """The form of each request for a token."""
        self.answers: dict[str, tuple[int, bytes]] = {}
        """Status and body to give instead, by path."""
        self._token = token
        self._seconds = seconds
        self._server = ThreadingHTTPServer((HOST, 0), self._handler())
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate.certificate, certificate.key)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        scheme = "http" if certificate is None else "https"
        self._realm = f"/{uuid.uuid4().hex}"  # no token of another issuer that had the same port
        self.url = f"{scheme}://{HOST}:{self._server.server_port}{self._realm}"

    @contextmanager
    def running(self) -> Iterator[Issuer]:
        """Serve while the block runs; afterwards the port is closed."""
        thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            self._server.server_close()
            thread.join()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        issuer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                found = {"issuer": issuer.url, "token_endpoint": f"{issuer.url}/token"}
                known = self.path == f"{issuer._realm}/.well-known/openid-configuration"
                self._answer(200 if known else 404, json.dumps(found).encode())

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"])).decode()
                form = {name: values[0] for name, values in parse_qs(body).items()}
                issuer.requests.append(form)
                client = form["client_id"]
                if issuer.clients.get(client) == form["client_secret"] and form["grant_type"] == "client_credentials":
                    given = {
                        "access_token": issuer._token(client),
                        "token_type": "Bearer",
                        "expires_in": issuer._seconds,
                    }
                    self._answer(200, json.dumps(given).encode())
                else:
                    self._answer(401, b'{"error": "invalid_client", "error_description": "no such client or secret"}')

            def _answer(self, status: int, body: bytes) -> None:
                status, body = issuer.answers.get(self.path.rpartition("/")[2], (status, body))
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_args: object) -> None:
                pass

        return Handler
