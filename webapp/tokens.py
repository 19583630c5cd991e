"""``POST /tokenize`` and ``/detokenize``."""

from __future__ import annotations

from flask import Blueprint, Response, jsonify

from webapp.described import describe
from webapp.engine import holder
from webapp.errors import ApiError
from webapp.generation import check_model
from webapp.schemas import parse
from webapp.schemas_completions import DetokenizeRequest, TokenizeRequest

blueprint = Blueprint("tokens", __name__)


@blueprint.post("/tokenize")
@describe("Token ids of a text or of messages.", request=TokenizeRequest)
def tokenize() -> Response:
    """Token ids, as a request with this prompt would have them."""
    asked = parse(TokenizeRequest)
    check_model(asked.model)
    front = holder().front
    if asked.messages is None:
        ids = front.encode(asked.prompt or "")
    else:
        tools = [tool.model_dump(exclude_none=True) for tool in asked.tools or []]
        ids = front.encode([message.plain() for message in asked.messages], tools=tools)
    context = front.facts["context"]
    return jsonify({"tokens": list(ids), "count": len(ids), "max_model_len": context})


@blueprint.post("/detokenize")
@describe("Text of token ids.", request=DetokenizeRequest)
def detokenize() -> Response:
    """Text of token ids."""
    asked = parse(DetokenizeRequest)
    check_model(asked.model)
    front = holder().front
    size = front.facts["vocabulary"]
    for token in asked.tokens:
        if token >= size:
            raise ApiError(
                400, f"tokens holds the id {token}, which is outside the vocabulary of {size} ids",
                param="tokens",
            )  # fmt: skip
    return jsonify({"prompt": front.decode(asked.tokens)})
