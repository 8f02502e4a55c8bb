"""Two questions to a server's HTTP endpoint. Knows no path and no process."""

import json
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPResponse
from typing import Any


@dataclass(frozen=True)
class HttpEndpoint:
    """Where a server answers HTTP; every error counts as no answer."""

    host: str
    port: int

    def get(self, path: str) -> bool:
        """True when the server answers 200."""
        return self._ask("GET", path, 2)[0] == 200

    def post(self, path: str) -> Any:
        """The parsed answer to an empty JSON object; None for an error."""
        status, body = self._ask("POST", path, 5)
        try:
            return json.loads(body or b"{}") if status == 200 else None
        except ValueError:
            return None

    def _ask(self, method: str, path: str, timeout: float) -> tuple[int, bytes]:
        connection = HTTPConnection(self.host, self.port, timeout=timeout)
        try:
            connection.request(method, path, body=b"{}" if method == "POST" else None)
            reply: HTTPResponse = connection.getresponse()
            return reply.status, reply.read()
        except (OSError, HTTPException):
            return 0, b""
        finally:
            connection.close()
