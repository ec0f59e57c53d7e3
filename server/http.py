"""Streamable HTTP: loopback unless told otherwise, never without a token, Host and Origin checked."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Final

import uvicorn
from mcp.server.auth.settings import AuthSettings
from mcp.server.transport_security import TransportSecuritySettings
from pydantic import AnyHttpUrl

from bitgate.server.app import build_server
from bitgate.server.session import Session
from bitgate.server.tokens import NO_TOKEN, Verifier
from bitgate.tools.errors import ConfigError

PATH: Final = "/mcp"
LOOPBACK: Final = ("127.0.0.1", "localhost", "[::1]")


@dataclass(frozen=True)
class Address:
    host: str = "127.0.0.1"
    port: int = 8765
    hosts: tuple[str, ...] = ()
    """More Host header values to answer to, such as the name a proxy uses."""

    @property
    def loopback(self) -> bool:
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"


def bound(address: Address) -> socket.socket:
    """The listening socket; port 0 picks a free one."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    try:
        return socket.create_server((address.host, address.port), family=family, backlog=128)
    except OSError as error:
        reason = error.strerror or str(error)
        raise ConfigError(f"cannot listen on {address.host}:{address.port}: {reason}; choose another --port") from error


def url(address: Address, port: int) -> str:
    host = f"[{address.host}]" if ":" in address.host else address.host
    return f"http://{host}:{port}{PATH}"


def http_server(session: Session, address: Address, verifier: Verifier, listening: socket.socket) -> uvicorn.Server:
    """A uvicorn server for the MCP endpoint.

    Raises:
        ConfigError: no token exists.
    """
    if not verifier.any():
        raise ConfigError(NO_TOKEN)
    here = AnyHttpUrl(url(address, listening.getsockname()[1]))
    # No resource_server_url: tokens are ours, and clients must not go looking for an OAuth server.
    auth = AuthSettings(issuer_url=here, resource_server_url=None)
    server = build_server(session, auth=auth, token_verifier=verifier)
    app = server.streamable_http_app(streamable_http_path=PATH, transport_security=security(address))
    config = uvicorn.Config(
        app, log_config=None, access_log=False, timeout_graceful_shutdown=3, lifespan="on", ws="none"
    )
    return uvicorn.Server(config)


def security(address: Address) -> TransportSecuritySettings:
    """Answers only to names it was told: a page that rebinds its own name to this address is refused."""
    names = [*LOOPBACK, *address.hosts, *(() if address.loopback else (address.host,))]
    exact = [name for name in names if name not in LOOPBACK]
    return TransportSecuritySettings(
        enable_dns_rebinding_protection=True,
        allowed_hosts=[*(f"{name}:*" for name in names), *exact],
        allowed_origins=[f"{scheme}://{name}:*" for scheme in ("http", "https") for name in names]
        + [f"{scheme}://{name}" for scheme in ("http", "https") for name in exact],
    )
