"""The application factory."""

from __future__ import annotations

import os
import time
from typing import Any

from flask import Flask

from webapp import (
    auth,
    chat,
    completions,
    errors,
    health,
    internal,
    messages,
    models,
    openapi,
    page,
    tokens,
)
from webapp.config import WebConfig
from webapp.engine import Holder
from webapp.limits import Slots

__all__ = ["create_app"]

PARTS = (chat, completions, health, internal, messages, models, openapi, page, tokens)


def create_app(config: WebConfig | None = None, *, engine: Any = None) -> Flask:
    """Make an application.

    Parameters
    ----------
    config : WebConfig, optional
        By default what the ``WEBAPP_*`` variables say.
    engine : Front, optional
        What generates: an `EngineClient`, an `LLM`, or something like them. By default a
        client of the engine at ``config.socket``, connected when it is first needed.

    Returns
    -------
    Flask
        Ready to serve, also while no engine runs yet.

    Raises
    ------
    ConfigError
        A bad variable.
    """
    made = WebConfig.from_env(os.environ) if config is None else config
    app = Flask(__name__, static_folder=None)
    app.config["MAX_CONTENT_LENGTH"] = made.max_body_bytes
    app.json.sort_keys = False  # type: ignore[attr-defined]
    app.json.ensure_ascii = False  # type: ignore[attr-defined]
    app.extensions["mlxcel"] = Holder(made, engine)
    app.extensions["mlxcel-slots"] = Slots(made.max_running)
    app.extensions["mlxcel-began"] = int(time.time())
    auth.install(app, made)
    errors.install(app)
    for part in PARTS:
        app.register_blueprint(part.blueprint)
    return app
