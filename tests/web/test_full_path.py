"""Every family all the way: folders, ``mlxcel.load``, scheduler, gate, exactness probe, HTTP."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from flask.testing import FlaskClient

import mlxcel
from mlxcel.config import Settings
from mlxcel.models import gated_delta
from mlxcel.runtime import state_cache
from tests.support.families import FAMILIES, Written, write_mamba
from tests.support.kernels import Kernels
from tests.web.support import post, refused
from webapp import WebConfig, create_app

WIDE, NARROW = (1.0, 0.0), (1.0, 1.0)
"""Seconds of a product of one row and of each further one, in place of this host's."""
TOKENS = 16
ASK: dict[str, Any] = {
    "prompt": "hello ab hello", "max_tokens": TOKENS, "seed": 1, "temperature": 0.7,
    "ignore_eos": True, "return_tokens": True,
}  # fmt: skip
GREEDY = {"prompt": "abababababababab", "temperature": 0.0}
TOGETHER = ["hello ab hello", "ab", "b hello hello hello"]
SOME = ("llama, distilled head", "gemma4, assistant", "qwen3.5, its own head")


@contextmanager
def served(
    write: Callable[[Path], Written], folder: Path, **settings: Any
) -> Iterator[FlaskClient]:
    """A client of the application over a model that has just been written."""
    where, drafter = write(folder)
    chosen = Settings(
        cache_dir=folder / "cache", mtp_block_controller="requested", max_width=8,
        length_step=64, max_rows=4, **settings,
    )  # fmt: skip
    with mlxcel.load(where, drafter, config=chosen) as llm:
        yield create_app(WebConfig(), engine=llm).test_client()


def ask(client: FlaskClient, speculation: str = "auto", **more: Any) -> tuple[Any, Any]:
    """Token ids of each choice, and what is said of them."""
    found = post(client, "/v1/completions", ASK | more | {"speculation": speculation})
    ids = [[token["id"] for token in choice["tokens"]] for choice in found["choices"]]
    assert all(len(each) == TOKENS for each in ids)
    return ids, found["timings"]


def decided(timings: Any) -> tuple[bool, str]:
    return timings["decision"]["run"], timings["decision"]["source"]


def policy_of(client: FlaskClient) -> tuple[Any, Any]:
    """The answer, and its only width."""
    found = client.get("/v1/internal/mtp-policy").get_json()
    [width] = found["policies"]
    return found, width


@pytest.mark.parametrize("name", FAMILIES)
def test_from_folders_to_http(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a host that is wide, so that the gate lets a burst run and the probe is asked."""
    Kernels(monkeypatch, dense=WIDE)
    family = FAMILIES[name]
    more = GREEDY if family.kind == "lookup" else {}  # it proposes only what repeats
    with served(family.write, tmp_path, mtp_adaptive=False) as client:
        off, classic = ask(client, "off", **more)
        on, insisted = ask(client, "on", **more)
        auto, governed = ask(client, **more)
        assert on == off
        assert auto == off
        assert (classic["draft_n"], decided(classic)) == (0, (False, "request"))
        for timings in (insisted, governed):
            assert timings["draft_kind"] == family.kind
            assert timings["draft_n"] > 0
            assert timings["draft_rounds"] < TOKENS or not timings["draft_n_accepted"]
        assert (decided(insisted), decided(governed)) == ((True, "request"), (True, "gate"))
        together, beside = ask(client, "on", prompt=TOGETHER)
        assert together == ask(client, "off", prompt=TOGETHER)[0]
        assert beside["draft_n"] > 0 or family.kind == "lookup"
        found, width = policy_of(client)
    assert (found["state"], found["mtp_enabled"], found["block_size"]) == ("static", True, 4)
    assert "wide quantized projections" in found["reason"]
    assert width["gate"] == {"run": True, "source": "host", "reason": found["reason"]}
    exactness = width["exactness"]
    assert exactness["level"] in ("bitwise", "token"), exactness["reason"]
    assert (exactness["vetoed"], exactness["required"], exactness["width"]) == (False, "token", 4)
    assert {"source": "gate", "run": True, "count": 1} in found["decisions"]


@pytest.mark.parametrize("name", SOME)
def test_a_narrow_host(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The gate declines and nothing is probed; whoever insists is served, once it is probed."""
    Kernels(monkeypatch, dense=NARROW)
    with served(FAMILIES[name].write, tmp_path, mtp_adaptive=False) as client:
        ids, timings = ask(client)
        assert (timings["draft_n"], decided(timings)) == (0, (False, "gate"))
        found, width = policy_of(client)
        assert (found["state"], found["mtp_enabled"]) == ("static", False)
        assert "narrow quantized projections" in found["reason"]
        assert (width["gate"]["run"], width["gate"]["source"]) == (False, "host")
        assert width["exactness"] is None
        on, insisted = ask(client, "on")
        assert on == ids
        assert insisted["draft_n"] > 0
        assert policy_of(client)[1]["exactness"]["vetoed"] is False


@pytest.mark.parametrize("name", SOME)
def test_a_policy_that_measures(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It lets bursts of a narrow host run until it knows; the gate is shown beside it."""
    Kernels(monkeypatch, dense=NARROW)
    with served(FAMILIES[name].write, tmp_path) as client:
        ids, timings = ask(client)
        assert decided(timings) == (True, "policy")
        assert timings["draft_n"] > 0
        assert ids == ask(client, "off")[0]
        found, width = policy_of(client)
    assert (found["state"], found["samples_required"]) == ("profiling", 4)
    assert found["reason"].startswith("profiling, ")
    assert (width["gate"]["run"], width["exactness"]["vetoed"]) == (False, False)


def test_a_probe_that_declines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A replay that is a token short, of a recurrent target on a wide host."""

    def short(layer: Any, state: Any, block: Any, count: Any, *rest: Any) -> Any:
        return gated_delta.replayed(layer, state, block, count - 1, *rest)

    Kernels(monkeypatch, dense=WIDE)
    monkeypatch.setattr(state_cache, "replayed", short)
    write = FAMILIES["qwen3.5, its own head"].write
    with served(write, tmp_path, mtp_adaptive=False) as client:
        ids, timings = ask(client)
        assert (timings["draft_n"], decided(timings)) == (0, (False, "exactness"))
        assert ids == ask(client, "off")[0]
        found, width = policy_of(client)
        body = ASK | {"speculation": "on"}
        error = refused(client.post("/v1/completions", json=body), 400)
        assert "is not exact here" in error["message"]
        assert (error["code"], error["param"]) == ("exactness", "speculation")
    assert (found["state"], found["mtp_enabled"]) == ("exactness_declined", False)
    assert "a block and single steps differ" in found["decline_detail"]
    assert (width["gate"]["run"], width["exactness"]["level"]) == (True, "divergent")
    assert width["exactness"]["vetoed"] is True


def test_a_target_that_cannot_batch(tmp_path: Path) -> None:
    """Nor go back: it runs classic, and says why wherever it is asked."""
    with served(write_mamba, tmp_path) as client:
        ids, timings = ask(client)
        assert (timings["draft_n"], decided(timings)) == (0, (False, "engine"))
        assert "cannot be rewound" in timings["decision"]["reason"]
        assert ask(client, prompt=["ab", ASK["prompt"]])[0][1] == ids[0]
        body = ASK | {"speculation": "on"}
        error = refused(client.post("/v1/completions", json=body), 400)
        assert (error["param"], "cannot be rewound" in error["message"]) == ("speculation", True)
        found = client.get("/v1/internal/mtp-policy").get_json()
    assert (found["state"], found["policies"]) == ("unavailable", [])
    assert found["reason_code"] == "no_mtp_dispatch"
    assert "cannot be rewound" in found["reason"]
