"""The HTTP API and its page: thin Flask over an engine in another process. No MLX here."""

from __future__ import annotations

from webapp.app import create_app
from webapp.config import WebConfig

__all__ = ["WebConfig", "create_app"]
