"""The application that gunicorn serves: ``gunicorn -c python:webapp.gunicorn_conf webapp.wsgi``."""

from __future__ import annotations

import logging

from webapp import create_app

# A library stays silent; a server has a log, and errors with an id have to be in it.
_handler = logging.StreamHandler()
_handler.setFormatter(logging.Formatter("mlxcel: %(levelname)s: %(message)s"))
logging.getLogger("mlxcel").addHandler(_handler)

application = create_app()
