"""The page for people."""

from __future__ import annotations

from flask import Blueprint, render_template

blueprint = Blueprint("page", __name__)


@blueprint.get("/")
def index() -> str:
    """The page."""
    return render_template("index.html")
