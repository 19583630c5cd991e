"""What the kernel profile says about a loaded model."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

import mlx.nn as nn

from mlxcel.config import Settings
from mlxcel.decide.kernels import FormVerdict, KernelVerdict, decide_kernels
from mlxcel.decide.rows import RowRule, rule_of
from mlxcel.errors import MlxcelError
from mlxcel.hardware.host import Host
from mlxcel.models.cuda import WIDEST
from mlxcel.models.fused import is_fused
from mlxcel.runtime.kernel_profile import kernel_times, projections_of
from mlxcel.runtime.loader import LoadedModel
from mlxcel.runtime.representation import Preference, served_dtype

__all__ = [
    "alike_tokens", "kernel_verdict", "padding_of", "pass_rule", "preference", "served_verdict",
]  # fmt: skip

log = logging.getLogger(__name__)


def preference(
    settings: Settings, *, verify_share: float = 0.5, host: Host | None = None
) -> Callable[[nn.Module, dict[str, Any]], Preference]:
    """What ``weights="auto"`` goes by: the kernel profile, measured once, then kept.

    Parameters
    ----------
    settings : Settings
        Default width and cache folder.
    verify_share : float
        Share of passes that are verifies of the default width; a drafter has none.
    host : Host, optional
        This host; described by default.

    Returns
    -------
    callable
        Takes a model whose weights nobody has changed and its config; to be called on the
        thread that loads the model.
    """

    def prefer(network: nn.Module, config: dict[str, Any]) -> Preference:
        found, day = _verdict(network, config, settings, host, verify_share)
        reason = f"{found.comparison()} by the kernel profile of {day}"
        return Preference(found.serve, reason)

    return prefer


def kernel_verdict(
    model: LoadedModel,
    settings: Settings,
    host: Host | None = None,
    *,
    verify_share: float = 0.5,
) -> KernelVerdict:
    """Verdict of this host's kernel profile for a model's projections; measured once, then kept.

    Parameters
    ----------
    model : LoadedModel
        The target as it is served.
    settings : Settings
        Default width and cache folder.
    host : Host, optional
        This host; described by default.
    verify_share : float
        As for `preference`.

    Raises
    ------
    LoadError
        The model has no projection that can be timed.
    """
    return _verdict(model.target.model, model.target.config, settings, host, verify_share)[0]


def _verdict(
    network: nn.Module,
    config: dict[str, Any],
    settings: Settings,
    host: Host | None,
    verify_share: float = 0.5,
) -> tuple[KernelVerdict, str]:
    """The verdict, and the day of its profile."""
    times, _ = kernel_times(
        projections_of(network, config), served_dtype(network),
        cache_dir=settings.cache_dir, host=host,
    )  # fmt: skip
    verdict = decide_kernels(
        times.table(), times.counts, width=settings.default_width, verify_share=verify_share
    )
    return verdict, times.taken_on


def served_verdict(model: LoadedModel, verdict: KernelVerdict) -> FormVerdict:
    """The verdict on the form that a model is served in."""
    return verdict.forms.get(model.representation.form, verdict.served)


def padding_of(model: LoadedModel, form: FormVerdict) -> Mapping[int, int]:
    """Cheapest number of tokens by width, see `FormVerdict`.

    A model with layers of ours is not padded: the profile has timed MLX's products, and ours
    cost no more with fewer rows.
    """
    return {} if is_fused(model.target.model) else form.padding


def alike_tokens(model: LoadedModel, settings: Settings) -> int:
    """Tokens up to which all passes of a model run by the same kernels; 0 without such a limit.

    Only our own kernels have one. What the exactness probe finds is about passes of one row, so
    passes on the two sides of the limit must not be mixed. Invariant passes are all of one size.
    """
    fused = settings.numerics != "invariant" and is_fused(model.target.model)
    return WIDEST if fused else 0


def pass_rule(model: LoadedModel, settings: Settings, host: Host | None = None) -> RowRule:
    """How passes of decode are padded on this host; see `kernel_verdict` for the parameters.

    Where no profile can be had nothing is padded for its sake, which costs time and no token.
    """
    try:
        form = served_verdict(model, kernel_verdict(model, settings, host))
        padding = padding_of(model, form)
    except (MlxcelError, RuntimeError, MemoryError) as error:
        log.warning("no kernel profile (%s): no pass is padded to a cheaper size", error)
        padding = {}
    return rule_of(settings, padding)
