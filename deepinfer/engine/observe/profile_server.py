"""`ProfileServer`: the profiling endpoint, HTTP on the loopback interface.

    curl 'http://127.0.0.1:6070/profile?num_steps=10'

GET or POST /profile with output_dir and num_steps in the query or in a JSON object, which wins.
Answers are JSON: {"trace", "num_steps"}, or {"error"} with status 400, 404, 405, 409, 500 or 503.
Nothing but this machine can reach it; a page in a browser here could, so a request under another
host's name (DNS rebinding) or from another site gets 403.
"""

from __future__ import annotations

import json
import logging
import socket
import socketserver
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, cast
from urllib.parse import parse_qsl, urlsplit

from deepinfer.engine.observe.profiling import DEFAULT_STEPS, MAX_STEPS, ProfileError, Profiler
from deepinfer.errors import UsageError

HOST = "127.0.0.1"
PATH = "/profile"
KEYS = ("output_dir", "num_steps")
MAX_BODY = 65536
MAX_CONNECTIONS = 16
IDLE_SECONDS = 10.0
"""How long the server waits for the next bytes of a request."""

POLL_SECONDS = 0.1

_log = logging.getLogger(__name__)


class ProfileServer:
    """Serves until `close`, in threads of its own, so that a silent client blocks nobody else.

    port 0: any port that is free. UsageError where the port is in use.
    """

    def __init__(self, profiler: Profiler, directory: Path, port: int) -> None:
        try:
            self._server = _Server(profiler, directory, port)
        except OSError as error:
            raise UsageError(
                f"the profiling endpoint cannot listen on {HOST}:{port} ({error.strerror}); choose "
                "another DEEPINFER_PROFILE_HTTP_PORT_BASE, or unset DEEPINFER_PROFILE_HTTP_ENABLE"
            ) from error
        self._profiler = profiler
        self._closing = False
        self._thread = threading.Thread(target=self._serve, name="deepinfer-profile-server")
        self._thread.start()
        _log.info("profiling endpoint: http://%s:%d%s", HOST, self.port, PATH)

    @property
    def port(self) -> int:
        """The port that the server listens on."""
        return int(self._server.server_address[1])

    def close(self) -> None:
        """Stop listening, send the answers that are due, and join all threads.

        Close the profiler before: clients wait for its answer.
        """
        self._closing = True
        self._thread.join()

    def _serve(self) -> None:
        """Serve until `close`, or until the main thread has ended without it."""
        while not self._closing and threading.main_thread().is_alive():
            self._server.handle_request()
        if not self._closing:
            self._profiler.close()
        self._server.stop_reading()
        self._server.server_close()


