"""Settings: one table of what can be set, where from, and within which bounds.

A value comes from an explicit argument, else the environment, else the default, which is
written once, here. Standard library only. `Settings.from_env` reads the environment; made
directly, a `Settings` takes nothing from it but ``XDG_CACHE_HOME`` for the default folder.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from dataclasses import Field, dataclass, fields
from pathlib import Path
from typing import Any, Literal

from mlxcel.config_defaults import default_cache_dir, default_prefill_chunk
from mlxcel.config_parse import (
    FALSE,
    TRUE,
    flag,
    flag_or_none,
    folder,
    parse_bool,
    parse_int,
    parse_path,
    parse_size,
    parse_word,
    setting,
    whole,
    whole_or_none,
    word,
)
from mlxcel.errors import ConfigError

__all__ = ["FALSE", "TRUE", "Settings", "environment_table", "parse_bool"]

PREFIX = "MLXCEL_"
BUILD_VARIABLES = {"MLXCEL_BUILD": "Kinds of build, read by `setup.py` only."}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings of one process; wrong ones cannot be made.

    Attributes
    ----------
    weights : {"auto", "stored", "dense"}
        Representation of the weights that is served.
    blas : {"auto", "off"}
        BLAS on Linux; read when MLX is first imported.
    cache_dir : Path
        Folder for downloads, profiles and verdicts.
    max_rows : int
        Rows decoded together.
    max_width : int
        Largest block width accepted, in tokens (1 bonus token + drafts).
    default_width : int
        Block width when neither request nor drafter names one, in tokens.
    prefill_chunk : int
        Tokens of a prompt per pass.
    length_step : int
        Tokens by which cache buffers grow.
    max_queue : int
        Requests that may wait; more are refused.
    cache_bytes : int or None
        Bytes that caches of running requests may take; ``None``: half of what is free once
        the model is loaded.
    prefix_bytes : int
        Bytes of caches kept of requests that have ended, for prompts that begin alike.
    lean_modules : bool
        Whether modules are replaced by forms that are cheaper on this backend.
    enable_mtp_b1 : bool or None
        Turns the burst of one row on or off, whatever gate and policy say; ``None`` leaves
        it to them. An exactness veto outranks it.
    mtp_adaptive : bool
        Whether bursts are measured and the measurement outranks the static gate.
    mtp_exactness : {"off", "token", "bitwise"}
        What the exactness probe must find before a pairing may burst on this host.
    mtp_block_controller : {"throughput", "requested"}
        Whether the width with the most tokens per second runs, or the one asked for.
    drafter_bits : {"auto", "off", "2", "3", "4", "5", "6", "8"}
        Bits of a drafter's projections; ``auto``: 4 where this host is faster with them.
    assistant_position : {"pending", "last"}
        Position of a Gemma 4 assistant's queries.
    numerics : {"fast", "invariant"}
        Whether passes of decode are as small as they can be, or all of one shape, so that
        classic steps and verifies run the same kernels.
    client_buffer : int
        Pieces of an answer that wait for a client of the engine process.

    Raises
    ------
    ConfigError
        A value of a wrong type or out of bounds, or two that contradict each other.
    """

    weights: Literal["auto", "stored", "dense"] = setting(
        "auto",
        "Representation of the weights that is served: `stored` as in the checkpoint, `dense`, "
        "or `auto`: whichever this host runs faster.",
        check=word("auto", "stored", "dense"),
        env="MLXCEL_WEIGHTS",
        parse=parse_word,
    )
    blas: Literal["auto", "off"] = setting(
        "auto",
        "BLAS of the CPU backend on Linux: `auto` takes OpenBLAS, `off` keeps what the mlx wheel "
        "links. Read when MLX is first imported.",
        check=word("auto", "off"),
        env="MLXCEL_BLAS",
        parse=parse_word,
    )
    cache_dir: Path = setting(  # noqa: RUF009 (it returns a field)
        lambda: default_cache_dir(os.environ),
        "Folder for downloads, profiles and verdicts.",
        check=folder,
        env="MLXCEL_CACHE_DIR",
        parse=parse_path,
        shown="`$XDG_CACHE_HOME/mlxcel`, else `~/.cache/mlxcel`",
    )
    max_rows: int = setting(
        8,
        "Rows (sequences) decoded together, 1 to 256.",
        check=whole(1, 256, "rows"),
        env="MLXCEL_MAX_ROWS",
        parse=parse_int,
    )
    max_width: int = setting(
        16,
        "Largest block width accepted, 1 to 64 tokens.",
        check=whole(1, 64, "tokens"),
    )
    default_width: int = setting(
        4,
        "Block width (1 bonus token + drafts) when neither request nor drafter names one, "
        "1 to max_width (16) tokens; 1 drafts nothing.",
        check=whole(1, 64, "tokens"),
        env="MLXCEL_DRAFT_WIDTH",
        parse=parse_int,
    )
    prefill_chunk: int = setting(
        default_prefill_chunk,
        "Tokens of a prompt per pass, 1 to 65536: running requests wait for one pass at a time.",
        check=whole(1, 65536, "tokens"),
        env="MLXCEL_PREFILL_CHUNK",
        parse=parse_int,
        shown="`128` on a CPU, `512` on a GPU",
    )
    length_step: int = setting(
        256,
        "Tokens by which cache buffers grow, 1 to 65536.",
        check=whole(1, 65536, "tokens"),
    )
    max_queue: int = setting(
        256,
        "Requests that may wait for a row, 1 to 1000000; more are refused.",
        check=whole(1, 1_000_000, "requests"),
        env="MLXCEL_MAX_QUEUE",
        parse=parse_int,
    )
    cache_bytes: int | None = setting(
        None,
        "Caches of running requests, in bytes (`8GiB`): requests that do not fit wait, and one "
        "that never would is refused.",
        check=whole_or_none(1, 2**50, "bytes"),
        env="MLXCEL_CACHE_BYTES",
        parse=parse_size,
        shown="half of the memory that is free once the model is loaded",
    )
    prefix_bytes: int = setting(
        256 * 2**20,
        "Caches kept of requests that have ended, in bytes (`512MiB`, `2GB`): a prompt that begins "
        "like one of them is read from there on. `0` keeps and shares none.",
        check=whole(0, 2**50, "bytes"),
        env="MLXCEL_PREFIX_BYTES",
        parse=parse_size,
        shown="`256MiB`",
    )
    lean_modules: bool = setting(
        True,
        "Replace norms, rotations, attention and gated blocks by forms that are cheaper on this "
        "backend: fewer passes on the CPU, fewer kernels on CUDA (`true` or `false`).",
        check=flag,
        env="MLXCEL_LEAN",
        parse=parse_bool,
    )
    enable_mtp_b1: bool | None = setting(
        None,
        "Turn the burst of one row (B=1) on or off in spite of gate and policy (`true` or "
        "`false`); the exactness probe still outranks it.",
        check=flag_or_none,
        env="MLXCEL_ENABLE_MTP_B1",
        parse=parse_bool,
        shown="unset",
    )
    mtp_adaptive: bool = setting(
        True,
        "Measure bursts and let the measurement outrank the static gate (`true` or `false`).",
        check=flag,
        env="MLXCEL_MTP_ADAPTIVE",
        parse=parse_bool,
    )
    mtp_exactness: Literal["off", "token", "bitwise"] = setting(
        "token",
        "What the exactness probe must find before a pairing may burst: `bitwise` equal logits, "
        "`token`: equal choices far from a tie, or `off`: it is not asked.",
        check=word("off", "token", "bitwise"),
        env="MLXCEL_MTP_EXACTNESS",
        parse=parse_word,
    )
    mtp_block_controller: Literal["throughput", "requested"] = setting(
        "throughput",
        "Block width that runs: of most tokens per second (`throughput`), or as `requested`.",
        check=word("throughput", "requested"),
        env="MLXCEL_MTP_BLOCK_CONTROLLER",
        parse=parse_word,
    )
    drafter_bits: Literal["auto", "off", "2", "3", "4", "5", "6", "8"] = setting(
        "auto",
        "Bits that a drafter's projections are quantized to at load, in groups of 64: `2` to `6`, "
        "`8`, `off`, or `auto`: 4 where this host is faster so. Quantized checkpoints stay.",
        check=word("auto", "off", "2", "3", "4", "5", "6", "8"),
        env="MLXCEL_DRAFTER_BITS",
        parse=parse_word,
    )
    assistant_position: Literal["pending", "last"] = setting(
        "pending",
        "Position of a Gemma 4 assistant's queries: of the `pending` token, or of the `last` one "
        "in the caches. It changes acceptance only.",
        check=word("pending", "last"),
        env="MLXCEL_ASSISTANT_POSITION",
        parse=parse_word,
    )
    numerics: Literal["fast", "invariant"] = setting(
        "fast",
        "Passes of decode: `fast`, or `invariant`: all of one shape, so that classic steps and "
        "verifies run the same kernels, at a price (`mlxcel probe exactness --price`). Widths up "
        "to `MLXCEL_DRAFT_WIDTH` then.",
        check=word("fast", "invariant"),
        env="MLXCEL_NUMERICS",
        parse=parse_word,
    )

    client_buffer: int = setting(
        1024,
        "Pieces of an answer that wait for a client of `mlxcel engine`, 1 to 1000000; a request "
        "whose reader falls further behind is cancelled.",
        check=whole(1, 1_000_000, "pieces"),
        env="MLXCEL_CLIENT_BUFFER",
        parse=parse_int,
    )

    def __post_init__(self) -> None:
        values = {spec.name: getattr(self, spec.name) for spec in fields(self)}
        for name, value in _checked(values, {}).items():
            object.__setattr__(self, name, value)

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None, /, **overrides: Any) -> Settings:
        """Settings from explicit arguments, else the environment, else the defaults.

        Parameters
        ----------
        environ : mapping of str to str, optional
            Variables; ``os.environ`` by default.
        **overrides
            Fields by name; ``None`` means "not given".

        Raises
        ------
        ConfigError
            A bad value, or an ``MLXCEL_*`` variable that does not exist.
        """
        environ = os.environ if environ is None else environ
        _refuse_unknown(environ)
        given = {name: value for name, value in overrides.items() if value is not None}
        names = {spec.name for spec in fields(cls)}
        for name in given.keys() - names:
            raise ConfigError(f"there is no setting {name!r}{_nearest(name, names)}", param=name)
        values: dict[str, Any] = {
            "cache_dir": default_cache_dir(environ),
            "prefill_chunk": default_prefill_chunk(),
        }
        labels: dict[str, str] = {}
        for spec in fields(cls):
            env = spec.metadata["env"]
            if env is not None and env in environ and spec.name not in given:
                values[spec.name] = spec.metadata["parse"](env, environ[env])
                labels[spec.name] = f"{spec.name} (from {env})"
        values |= given
        defaults = {s.name: s.default for s in fields(cls) if s.name not in values}
        return cls(**_checked(defaults | values, labels))


