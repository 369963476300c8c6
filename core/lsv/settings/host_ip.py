"""This machine's own address for its connections to others. No configuration has it, because each machine differs."""

from __future__ import annotations

import ipaddress
import socket

from lsv.settings import Declared, gather
from lsv.settings.hardware import HOST_IP
from lsv_base.errors import ConfigError


def read_host_ip() -> str:
    """The ``--host-ip`` of this machine, which ``Settings.hand_on`` has exported; empty where the network decides."""
    return str(gather(Declared((HOST_IP,)), {})["host_ip"] or "")


def check_host_ip(address: str) -> None:
    """Raises ``ConfigError`` unless it is one address, and one of this machine's."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        raise ConfigError(f"host_ip={address!r} is not an IP address: give one as 10.0.0.5", param="host_ip") from None
    if parsed.is_unspecified:
        raise ConfigError(
            f"host_ip={address} stands for all networks: give the one address by which others reach this machine",
            param="host_ip",
        )
    try:
        with socket.socket(socket.AF_INET6 if parsed.version == 6 else socket.AF_INET) as probe:
            probe.bind((address, 0))
    except OSError as cause:
        raise ConfigError(
            f"host_ip={address} is not an address of this machine ({cause.strerror}): ip -brief address lists them",
            param="host_ip",
        ) from cause
