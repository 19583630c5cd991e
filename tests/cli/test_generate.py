"""``mlxcel generate``: text or one JSON object, and how it ends."""

from __future__ import annotations

import importlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import mlxcel
from mlxcel.cli import main
from mlxcel.cli.generate import summary
from mlxcel.config import Settings
from mlxcel.engine.prepare import build_engine
from mlxcel.errors import LoadError
from mlxcel.llm import LLM
from mlxcel.types import Completion, Decision, SpecStats, Usage
from tests.support.checkpoints import write_tiny_llama

COMMAND = [sys.executable, "-m", "mlxcel"]
ENVIRON = os.environ | {"PYTHONPATH": str(Path(mlxcel.__file__).parents[1])}
ENDED = 130


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture
def loads(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Put the tiny model in the place of every other; what was asked for is kept."""
    asked: list[tuple[Any, ...]] = []

    def load(target: str, drafter: str, *, config: Settings, progress: Any) -> LLM:
        asked.append((target, drafter, config.weights))
        return LLM(lambda: build_engine(folder, drafter, config))

    module = importlib.import_module("mlxcel.cli.generate")
    monkeypatch.setattr(module, "load", load)
    return asked


def invoke(*args: str, text: str | None = None) -> Result:
    return CliRunner().invoke(main, ["generate", "-m", "tiny", *args], input=text)


def as_json(*args: str) -> dict[str, Any]:
    result = invoke("--json", *args)
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.count("\n") == 1
    made: dict[str, Any] = json.loads(result.stdout)
    return made


def test_json_is_exactly_the_completion(loads: list[Any], folder: Path) -> None:
    made = as_json("-p", "hello hello", "-n", "12", "--seed", "3", "-t", "0.9", "--logprobs", "2")
    with mlxcel.load(folder, "lookup") as llm:
        messages = [{"role": "user", "content": "hello hello"}]
        done = llm.generate(messages, max_tokens=12, seed=3, temperature=0.9, logprobs=2)
    wanted = json.loads(json.dumps(done.to_dict()))
    assert list(made) == list(wanted)
    assert list(made["usage"]) == list(wanted["usage"])
    assert list(made["speculation"]) == list(wanted["speculation"])
    for name in ("text", "token_ids", "finish_reason", "usage", "seed", "drafted", "error"):
        assert made[name] == wanted[name]
    assert [found["token_id"] for found in made["logprobs"]] == made["token_ids"]
    assert loads == [("tiny", "lookup", "auto")]


@pytest.mark.parametrize(("width", "block"), [("3", 4), ("6", 6)])
def test_numerics_and_the_block_it_needs(
    loads: list[Any], monkeypatch: pytest.MonkeyPatch, width: str, block: int
) -> None:
    """A width above the default one raises the block; the output is that of fast numerics."""
    module, made = importlib.import_module("mlxcel.cli.generate"), []
    plain = module.load

    def load(*args: Any, config: Settings, **more: Any) -> LLM:
        made.append((config.numerics, config.default_width))
        return plain(*args, config=config, **more)

    monkeypatch.setattr(module, "load", load)
    args = ("-p", "abcabc", "--raw", "-n", "12", "--seed", "1", "-t", "0.7", "--width", width)
    wanted = as_json(*args)
    assert as_json(*args, "--numerics", "invariant")["token_ids"] == wanted["token_ids"]
    monkeypatch.setenv("MLXCEL_NUMERICS", "invariant")
    assert as_json(*args)["token_ids"] == wanted["token_ids"]
    assert made == [("fast", 4), ("invariant", block), ("invariant", block)]
    refused = invoke("-p", "a", "--numerics", "invariant", "--width", "17")
    assert refused.exit_code == 2
    assert "above max_width 16" in refused.stderr


def test_text_goes_to_stdout_and_the_summary_to_stderr(loads: list[Any]) -> None:
    args = ("-p", "abcabc", "--raw", "-n", "8", "--seed", "0")
    wanted = as_json(*args)
    result = invoke(*args)
    assert result.exit_code == 0
    assert result.stdout == wanted["text"] + "\n"
    assert result.stderr.count("\n") == 1
    assert "6 prompt tokens" not in result.stderr  # "ab" is one token
    assert "4 prompt tokens" in result.stderr
    assert "seed 0" in result.stderr


def test_the_summary_has_the_effective_width_where_it_was_free() -> None:
    stats = SpecStats(
        kind="mtp", ran=True, reason="", rounds=4, width_min=2, width_max=8,
        widths=((2, 1), (4, 2), (8, 1)),
    )  # fmt: skip
    decision = Decision(run=True, width=4, kind="mtp", source="policy", reason="", steered=True)
    done = Completion(
        text="", token_ids=(), drafted=(), finish_reason="length", usage=Usage(1, 1), seed=0,
        decision=decision, speculation=stats,
    )  # fmt: skip
    assert summary(done).endswith("width 2 to 8, 4.5 on average")
    assert summary(replace(done, decision=replace(decision, steered=False))).endswith("2 to 8")


def test_all_options_reach_the_request(loads: list[Any]) -> None:
    plain = as_json("-p", "ab", "--raw", "-n", "20", "--speculation", "off")
    assert plain["speculation"]["reason"] == "the request turned speculation off"
    first = plain["token_ids"][0]
    banned = as_json("-p", "ab", "--raw", "-n", "5", "--logit-bias", f"{first}=-100")
    assert banned["token_ids"][0] != first
    assert as_json("-p", "ab", "--raw", "-n", "5", "--width", "1", "--drafter", "none",
                   "--weights", "dense")["speculation"]["kind"] == "none"  # fmt: skip
    assert loads[-1] == ("tiny", "none", "dense")
    stop = plain["text"][3:5]
    stopped = as_json("-p", "ab", "--raw", "-n", "20", "--stop", stop, "--stop", "\x00")
    assert stopped["text"] == plain["text"][: plain["text"].index(stop)]
    assert stopped["finish_reason"] == "stop"
    sampled = ("-p", "ab", "--raw", "-n", "9", "-t", "1.2", "--top-k", "9", "--top-p", "0.9",
               "--min-p", "0.01", "--repetition-penalty", "1.1", "--presence-penalty", "0.1",
               "--frequency-penalty", "0.1", "--seed", "18446744073709551615")  # fmt: skip
    assert as_json(*sampled)["token_ids"] == as_json(*sampled, "--width", "5")["token_ids"]


@pytest.mark.parametrize("command", ["generate", "demo"])
@pytest.mark.parametrize(
    ("args", "drafter"),
    [
        ((), "demo"),
        (("--model", "demo"), "demo"),
        (("--drafter", "none"), "none"),
        (("--drafter", "lookup"), "lookup"),
        (("--model", "other"), "lookup"),
        (("--model", "other", "--drafter", "demo"), "demo"),
    ],
)
def test_the_drafter_that_is_loaded(
    monkeypatch: pytest.MonkeyPatch, command: str, args: tuple[str, ...], drafter: str
) -> None:
    asked: list[str] = []

    def load(target: str, drafter: str, **_: Any) -> LLM:
        asked.append(drafter)
        raise LoadError("enough")

    monkeypatch.setattr(importlib.import_module(f"mlxcel.cli.{command}"), "load", load)
    result = CliRunner().invoke(main, [command, "--prompt", "x", *args])
    assert (result.exit_code, result.stderr) == (2, "mlxcel: error: enough\n")
    assert asked == [drafter]


def test_the_prompt_from_standard_input(loads: list[Any]) -> None:
    args = ("--raw", "-n", "5", "--json")
    piped = invoke("-p", "-", *args, text="hello")
    assert piped.exit_code == 0
    assert json.loads(piped.stdout)["token_ids"] == as_json("-p", "hello", *args)["token_ids"]


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("-p", ""), "the prompt is empty"),
        (("-p", "x", "-n", "-1"), "max_tokens must be between"),
        (("-p", "x", "-n", "5000"), "context is 4096"),
        (("-p", "x", "-t", "nan"), "temperature must be"),
        (("-p", "x", "--top-p", "2"), "top_p must be"),
        (("-p", "x", "--seed", "-1"), "seed must be"),
        (("-p", "x", "--logprobs", "21"), "logprobs must be"),
        (("-p", "x", "--stop", ""), "stop holds"),
        (("-p", "x", "--width", "0"), "width must be"),
        (("-p", "x", "--width", "17"), "width 17 is above max_width 16"),
        (("-p", "x", "--logit-bias", "x"), "--logit-bias takes"),
        (("-p", "x", "--logit-bias", "1=x"), "--logit-bias takes"),
        (("-p", "x", "--logit-bias", "99999=1"), "outside the vocabulary"),
        (("-p", "x", "--drafter", "none", "--speculation", "on"), "no drafter is loaded"),
        (("-p", "x", "--drafter", "nothing"), "'nothing': no such folder"),
    ],
)
def test_bad_input_is_one_line_and_2(loads: list[Any], args: tuple[str, ...], said: str) -> None:
    for more in ((), ("--json",)):
        result = invoke("--raw", *args, *more)
        assert result.exit_code == 2
        assert result.stdout == ""
        assert result.stderr.startswith("mlxcel: error: ")
        assert result.stderr.count("\n") == 1
        assert said in result.stderr


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ((), "--prompt"),
        (("-p", "x", "--width", "four"), "four"),
        (("-p", "x", "--speculation", "maybe"), "maybe"),
        (("-p", "x", "--temprature", "1"), "--temprature"),
    ],
)
def test_bad_usage_is_2(loads: list[Any], args: tuple[str, ...], said: str) -> None:
    result = invoke(*args)
    assert result.exit_code == 2
    assert said in result.stderr
    assert not loads


def run(*args: str, **kwargs: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, "generate", *args], env=ENVIRON, capture_output=True, text=True,
        timeout=300, check=False, **kwargs,
    )  # fmt: skip


def test_a_whole_process(folder: Path) -> None:
    done = run("-m", str(folder), "-p", "hello", "-n", "6", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["usage"]["completion_tokens"] <= 6


def test_a_process_with_bad_input(folder: Path, tmp_path: Path) -> None:
    for args in (("-m", str(tmp_path / "none"), "-p", "x"), ("-m", str(folder), "--raw", "-p", "")):
        done = run(*args)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.count("\n") == 1
        assert done.stderr.startswith("mlxcel: error: ")


def test_a_bad_variable(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ENVIRON, "MLXCEL_MAX_ROW", "3")
    done = run("-m", str(folder), "-p", "x")
    assert done.returncode == 2
    assert "did you mean MLXCEL_MAX_ROWS?" in done.stderr
    assert done.stderr.count("\n") == 1


def heed_interrupts() -> None:
    """What runs in the background of a script ignores them, and so do its children."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.mark.parametrize("times", [1, 2])
def test_an_interrupt_is_130(tmp_path: Path, times: int) -> None:
    folder = write_tiny_llama(tmp_path / "long", context=1_000_000)
    args = ("-m", str(folder), "-p", "hello", "-n", "900000", "--logit-bias", "0=-1000")
    with subprocess.Popen(
        [*COMMAND, "generate", *args], env=ENVIRON, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        preexec_fn=heed_interrupts,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stderr is not None
        ready, _, _ = select.select([process.stdout], [], [], 60)
        assert ready, "no text came"
        assert os.read(process.stdout.fileno(), 100)
        time.sleep(0.2)
        for _ in range(times):
            process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=300)
    if times == 1:
        assert process.returncode == ENDED
        assert b"Traceback" not in errors
    else:  # the second may hit the interpreter's own end; an abort it must never be
        assert process.returncode in (ENDED, -signal.SIGINT)
        assert b"terminate called" not in errors
