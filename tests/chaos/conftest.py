"""The fixtures of the server tests, for servers that are meant to break."""

from tests.server.conftest import make_repository, make_server, scripted_model

__all__ = ["make_repository", "make_server", "scripted_model"]
