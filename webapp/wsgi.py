"""The application that gunicorn serves: ``gunicorn -c python:webapp.gunicorn_conf webapp.wsgi``."""

from __future__ import annotations

from webapp import create_app

application = create_app()