class _Server(socketserver.ThreadingMixIn, HTTPServer):
    daemon_threads = False
    block_on_close = True
    allow_reuse_port = False
    request_queue_size = 2 * MAX_CONNECTIONS
    timeout = POLL_SECONDS

    def __init__(self, profiler: Profiler, directory: Path, port: int) -> None:
        self.profiler, self.directory = profiler, directory
        self._connections: set[socket.socket] = set()
        self._connections_lock = threading.Lock()
        super().__init__((HOST, port), _Handler)

    def server_bind(self) -> None:
        """Bind without looking up the name of the machine, as HTTPServer does."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = HOST, int(self.server_address[1])

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Refuse connections beyond the limit, because each one takes a thread."""
        with self._connections_lock:
            if len(self._connections) >= MAX_CONNECTIONS:
                return False
            self._connections.add(request)
            return True

    def shutdown_request(self, request: Any) -> None:
        with self._connections_lock:
            self._connections.discard(request)
        super().shutdown_request(request)

    def stop_reading(self) -> None:
        """End the input of all connections, so that no handler waits for the rest of a request."""
        with self._connections_lock:
            for connection in self._connections:
                connection.shutdown(socket.SHUT_RD)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print no traceback for a client that went away."""
        _log.debug("a client of the profiling endpoint went away", exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    timeout = IDLE_SECONDS
    server_version = "deepinfer"
    sys_version = ""

    def do_GET(self) -> None:
        self._answer(self._profile)

    def do_POST(self) -> None:
        self._answer(self._profile)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Send the errors of http.server itself as JSON; an unknown method gets 405 or 404."""
        if code != 501:
            self._send(400, {"error": message or explain or "bad request"})
        elif urlsplit(self.path).path != PATH:
            self._send(404, {"error": _no_path(self.path)})
        else:
            error = f"method {self.command} is not allowed; use GET or POST"
            self._send(405, {"error": error}, Allow="GET, POST")

    def log_message(self, format: str, *args: Any) -> None:
        _log.debug(format, *args)

    def _answer(self, call: Any) -> None:
        try:
            answer = call()
        except ProfileError as error:
            self._send(error.status, {"error": str(error)})
        except TimeoutError:
            self.close_connection = True
            self._send(400, {"error": "the request did not arrive in time"})
        except Exception as error:
            _log.exception("the profiling endpoint failed")
            self._send(500, {"error": f"{type(error).__name__}: {error}"})
        else:
            self._send(200, answer)

    def _profile(self) -> dict[str, Any]:
        server = cast(_Server, self.server)
        self._check_origin(server.server_port)
        parts = urlsplit(self.path)
        if parts.path != PATH:
            raise ProfileError(404, _no_path(self.path))
        values = {**_query(parts.query), **self._body()}
        unknown = sorted(set(values) - set(KEYS))
        if unknown:
            raise ProfileError(400, f"{unknown[0]!r} is unknown; allowed: {', '.join(KEYS)}")
        num_steps = _num_steps(values.get("num_steps", DEFAULT_STEPS))
        directory = _directory(values.get("output_dir"), server.directory)
        trace = server.profiler.take(directory, num_steps)
        return {"trace": str(trace), "num_steps": num_steps}

    def _check_origin(self, port: int) -> None:
        names = {f"{name}{end}" for name in (HOST, "localhost") for end in ("", f":{port}")}
        host = self.headers.get("Host", "")
        if host.lower() not in names:
            raise ProfileError(403, f"host is {host!r}; allowed: {', '.join(sorted(names))}")
        origin = self.headers.get("Origin")
        if origin is not None and origin.lower().removeprefix("http://") not in names:
            raise ProfileError(403, f"origin is {origin!r}; other sites may not ask for a profile")
        if self.headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin"):
            raise ProfileError(403, "other sites may not ask for a profile")

    def _body(self) -> dict[str, Any]:
        """The JSON object in the body, {} if there is no body."""
        if self.headers.get("Transfer-Encoding"):
            raise ProfileError(400, "Transfer-Encoding is not supported; send Content-Length")
        text = self.headers.get("Content-Length") or "0"
        if not (text.isascii() and text.isdigit()) or int(text) > MAX_BODY:
            raise ProfileError(400, f"Content-Length is {text!r}; allowed: 0 to {MAX_BODY}")
        body = self.rfile.read(int(text))
        if len(body) < int(text):
            raise ProfileError(400, f"the body has {len(body)} bytes of {text}")
        if not body:
            return {}
        try:
            values = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise ProfileError(400, f"the body is no JSON: {error}") from None
        if not isinstance(values, dict):
            raise ProfileError(400, "the body is no JSON object")
        return values

    def _send(self, status: int, answer: dict[str, Any], **headers: str) -> None:
        body = json.dumps(answer).encode() + b"\n"
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def _query(text: str) -> dict[str, Any]:
    """The values of a query string, digits as integers; ProfileError for a repeated name."""
    values: dict[str, Any] = {}
    for name, value in parse_qsl(text, keep_blank_values=True):
        if name in values:
            raise ProfileError(400, f"{name!r} is given twice")
        number = name == "num_steps" and len(value) < 10 and value.isascii() and value.isdigit()
        values[name] = int(value) if number else value
    return values


def _num_steps(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_STEPS:
        raise ProfileError(
            400, f"num_steps is {value!r}; allowed: an integer from 1 to {MAX_STEPS}"
        )
    return value


def _directory(value: Any, default: Path) -> Path:
    if value is None:
        return default
    if not isinstance(value, str) or not value or "\0" in value:
        raise ProfileError(400, f"output_dir is {value!r}; allowed: the path of a directory")
    return Path(value)


def _no_path(path: str) -> str:
    return f"there is nothing at {path!r}; use {PATH}"
