"""The profiling endpoint as a client sees it: parameters, refusals, states, and its end."""

from __future__ import annotations

import http.client
import json
import os
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from deepinfer import LLM
from deepinfer.engine import Engine, ModelRunner
from deepinfer.engine.observe import profile_server
from deepinfer.engine.observe.profile_server import HOST, MAX_CONNECTIONS, ProfileServer
from deepinfer.engine.observe.profiling import ProfileError, Profiler
from deepinfer.errors import UsageError
from deepinfer.settings.settings import Settings
from tests.engine.shadow import add, drain, greedy, shadow_engine


class Taken(Profiler):
    """Takes no trace: notes what was asked for, and answers or raises what it is told to."""

    def __init__(self) -> None:
        self.asked: list[tuple[Path, int]] = []
        self.error: Exception | None = None
        self.wait = threading.Event()
        self.wait.set()

    def take(self, directory: Path, num_steps: int) -> Path:
        self.asked.append((directory, num_steps))
        self.wait.wait()
        if self.error is not None:
            raise self.error
        return directory / "trace.json"


@pytest.fixture
def taken() -> Taken:
    return Taken()


@pytest.fixture
def server(taken: Taken, tmp_path: Path) -> Iterator[ProfileServer]:
    server = ProfileServer(taken, tmp_path, 0)
    yield server
    taken.wait.set()
    server.close()
    assert not [t.name for t in threading.enumerate() if "deepinfer-profile" in t.name]


def ask(
    server: ProfileServer | int,
    target: str = "/profile",
    body: Any = None,
    method: str = "",
    **headers: str,
) -> tuple[int, Any]:
    """Status and JSON of an answer; a body that is no text is sent as JSON."""
    port = server if isinstance(server, int) else server.port
    connection = http.client.HTTPConnection(HOST, port, timeout=20)
    data = None if body is None else body if isinstance(body, str) else json.dumps(body)
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    try:
        connection.request(method or ("GET" if data is None else "POST"), target, data, named)
        response = connection.getresponse()
        text = response.read()
    finally:
        connection.close()
    assert response.headers["Content-Type"] == "application/json"
    return response.status, json.loads(text) if text else None


def test_defaults(server: ProfileServer, taken: Taken, tmp_path: Path) -> None:
    assert ask(server) == (200, {"trace": str(tmp_path / "trace.json"), "num_steps": 20})
    assert taken.asked == [(tmp_path, 20)]


def test_query_and_body(server: ProfileServer, taken: Taken) -> None:
    assert ask(server, "/profile?num_steps=50&output_dir=/a%20b")[0] == 200
    assert ask(server, body={"num_steps": 1, "output_dir": "/c"})[0] == 200
    assert ask(server, "/profile?num_steps=3&output_dir=/d", {"num_steps": 4})[0] == 200
    assert taken.asked == [(Path("/a b"), 50), (Path("/c"), 1), (Path("/d"), 4)]


@pytest.mark.parametrize(
    ("target", "body", "message"),
    [
        ("/profile?steps=3", None, "'steps' is unknown; allowed: output_dir, num_steps"),
        ("/profile?num_steps=0", None, "num_steps is 0; allowed: an integer from 1 to 50"),
        ("/profile?num_steps=51", None, "num_steps is 51"),
        ("/profile?num_steps=-1", None, "num_steps is '-1'"),
        ("/profile?num_steps=1.0", None, "num_steps is '1.0'"),
        ("/profile?num_steps=", None, "num_steps is ''"),
        ("/profile?num_steps=" + "9" * 5000, None, "num_steps is '9"),
        ("/profile?num_steps=1&num_steps=2", None, "'num_steps' is given twice"),
        ("/profile?output_dir=", None, "output_dir is ''"),
        ("/profile?output_dir=a%00b", None, "output_dir is 'a\\x00b'"),
        ("/profile", {"num_steps": True}, "num_steps is True"),
        ("/profile", {"num_steps": "3"}, "num_steps is '3'"),
        ("/profile", {"num_steps": 2.0}, "num_steps is 2.0"),
        ("/profile", {"num_steps": None}, "num_steps is None"),
        ("/profile", {"output_dir": 3}, "output_dir is 3"),
        ("/profile", {"other": 3}, "'other' is unknown"),
        ("/profile", [1], "no JSON object"),
        ("/profile", "{", "the body is no JSON"),
        ("/profile", "[" * 60000, "the body is no JSON"),
        ("/profile", '"' + "x" * 70000 + '"', "Content-Length is '70002'; allowed: 0 to 65536"),
    ],
)
def test_bad_parameters(
    target: str, body: Any, message: str, server: ProfileServer, taken: Taken
) -> None:
    status, answer = ask(server, target, body)
    assert status == 400, answer
    assert message in answer["error"], answer
    assert not taken.asked


