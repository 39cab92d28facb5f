"""A port for processes of one program."""
import socket


def get_open_port() -> int:
    """One that nobody listens at, right now."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])
