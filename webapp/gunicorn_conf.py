"""Gunicorn's settings: threads, because streams wait; no preload; time to end in order.

Several workers share the engine's socket; none of them ever touches MLX. ``mlxcel serve``
sets the variables that are read here.
"""

from __future__ import annotations

import os
import signal
import threading
from typing import Any

bind = os.environ.get("WEBAPP_BIND", "127.0.0.1:8000")
workers = int(os.environ.get("WEBAPP_WORKERS", "1"))
threads = int(os.environ.get("WEBAPP_THREADS", "128"))
worker_class = "webapp.worker.Worker"
preload_app = False
timeout = 60  # of a worker that does not answer its master; streams may take longer
graceful_timeout = int(os.environ.get("WEBAPP_GRACE", "30"))
keepalive = 2  # idle connections hold up the end for so long
backlog = 1024
limit_request_field_size = 8190
accesslog = None
errorlog = "-"
loglevel = "warning"
proc_name = "mlxcel-web"
control_socket_disable = True  # one in the home folder would be shared by all servers


def on_starting(server: Any) -> None:
    """End with the process that started us, however it ended."""
    lifeline = os.environ.get("WEBAPP_LIFELINE")
    if lifeline is None:
        return
    master = os.getpid()

    def watch() -> None:
        os.read(int(lifeline), 1)
        os.kill(master, signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()
