"""What a cost profile means: cost by width in classic steps, the best form and padding, the bound.

Pure: samples come in as numbers (``mlxcel.runtime.cost_profile`` takes them), so every figure of
a record can be worked out again. Times of a model that was built with fewer layers than the
published one are scaled: the output head is paid once, everything else per layer.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from mlxcel.decide.cost_raw import RawCosts, RawPart, RawPass
from mlxcel.decide.fits import Line, fit_line, spread_percent
from mlxcel.decide.kernels import JUDGED_ROWS, WIDE_LIMIT, KernelVerdict, decide_kernels
from mlxcel.errors import ConfigError

__all__ = [
    "CostFigures",
    "FormFigures",
    "PartFigure",
    "PassFigure",
    "derive_costs",
]

NEAR = 1.5
"""A part that takes less than this times its least time is bound by what that time is from;
one that takes more is bound by its kernels or by their launches."""

HOST_BOUND = 0.9
"""Share of a pass that the host took to build and enqueue it, from which on the host is what
bounds the pass: the device then waits for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PassFigure:
    """One pass of the published model.

    Attributes
    ----------
    milliseconds : float
        Median, scaled to all layers.
    steps : float
        In pipelined classic steps of the same form.
    spread_percent : float
        ``100 (max - min) / median`` of the samples.
    host_share : float
        Part of the measured time that the host took to build and enqueue the pass.
    """

    stage: str
    form: str
    width: int
    tokens: int
    waited: bool
    milliseconds: float
    steps: float
    spread_percent: float
    host_share: float
    n: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PartFigure:
    """One part of a pass of the published model.

    Attributes
    ----------
    milliseconds : float
        Median, scaled to all layers.
    share : float
        Of the sum of all parts of the pass.
    least_milliseconds : float or None
        What its bytes or its operations take at the chip's peak, whichever is more.
    bound : {"memory", "arithmetic", "kernels", "unknown"}
        What bounds it; ``kernels`` where it takes more than `NEAR` times its least time.
    """

    name: str
    form: str
    tokens: int
    milliseconds: float
    share: float
    least_milliseconds: float | None
    bound: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FormFigures:
    """One representation.

    Attributes
    ----------
    classic_ms : float
        Pipelined classic step.
    verify_tokens : int
        Tokens that a verify of `JUDGED_ROWS` is best fed with.
    verify_steps : float
        What that verify costs, in pipelined classic steps.
    round_steps : float or None
        What the whole round costs so, drafts included.
    draft_steps : float or None
        What one draft costs.
    fit, fit_padded : Line or None
        Cost of a verify over its width as it is, and at the cheaper of both ways;
        ``None`` for fewer than two widths.
    bounds : str
        What bounds the best verify, as a sentence without a full stop.
    """

    form: str
    classic_ms: float
    verify_tokens: int
    verify_steps: float
    round_steps: float | None
    draft_steps: float | None
    fit: Line | None
    fit_padded: Line | None
    bounds: str

    @property
    def wide(self) -> bool:
        """Whether a verify of four costs less than `WIDE_LIMIT` classic steps."""
        return self.verify_steps < WIDE_LIMIT


@dataclass(frozen=True, slots=True, kw_only=True)
class CostFigures:
    """All figures of a cost profile; ``serve`` is the form to serve, ``reason`` why."""

    passes: tuple[PassFigure, ...]
    parts: tuple[PartFigure, ...]
    forms: tuple[FormFigures, ...]
    serve: str
    padding: Mapping[int, int]
    reason: str

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""
        value = asdict(self)
        value["padding"] = {str(width): tokens for width, tokens in self.padding.items()}
        value["forms"] = [asdict(form) | {"wide": form.wide} for form in self.forms]
        return value | {name: list(value[name]) for name in ("passes", "parts")}


def derive_costs(raw: RawCosts) -> CostFigures:
    """Derive all figures from the samples.

    Raises
    ------
    ConfigError
        A sample is not positive, a pass is missing that others are measured by, or no form has
        a classic step and a verify of `JUDGED_ROWS`.
    """
    scale = _Scale(raw)
    names = list(dict.fromkeys(each.form for each in raw.passes))
    passes = tuple(_pass_figure(each, scale) for each in raw.passes if each.stage != "head")
    parts = _part_figures(raw, scale)
    device = raw.backend != "cpu"
    forms = tuple(_form_figures(name, passes, parts, device) for name in names)
    verdict = _verdict(names, passes)
    return CostFigures(
        passes=passes,
        parts=parts,
        forms=forms,
        serve=verdict.serve,
        padding=dict(verdict.served.padding),
        reason=verdict.reason,
    )


class _Scale:
    """From the layers that were built to those of the published model."""

    def __init__(self, raw: RawCosts) -> None:
        timed = [(f"{p.stage} of {p.form} weights", p.seconds) for p in raw.passes]
        timed += [(f"part {p.name} of {p.form} weights", p.seconds) for p in raw.parts]
        for what, seconds in timed:
            if not seconds or min(seconds) <= 0:
                raise ConfigError(
                    f"cost profile: the {what} has no sample, or one that is not positive: "
                    f"{list(seconds)}"
                )
        self.factor = raw.layers_published / raw.layers
        self._medians = {each.key: statistics.median(each.seconds) for each in raw.passes}

    def median(self, stage: str, form: str, width: int, tokens: int, waited: bool) -> float:
        """Median seconds as measured.

        Raises
        ------
        ConfigError
            There is no such pass.
        """
        try:
            return self._medians[stage, form, width, tokens, waited]
        except KeyError:
            raise ConfigError(
                f"cost profile: the {stage} of {form} weights at {tokens} tokens is missing"
            ) from None

    def seconds(self, stage: str, form: str, width: int, tokens: int, waited: bool) -> float:
        """Median seconds of the published model."""
        found = self.median(stage, form, width, tokens, waited)
        if self.factor == 1 or stage == "draft":
            return found
        fixed = self.median("head", form, tokens, tokens, False)
        if stage == "round":
            fixed += (width - 1) * self.median("draft", form, 1, 1, False)
        return fixed + max(found - fixed, 0.0) * self.factor