def _checked(values: Mapping[str, Any], labels: Mapping[str, str]) -> dict[str, Any]:
    """All values checked by themselves and against each other."""
    by_name = {spec.name: spec for spec in fields(Settings)}

    def label(name: str) -> str:
        return labels.get(name, name)

    good = {}
    for name, value in values.items():
        good[name] = by_name[name].metadata["check"](label(name), value)
    for small, large in (("default_width", "max_width"), ("max_width", "length_step")):
        if good[small] > good[large]:
            raise ConfigError(
                f"{label(small)} = {good[small]} tokens must not exceed "
                f"{label(large)} = {good[large]} tokens",
                param=small,
            )
    return good


def _nearest(name: str, known: Any) -> str:
    close = difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.5)
    return f"; did you mean {close[0]}?" if close else f"; there are {', '.join(sorted(known))}"


def _variables() -> dict[str, Field[Any]]:
    return {s.metadata["env"]: s for s in fields(Settings) if s.metadata["env"]}


def _refuse_unknown(environ: Mapping[str, str]) -> None:
    known = _variables().keys() | BUILD_VARIABLES.keys()
    for name in sorted(environ):
        if name.startswith(PREFIX) and name not in known:
            raise ConfigError(
                f"there is no variable {name} (its value is {environ[name]!r})"
                f"{_nearest(name, known)}",
                param=name,
            )


def environment_table() -> str:
    """Markdown table of all environment variables, as in ``docs/environment-variables.md``."""
    lines = ["| variable | setting | default | meaning |", "|---|---|---|---|"]
    for env, spec in _variables().items():
        shown = spec.metadata["shown"] or f"`{str(spec.default).lower()}`"
        lines.append(f"| `{env}` | `{spec.name}` | {shown} | {spec.metadata['help']} |")
    for env, meaning in BUILD_VARIABLES.items():
        lines.append(f"| `{env}` | - | - | {meaning} |")
    return "\n".join(lines) + "\n"
