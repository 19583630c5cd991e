"""llama.cpp as an arm: a stand-in for its server, and the word that it is not there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.llama_cpp_arms import Server, answer_of

ROOT = Path(__file__).resolve().parents[2]

STAND_IN = '''#!{python}
"""Answers as llama-server does: 503 while it loads, then tokens with times."""
import json, sys
from http.server import BaseHTTPRequestHandler, HTTPServer

asked = 0

class Handler(BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def reply(self, status, body):
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self):
        global asked
        asked += 1
        self.reply(503 if asked < 3 else 200, {{"status": "loading"}})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert self.path == "/completion" and body["temperature"] == 0 and body["ignore_eos"]
        n = body["n_predict"]
        self.reply(200, {{"tokens": body["prompt"][:1] * n,
                          "timings": {{"predicted_n": n, "predicted_ms": 10.0 * (n - 1)}}}})

words = dict(zip(sys.argv[1::2], sys.argv[2::2]))
assert words["--model"].endswith("x.gguf") and words["--threads"] == "2", words
HTTPServer((words["--host"], int(words["--port"])), Handler).serve_forever()
'''


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "llama-server"
    path.write_text(STAND_IN.format(python=sys.executable))
    path.chmod(0o755)
    return path


def test_a_server_is_started_waited_for_asked_and_ended(program: Path) -> None:
    server = Server(str(program), Path("x.gguf"), threads=2, context=128)
    try:
        found = server.answer([7, 8, 9], 5)
    finally:
        server.close()
    assert found.ids == [7] * 5
    assert found.seconds_per_token == pytest.approx(0.010)
    assert server._process.returncode is not None


def test_a_server_that_dies_while_it_starts_is_named(tmp_path: Path) -> None:
    path = tmp_path / "llama-server"
    path.write_text("#!/bin/sh\nexit 3\n")
    path.chmod(0o755)
    with pytest.raises(RuntimeError, match="ended with 3"):
        Server(str(path), Path("x.gguf"), threads=2, context=128)


@pytest.mark.parametrize(
    "reply",
    [
        {},
        {"tokens": [1, 2], "timings": {"predicted_n": 2, "predicted_ms": 1.0}},
        {"tokens": [1, 2, 3], "timings": {"predicted_n": 2, "predicted_ms": 1.0}},
    ],
)
def test_an_answer_of_another_length_is_refused(reply: dict[str, object]) -> None:
    with pytest.raises(RuntimeError, match="asked for 3"):
        answer_of(reply, 3)


def test_without_llama_cpp_one_line_says_so(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "benchmarks.versus_llama_cpp", "--gguf", str(tmp_path / "no")]
    done = subprocess.run(
        words, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True,
        text=True, timeout=300, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"skipped: {tmp_path / 'no'} is not there\n"
