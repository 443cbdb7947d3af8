"""A web server on the loopback interface that misbehaves as told."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Site:
    """What is served under each path, and how: one of the answers for each request, the last one for all further.

    - ``"whole"``: the file.
    - ``"dropped"``: the length of the file, half of it, and a closed connection.
    - ``"cut"``: half of the file, as if that were all.
    - ``"wrong"``: other bytes of the same length.
    - ``"missing"``: 404.
    - ``"stalled"``: half of the file, the rest when ``resume`` is set.
    - ``"together"``: the file, once as many requests as ``crowd`` has parties are waiting.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.files: dict[str, bytes] = {}
        self.answers: dict[str, list[str]] = defaultdict(lambda: ["whole"])
        self.requests: list[str] = []
        self.resume = threading.Event()
        self.crowd = threading.Barrier(1)

    def serve(self, path: str, content: bytes, *answers: str) -> str:
        self.files[path] = content
        if answers:
            self.answers[path] = list(answers)
        return f"{self.url}{path}"

    def next_answer(self, path: str) -> str:
        self.requests.append(path)
        answers = self.answers[path]
        return answers.pop(0) if len(answers) > 1 else answers[0]


def _handler(site: Site) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer = site.next_answer(self.path)
            content = site.files.get(self.path, b"")
            half = content[: len(content) // 2]
            if answer == "together":
                site.crowd.wait(timeout=60)
            if answer == "missing":
                self.send_error(404)
                return
            sent = {"dropped": half, "stalled": half, "cut": half, "wrong": bytes(len(content))}.get(answer, content)
            self.send_response(200)
            self.send_header("Content-Length", str(len(half if answer == "cut" else content)))
            self.end_headers()
            self.wfile.write(sent)
            if answer == "stalled":
                self.wfile.flush()
                site.resume.wait(timeout=60)
                self.wfile.write(content[len(half) :])

        def log_message(self, *_: object) -> None:
            """Says nothing."""

    return Handler


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """A client that was killed is part of the tests."""


@contextmanager
def running() -> Iterator[Site]:
    site = Site("")
    with _Server(("127.0.0.1", 0), _handler(site)) as server:
        site.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield site
        site.resume.set()
        server.shutdown()
        thread.join()
