"""A proxy that sometimes loses requests or answers, or refuses requests, as networks do."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from random import Random
from urllib.parse import urlsplit

FAULTS = ("request lost", "answer lost", "refused", "refused, and done", "slow")


class Flaky:
    """Chooses the faults between a client and a server; none while it is `calm`."""

    def __init__(self, seed: int, rate: float) -> None:
        self._dice = Random(seed)
        self._rate = rate
        self._lock = threading.Lock()
        self.calm = False
        self.seen: Counter[str] = Counter()
        """Number of faults by name."""

    def fault(self) -> str:
        """Draw the fault of a request; "" for none."""
        with self._lock:  # so that a seed gives the same faults however threads take turns
            if self.calm or self._dice.random() >= self._rate:
                return ""
            fault = self._dice.choice(FAULTS)
            self.seen[fault] += 1
            return fault


@contextmanager
def proxy(server: str, flaky: Flaky) -> Iterator[str]:
    """Run a proxy in front of a server and yield its URL."""
    host = urlsplit(server).netloc

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *arguments: object) -> None:
            """Print nothing."""

        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            fault = flaky.fault()
            if fault == "request lost":
                self.close_connection = True
                return
            if fault == "refused":
                self._say(503, {}, b"")
                return
            status, headers, data = self._ask(body)
            if fault == "answer lost":
                self.close_connection = True
            elif fault == "refused, and done":
                self._say(500, {}, b"")
            else:
                time.sleep(0.2 * (fault == "slow"))
                self._say(status, headers, data)

        def _ask(self, body: bytes) -> tuple[int, dict[str, str], bytes]:
            connection = HTTPConnection(host, timeout=60)
            try:
                connection.request(self.command, self.path, body, dict(self.headers.items()))
                response = connection.getresponse()
                return response.status, dict(response.getheaders()), response.read()
            finally:
                connection.close()

        def _say(self, status: int, headers: dict[str, str], data: bytes) -> None:
            self.send_response(status)
            for name, value in headers.items():
                if name.lower() not in ("connection", "content-length", "transfer-encoding"):
                    self.send_header(name, value)
            size = headers.get("Content-Length") if self.command == "HEAD" else None
            self.send_header("Content-Length", size or str(len(data)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data)

        do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = answer

    between = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    between.daemon_threads = True
    thread = threading.Thread(target=between.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{between.server_address[1]}"
    finally:
        between.shutdown()
        thread.join()
        between.server_close()
