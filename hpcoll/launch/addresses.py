"""The addresses by which other hosts may reach this one."""

import fcntl
import socket
import struct
from contextlib import suppress

_SIOCGIFADDR = 0x8915  # of Linux: an interface's address


def addresses() -> list[str]:
    """Return IPv4 addresses of this host's network interfaces, but for loopback's."""
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for _, name in socket.if_nameindex():
            with suppress(OSError):  # it has none
                answer = fcntl.ioctl(asking, _SIOCGIFADDR, struct.pack("256s", name.encode()))
                found.append(socket.inet_ntoa(answer[20:24]))
    return [address for address in found if not address.startswith("127.")]


def known_as(name: str) -> str:
    """Return the address of a host's name as this host knows it, or an empty text."""
    with suppress(OSError, UnicodeError):
        return socket.gethostbyname(name)
    return ""