def test_other_paths_and_methods(server: ProfileServer, taken: Taken) -> None:
    assert ask(server, "/") == (404, {"error": "there is nothing at '/'; use /profile"})
    assert ask(server, "/profile/", {})[0] == 404
    assert ask(server, "/other", method="DELETE")[0] == 404
    for method in ("PUT", "DELETE", "BREW"):
        error = f"method {method} is not allowed; use GET or POST"
        assert ask(server, method=method) == (405, {"error": error})
    assert ask(server, method="HEAD") == (405, None)
    assert not taken.asked


@pytest.mark.parametrize("status", [400, 409, 500, 503])
def test_what_the_profiler_says(status: int, server: ProfileServer, taken: Taken) -> None:
    taken.error = ProfileError(status, "because")
    assert ask(server) == (status, {"error": "because"})


def test_a_fault_of_ours(
    server: ProfileServer, taken: Taken, caplog: pytest.LogCaptureFixture
) -> None:
    taken.error = ValueError("broken")
    assert ask(server) == (500, {"error": "ValueError: broken"})
    assert "the profiling endpoint failed" in caplog.text


@pytest.mark.parametrize("host", ["evil.example", "evil.example:{}", "127.0.0.1:1", "0.0.0.0:{}"])
def test_another_host_name_is_refused(host: str, server: ProfileServer, taken: Taken) -> None:
    status, answer = ask(server, Host=host.format(server.port))
    assert status == 403
    assert "allowed: 127.0.0.1" in answer["error"]
    assert not taken.asked


def test_names_of_this_machine(server: ProfileServer) -> None:
    for host in (f"localhost:{server.port}", f"127.0.0.1:{server.port}", "LOCALHOST"):
        assert ask(server, Host=host)[0] == 200


def test_other_sites_are_refused(server: ProfileServer, taken: Taken) -> None:
    assert ask(server, Origin="http://evil.example")[0] == 403
    assert ask(server, Origin="null")[0] == 403
    assert ask(server, Sec_Fetch_Site="cross-site")[0] == 403
    assert not taken.asked
    assert (
        ask(server, Origin=f"http://{HOST}:{server.port}", Sec_Fetch_Site="same-origin")[0] == 200
    )


def test_only_the_loopback_interface_listens(server: ProfileServer) -> None:
    assert server._server.socket.getsockname() == ("127.0.0.1", server.port)


def test_a_port_in_use(server: ProfileServer, taken: Taken, tmp_path: Path) -> None:
    before = threading.active_count()
    with pytest.raises(
        UsageError, match=f"cannot listen on 127.0.0.1:{server.port} .*in use.*BASE"
    ):
        ProfileServer(taken, tmp_path, server.port)
    assert threading.active_count() == before


def raw(server: ProfileServer, text: bytes) -> socket.socket:
    connection = socket.create_connection((HOST, server.port), timeout=20)
    connection.sendall(text)
    return connection