def _pass_figure(raw: RawPass, scale: _Scale) -> PassFigure:
    seconds = scale.seconds(*raw.key)
    classic = scale.seconds("classic", raw.form, 1, 1, False)
    return PassFigure(
        stage=raw.stage,
        form=raw.form,
        width=raw.width,
        tokens=raw.tokens,
        waited=raw.waited,
        milliseconds=1e3 * seconds,
        steps=seconds / classic,
        spread_percent=spread_percent(raw.seconds),
        host_share=min(statistics.median(raw.host) / statistics.median(raw.seconds), 1.0),
        n=len(raw.seconds),
    )


def _part_figures(raw: RawCosts, scale: _Scale) -> tuple[PartFigure, ...]:
    def factor(part: RawPart) -> float:
        return 1.0 if part.name == "head" else scale.factor

    def whole(part: RawPart) -> float:
        return statistics.median(part.seconds) * factor(part)

    sums: dict[tuple[str, int], float] = {}
    for part in raw.parts:
        key = (part.form, part.tokens)
        sums[key] = sums.get(key, 0.0) + whole(part)
    found = []
    for part in raw.parts:
        least, bound = _least(part, raw)
        found.append(
            PartFigure(
                name=part.name,
                form=part.form,
                tokens=part.tokens,
                milliseconds=1e3 * whole(part),
                share=whole(part) / sums[part.form, part.tokens],
                least_milliseconds=None if least is None else 1e3 * least * factor(part),
                bound=bound,
            )
        )
    return tuple(found)


def _least(part: RawPart, raw: RawCosts) -> tuple[float | None, str]:
    """Seconds at the chip's peak, and what bounds the part."""
    if raw.bytes_per_second is None or raw.flops_per_second is None:
        return None, "unknown"
    moved = part.nbytes / raw.bytes_per_second
    computed = part.flops / raw.flops_per_second
    least = max(moved, computed)
    if statistics.median(part.seconds) > NEAR * least:
        return least, "kernels"
    return least, "memory" if moved >= computed else "arithmetic"


def _form_figures(
    form: str, passes: Sequence[PassFigure], parts: Sequence[PartFigure], device: bool
) -> FormFigures:
    mine = [each for each in passes if each.form == form and not each.waited]
    verifies = [each for each in mine if each.stage == "verify"]
    judged = [each for each in verifies if each.width == JUDGED_ROWS]
    classic = next((each for each in mine if each.stage == "classic"), None)
    if classic is None or not judged:
        raise ConfigError(
            f"cost profile: {form} weights have no classic step or no verify of {JUDGED_ROWS}"
        )
    best = min(judged, key=lambda each: each.milliseconds)
    rounds = [e.steps for e in mine if e.stage == "round" and e.width == JUDGED_ROWS]
    drafts = [e.steps for e in mine if e.stage == "draft"]
    blocks = [each for each in verifies if each.width > 1]
    cheapest: dict[int, float] = {}
    for each in blocks:
        cheapest[each.width] = min(each.steps, cheapest.get(each.width, each.steps))
    return FormFigures(
        form=form,
        classic_ms=classic.milliseconds,
        verify_tokens=best.tokens,
        verify_steps=best.steps,
        round_steps=min(rounds, default=None),
        draft_steps=min(drafts, default=None),
        fit=_line([(e.width, e.steps) for e in blocks if e.width == e.tokens]),
        fit_padded=_line(sorted(cheapest.items())),
        bounds=_bounds(best, parts, device),
    )


def _line(points: Sequence[tuple[float, float]]) -> Line | None:
    return fit_line(points) if len({width for width, _ in points}) > 1 else None


def _bounds(verify: PassFigure, parts: Sequence[PartFigure], device: bool) -> str:
    """What bounds a verify: the host, or its largest parts with what bounds them."""
    mine = sorted(
        (p for p in parts if (p.form, p.tokens) == (verify.form, verify.tokens)),
        key=lambda part: -part.share,
    )
    texts = []
    for part in mine[:3]:
        text = f"{part.name} {100 * part.share:.0f} %"
        if part.least_milliseconds:
            ratio = part.milliseconds / part.least_milliseconds
            text += f" ({part.bound}, {ratio:.1f} times its least time)"
        texts.append(text)
    total = sum(part.milliseconds for part in mine)
    found = ", ".join(texts) or "no part was timed"
    if mine:
        found += f"; all parts alone take {total / verify.milliseconds:.2f} of the verify"
    if device and verify.host_share > HOST_BOUND:
        found = f"the host, which takes {100 * verify.host_share:.0f} % to enqueue it; {found}"
    return found


def _verdict(names: Sequence[str], passes: Sequence[PassFigure]) -> KernelVerdict:
    """Form and padding by the rule of the kernel profile, on whole passes."""
    times: dict[tuple[str, str], dict[int, float]] = {}
    for name in names:
        table: dict[int, float] = {}
        for each in passes:
            if each.form != name or each.waited:
                continue
            if each.stage == "classic":
                table[1] = each.milliseconds / 1e3
            elif each.stage == "verify" and each.tokens > 1:
                own = each.width == each.tokens
                if own or each.tokens not in table:
                    table[each.tokens] = each.milliseconds / 1e3
        times["pass", name] = table
    return decide_kernels(times, {"pass": 1.0})
