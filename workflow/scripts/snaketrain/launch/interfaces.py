"""The network interface over which the nodes of a training communicate: `compute.interface`."""

import fcntl
import os
import platform
import socket
import struct

SIOCGIFADDR = 0x8915  # of Linux: the IPv4 address of an interface


def address_of(interface: str) -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        try:
            answer = fcntl.ioctl(any_socket.fileno(), SIOCGIFADDR, struct.pack("256s", interface.encode()[:15]))
        except OSError as error:
            here = ", ".join(name for _, name in socket.if_nameindex())
            raise SystemExit(
                f"compute.interface: {platform.node()} has no interface `{interface}` with an IPv4 address ({error.strerror}). Name one of {here}."
            ) from None
    return socket.inet_ntoa(answer[20:24])


def use_interface(interface: str) -> None:
    """Make NCCL and gloo use it, unless the environment names another."""
    address_of(interface)
    os.environ.setdefault("NCCL_SOCKET_IFNAME", f"={interface}")  # `=`: this one alone, not all with this prefix
    os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
