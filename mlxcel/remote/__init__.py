"""The engine in a process of its own: messages, host, client, supervisor.

Nothing here imports MLX, nor anything that does, except `mlxcel.remote.backend`, which only
the engine's process imports.
"""
