"""Where a server listens: an address or a unix socket, and TLS. Imports no web framework."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from lsv_api.accounts.account import read_accounts
from lsv_api.options import ApiOptions
from lsv_api.parsing import check_parsers
from lsv_base.errors import ConfigError

BACKLOG = 2048


def check(settings: Mapping[str, Any]) -> None:
    """Raises ``ConfigError`` for settings that the frontend would refuse, such as an address in use."""
    options = ApiOptions.from_settings(settings)
    read_accounts(options.api_keys, options.accounts, options.admin_keys)
    check_parsers(options)
    tls_context(options)
    _check_address(options)


def _check_address(options: ApiOptions) -> None:
    """Listen briefly to detect an address in use before a model is loaded. Raises ``ConfigError``."""
    if options.uds is None:
        bind(options.host, options.port).close()
    elif Path(options.uds).is_socket():
        bind_path(options.uds).close()
        Path(options.uds).unlink()


@contextmanager
def listening(options: ApiOptions) -> Iterator[socket.socket]:
    """The socket that the options name; the file of a unix socket goes with it. Raises ``ConfigError``."""
    with closing(bind(options.host, options.port) if options.uds is None else bind_path(options.uds)) as sock:
        try:
            yield sock
        finally:
            if options.uds is not None:
                Path(options.uds).unlink(missing_ok=True)


def bind_path(path: str) -> socket.socket:
    """A listening unix socket; one that a server left behind is replaced.

    Raises ``ConfigError`` when another server listens there, or no socket can be made.
    """
    sock = socket.socket(socket.AF_UNIX)
    try:
        if Path(path).is_socket():
            _refuse_living(path)
            Path(path).unlink()
        sock.bind(path)
        sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        raise ConfigError(
            f"can't listen on the unix socket {path}: {error}; choose another --uds", param="uds"
        ) from None
    return sock


def _refuse_living(path: str) -> None:
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            return
    raise OSError("a server listens there")


def bind(host: str, port: int) -> socket.socket:
    """A listening socket. Raises ``ConfigError`` when the address is taken or is not this machine's."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        both = host == "::" and socket.has_dualstack_ipv6()
        listening = socket.create_server((host, port), family=family, backlog=BACKLOG, dualstack_ipv6=both)
        # Inherited by every connection: a streamed token must not wait for the client to acknowledge the last one.
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listening
    except (OSError, OverflowError) as error:
        why = str(getattr(error, "strerror", None) or error).partition(" (while")[
            0
        ]  # Python's message repeats the address
        raise ConfigError(
            f"can't listen on {host}:{port}: {why}; choose another --host or --port", param="port"
        ) from None


def tls_context(options: ApiOptions) -> ssl.SSLContext | None:
    """The context for HTTPS, None for HTTP. Raises ``ConfigError`` for files that don't load."""
    if options.ssl_certfile is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(options.ssl_certfile, options.ssl_keyfile)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"ssl-certfile and ssl-keyfile can't be used: {error}", param="ssl_certfile") from None
    try:
        if options.ssl_ca_certs is not None:
            context.load_verify_locations(options.ssl_ca_certs)
        context.verify_mode = ssl.VerifyMode(options.ssl_cert_reqs)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"ssl-ca-certs can't be used: {error}", param="ssl_ca_certs") from None
    try:
        if options.ssl_ciphers is not None:
            context.set_ciphers(options.ssl_ciphers)
    except ssl.SSLError as error:
        raise ConfigError(f"ssl-ciphers can't be used: {error}", param="ssl_ciphers") from None
    return context


def address_of(sock: socket.socket, options: ApiOptions) -> str:
    """The URL of a server that listens on a socket; a unix socket is ``unix:`` and its path."""
    if sock.family == socket.AF_UNIX:
        return f"unix:{sock.getsockname()}"
    host, port = sock.getsockname()[:2]
    return f"{'https' if options.ssl_certfile else 'http'}://{f'[{host}]' if ':' in host else host}:{port}"