@pytest.mark.parametrize("text", [b"", b"GET /pro", b"POST /profile HTTP/1.1\r\nContent-Le"])
def test_a_silent_client_delays_neither_others_nor_the_end(
    text: bytes, server: ProfileServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(profile_server._Handler, "timeout", 20)
    with raw(server, text) as silent:
        assert ask(server)[0] == 200
        closing = threading.Thread(target=server.close)
        closing.start()
        closing.join(5)
        assert not closing.is_alive(), "it waits for the client"
        silent.makefile("rb").read()  # to its end, which a time-out would not be


def test_a_silent_client_is_dropped(server: ProfileServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profile_server._Handler, "timeout", 0.05)
    head = f"POST /profile HTTP/1.1\r\nHost: {HOST}\r\nContent-Length: 9\r\n\r\n1234"
    with raw(server, head.encode()) as silent:
        assert b" 400 " in silent.makefile("rb").readline()
    with raw(server, b"GET /pro") as silent:
        assert silent.recv(1) == b""


def test_a_body_that_ends_early(server: ProfileServer, taken: Taken) -> None:
    head = f"POST /profile HTTP/1.1\r\nHost: {HOST}\r\nContent-Length: 9\r\n\r\n1234"
    with raw(server, head.encode()) as client:
        client.shutdown(socket.SHUT_WR)
        assert b"the body has 4 bytes of 9" in client.makefile("rb").read()
    assert not taken.asked


@pytest.mark.parametrize("text", [b"\r\n", b"nonsense\r\n\r\n", b"GET /profile HTTP/9.9\r\n\r\n"])
def test_what_is_no_http_harms_nothing(text: bytes, server: ProfileServer, taken: Taken) -> None:
    with raw(server, text) as client:
        client.shutdown(socket.SHUT_WR)
        client.makefile("rb").read()
    assert ask(server)[0] == 200
    assert len(taken.asked) == 1


def test_connections_are_bounded(server: ProfileServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profile_server._Handler, "timeout", None)
    silent = [raw(server, b"GET") for _ in range(MAX_CONNECTIONS)]
    with raw(server, b"") as refused:
        refused.settimeout(5)
        assert refused.recv(1) == b""
    for connection in silent:
        connection.close()


# Through the variables, on an engine.


def free_port() -> int:
    with socket.create_server((HOST, 0)) as probe:
        return int(probe.getsockname()[1])


def engine_with(**values: str) -> Engine:
    named = {f"DEEPINFER_{name}": value for name, value in values.items()}
    return shadow_engine(settings=Settings.from_environment(named))[0]


def stepped(engine: Engine, answer: Future[Any]) -> Any:
    """Run requests until there is an answer."""
    while not answer.done():
        if not engine.has_work:
            add(engine, 5, max_tokens=30)
        engine.step()
    drain(engine)
    return answer.result()


@pytest.mark.slow
def test_a_trace_of_an_engine(tmp_path: Path) -> None:
    """Enabled, on the port that was asked for, into the directory that was asked for."""
    port = free_port()
    engine = engine_with(
        PROFILE_HTTP_ENABLE="1",
        PROFILE_HTTP_PORT_BASE=str(port),
        TORCH_PROFILER_DIR=str(tmp_path),
    )
    with ThreadPoolExecutor(1) as pool:
        status, answer = stepped(engine, pool.submit(ask, port, "/profile?num_steps=3"))
    engine.close()
    assert status == 200, answer
    path = Path(answer["trace"])
    assert os.listdir(tmp_path) == [path.name]
    assert path.name.startswith("deepinfer-rank0-")
    events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    names = [event["name"] for event in events if event.get("cat") == "user_annotation"]
    for part in ("schedule", "prepare_input", "forward", "sample", "commit"):
        assert names.count(f"deepinfer:{part}") == 3, part


@pytest.mark.parametrize("prompts", [[], [[1, 2, 3]]])
def test_the_text_interface_serves_until_it_is_closed(
    prompts: list[list[int]],
    small_runner: ModelRunner,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    port = free_port()
    values = {"PROFILE_HTTP_ENABLE": "1", "PROFILE_HTTP_PORT_BASE": str(port)}
    named = {f"DEEPINFER_{name}": value for name, value in values.items()}
    monkeypatch.setattr(small_runner, "settings", Settings.from_environment(named))
    with LLM.of(Engine(small_runner, settings=small_runner.settings)) as llm:
        llm.generate(prompts, greedy(2), use_tqdm=False)
        assert ask(port, "/nothing")[0] == 404
    with pytest.raises(ConnectionRefusedError):
        ask(port)


def test_it_is_off_by_default(tmp_path: Path) -> None:
    before = threading.active_count()
    engine = engine_with(PROFILE_HTTP_PORT_BASE=str(free_port()), TORCH_PROFILER_DIR=str(tmp_path))
    assert engine.observer.server is None
    assert threading.active_count() == before
    engine.close()


def test_the_temporary_directory_is_the_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    engine = engine_with(PROFILE_HTTP_ENABLE="1", PROFILE_HTTP_PORT_BASE=str(free_port()))
    assert engine.observer.server is not None
    assert engine.observer.server._server.directory == tmp_path
    engine.close()


def test_what_cannot_be_served_is_refused_at_the_start(tmp_path: Path) -> None:
    with socket.create_server((HOST, 0)) as other:
        port = str(other.getsockname()[1])
        with pytest.raises(UsageError, match=f"cannot listen on 127.0.0.1:{port}"):
            engine_with(PROFILE_HTTP_ENABLE="1", PROFILE_HTTP_PORT_BASE=port)
    with pytest.raises(UsageError, match=r"TORCH_PROFILER_DIR cannot be used: .*is no directory"):
        engine_with(PROFILE_HTTP_ENABLE="1", TORCH_PROFILER_DIR=str(tmp_path / "none"))


def test_the_port_is_the_base_and_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    monkeypatch.setattr(
        "deepinfer.engine.observe.observer.ProfileServer", lambda one, two, port: made.append(port)
    )
    engine, _ = shadow_engine()
    for base, device in ((6070, 3), (65535, 0)):
        values = {
            "DEEPINFER_PROFILE_HTTP_ENABLE": "1",
            "DEEPINFER_PROFILE_HTTP_PORT_BASE": str(base),
        }
        settings = Settings.from_environment(values)
        parts = engine.runner.cache, engine.scheduler, settings
        type(engine.observer)(*parts, device_index=device)
    assert made == [6073, 65535]
    with pytest.raises(UsageError, match="with device 1 is beyond 65535"):
        type(engine.observer)(*parts, device_index=1)


def test_close_answers_who_waits_and_joins_every_thread(tmp_path: Path) -> None:
    port = free_port()
    engine = engine_with(
        PROFILE_HTTP_ENABLE="1",
        PROFILE_HTTP_PORT_BASE=str(port),
        TORCH_PROFILER_DIR=str(tmp_path),
    )
    before = {t.ident for t in threading.enumerate()}
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(ask, port)
        while engine.observer.profiler._recording is None:
            pass
        engine.close()
        engine.close()
        assert answer.result()[0] == 503
    assert {t.ident for t in threading.enumerate()} < before
    with pytest.raises(ConnectionRefusedError):
        ask(port)
