"""Free and taken TCP ports on this machine. Knows no server."""

import socket

from blockdiff.errors import ConfigError


def free_ports(count: int, host: str = "127.0.0.1") -> list[int]:
    """Ports that were free a moment ago, all different."""
    sockets = []
    try:
        for _ in range(count):
            holder = socket.socket(_family(host), socket.SOCK_STREAM)
            sockets.append(holder)
            holder.bind((host, 0))
        return [holder.getsockname()[1] for holder in sockets]
    finally:
        for holder in sockets:
            holder.close()


def is_free(port: int, host: str = "127.0.0.1") -> bool:
    """True when nothing listens on the port at this address."""
    with socket.socket(_family(host), socket.SOCK_STREAM) as probe:
        # As a server does: connections that are only fading out do not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except (OSError, OverflowError):
            return False
    return True


def require_address(host: str) -> None:
    """Refuse an address that is not this machine's, with one line that names it."""
    try:
        with socket.socket(_family(host), socket.SOCK_STREAM) as probe:
            probe.bind((host, 0))
    except (OSError, UnicodeError) as error:
        raise ConfigError(
            f"host {host}: cannot be listened on ({error}); give an address of this machine"
        ) from error


def require_free(ports: dict[str, int], host: str) -> None:
    """Refuse doubled, impossible and taken ports with one line that names the port."""
    seen: dict[int, str] = {}
    for name, port in ports.items():
        if not 1 <= port <= 65535:
            raise ConfigError(f"{name} {port}: allowed are 1 to 65535")
        if port in seen:
            raise ConfigError(f"{name} {port}: already given as {seen[port]}; choose another")
        seen[port] = name
        if not is_free(port, host):
            raise ConfigError(
                f"{name} {port}: already in use on {host}; choose another or end its owner"
            )


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET
