"""What the server says about itself: health, metrics, models, policy, description, page."""

from __future__ import annotations

from typing import Any

import pytest
from flask.testing import FlaskClient
from prometheus_client.parser import text_string_to_metric_families

from mlxcel import LLM
from mlxcel.errors import EngineError
from tests.support.hosting import hosted
from tests.web.support import FACTS, HELLO, FakeFront, post, refused, soon
from webapp import WebConfig, create_app
from webapp.described import description_of
from webapp.openapi import document

CHAT = "/v1/chat/completions"


# -- health -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "state",
    [
        {"state": "loading", "label": "weights", "done": 1, "total": 4},
        {"state": "draining"},
        {"state": "failed", "error": ["load", "no such file", None]},
        {"state": "unavailable", "reason": "no engine listens"},
    ],
)
def test_health_is_503_with_the_state(
    fake: FlaskClient, front: FakeFront, state: dict[str, Any]
) -> None:
    front.state = state
    response = fake.get("/health")
    assert response.status_code == 503
    body = response.get_json()
    assert body["state"] == body["error"]["code"] == state["state"]
    for word in ("label", "done", "total"):
        assert body.get(word) == state.get(word)
    if "error" in state:
        assert body["error"]["message"] == "no such file"


def test_health_is_200_when_ready(fake: FlaskClient) -> None:
    got = fake.get("/health")
    assert got.status_code == 200
    assert got.get_json() == {"status": "ok", "state": "ready", "model": "fake"}


def test_without_an_engine_everything_is_503(tmp_path: Any) -> None:
    client = create_app(WebConfig(socket=str(tmp_path / "none"), engine_wait=0.1)).test_client()
    for path in ("/health", "/metrics", "/v1/models", "/v1/internal/mtp-policy"):
        response = client.get(path)
        assert response.status_code == 503, path
        assert "no engine listens" in response.get_json()["error"]["message"]
    refused(client.post(CHAT, json={"messages": HELLO}), 503)
    assert client.get("/openapi.json").status_code == 200


def test_while_an_engine_loads_everything_is_503(tmp_path: Any) -> None:
    config = WebConfig(socket=str(tmp_path / "s"), engine_wait=0.1)
    with hosted(tmp_path / "s", ready=False) as host:
        client = create_app(config).test_client()
        got = client.get("/health")
        assert (got.status_code, got.get_json()["state"]) == (503, "loading")
        error = refused(client.post(CHAT, json={"messages": HELLO}), 503)
        assert "loads" in error["message"]
        host.backend.facts = FACTS
        host.host.ready(host.backend)
        assert soon(lambda: client.get("/health").status_code == 200)
        assert client.get("/v1/models").get_json()["data"][0]["id"] == "fake"


# -- metrics ------------------------------------------------------------------------------


def samples(client: FlaskClient) -> dict[tuple[str, ...], float]:
    response = client.get("/metrics")
    assert response.status_code == 200
    assert response.mimetype == "text/plain"
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(response.get_data(as_text=True))
        for sample in family.samples
    }


def test_metrics_are_the_engines(tiny: FlaskClient, tiny_llm: LLM) -> None:
    before = samples(tiny)
    ask = {"messages": HELLO, "max_tokens": 40, "temperature": 0, "speculation": "on"}
    got = post(tiny, CHAT, ask)
    after = samples(tiny)

    def grown(*name: str) -> float:
        return after[name] - before.get(name, 0.0)

    assert grown("mlxcel:requests_received_total") == 1
    assert grown("mlxcel:request_success_total", got["choices"][0]["finish_reason"]) == 1
    assert grown("mlxcel:generation_tokens_total") == got["usage"]["completion_tokens"]
    assert grown("mlxcel:prompt_tokens_total") == got["usage"]["prompt_tokens"]
    drafted = got["timings"]["draft_n_accepted"]
    assert grown("mlxcel:spec_decode_num_accepted_tokens_total") >= drafted
    by_position = [
        value for name, value in after.items()
        if name[0] == "mlxcel:spec_decode_num_accepted_tokens_per_pos_total"
    ]  # fmt: skip
    assert sum(by_position) == after["mlxcel:spec_decode_num_accepted_tokens_total",]
    for name in ("time_to_first_token", "e2e_request_latency", "request_queue_time"):
        count = after[f"mlxcel:{name}_seconds_count",]
        assert after[f"mlxcel:{name}_seconds_bucket", "+Inf"] == count > 0
    assert after["mlxcel:num_requests_running",] == 0
    assert after["mlxcel:memory_bytes", "weights"] > 0


def test_metrics_without_an_engine(fake: FlaskClient, front: FakeFront) -> None:
    front.refusal = EngineError("down")
    refused(fake.get("/metrics"), 503)


# -- models and policy --------------------------------------------------------------------


def test_models(front: FakeFront) -> None:
    client = create_app(WebConfig(model_name="org/name"), engine=front).test_client()
    [model] = client.get("/v1/models").get_json()["data"]
    assert model["id"] == "org/name"
    assert model["object"] == "model"
    assert model["max_model_len"] == 100
    for name in ("org/name", "fake"):
        got = client.get(f"/v1/models/{name}").get_json()
        assert got["id"] == name
        assert post(client, CHAT, {"model": name, "messages": HELLO})["model"] == name
    assert "org/name" in refused(client.get("/v1/models/other"), 404)["message"]


def test_policy(tiny: FlaskClient, fake: FlaskClient) -> None:
    post(tiny, CHAT, {"messages": HELLO, "max_tokens": 20, "draft_width": 4})
    got = tiny.get("/v1/internal/mtp-policy").get_json()
    assert got["schema_version"] == 1
    assert got["state"] == "forced"
    assert got["mtp_enabled"] is True
    assert got["block_size"] == got["policies"][0]["width"]
    assert got["reason"]
    assert got["policies"]
    assert sum(each["count"] for each in got["decisions"]) > 0
    none = fake.get("/v1/internal/mtp-policy").get_json()
    assert (none["state"], none["policies"]) == ("unavailable", [])
    assert (none["reason_code"], none["drafter"]) == ("worker_not_ready", "lookup")


# -- description --------------------------------------------------------------------------


def refs(value: Any) -> set[str]:
    """All references in a document."""
    if isinstance(value, dict):
        own = {value["$ref"]} if isinstance(value.get("$ref"), str) else set()
        return own.union(*map(refs, value.values()))
    return set().union(*map(refs, value)) if isinstance(value, list) else set()


def test_the_description_has_every_route_and_resolves(fake: FlaskClient) -> None:
    got = fake.get("/openapi.json").get_json()
    assert got["openapi"].startswith("3.1")
    app = fake.application
    rules = {
        rule.rule.replace("<path:model>", "{model}")
        for rule in app.url_map.iter_rules()
        if rule.endpoint != "static" and not rule.endpoint.startswith("page.")
    }
    assert set(got["paths"]) == rules
    for ref in refs(got):
        node: Any = got
        for part in ref.removeprefix("#/").split("/"):
            node = node[part]
        assert node
    for path, operations in got["paths"].items():
        for method, operation in operations.items():
            assert {"404", "500", "503", "200"} <= set(operation["responses"]), path
            assert ("requestBody" in operation) is (method == "post")
    chat = got["components"]["schemas"]["ChatRequest"]
    assert chat["additionalProperties"] is False
    assert chat["required"] == ["messages"]
    assert {"speculation", "draft_width", "return_tokens"} <= set(chat["properties"])
    assert len({o["operationId"] for p in got["paths"].values() for o in p.values()}) == len(rules)


def test_a_route_that_does_not_describe_itself_is_noticed(front: FakeFront) -> None:
    app = create_app(WebConfig(), engine=front)
    app.add_url_rule("/stray", "stray", lambda: "")
    with pytest.raises(LookupError, match="/stray"):
        document(app)
    assert description_of(lambda: "") is None


def test_the_page_needs_no_engine(fake: FlaskClient, front: FakeFront) -> None:
    front.state = {"state": "failed"}
    response = fake.get("/")
    assert response.status_code == 200
    assert response.mimetype == "text/html"
