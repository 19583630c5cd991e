"""EAGLE heads and their llamas against heads put together in torch, float32."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest

from mlxcel.config import Settings
from mlxcel.engine.prepare import build_engine
from mlxcel.errors import LoadError
from mlxcel.models.drafters.eagle import EagleHead
from mlxcel.models.drafters.eagle3 import Eagle3Head
from mlxcel.runtime.eagle_files import load_eagle
from tests.oracle_torch.conftest import PYTHON
from tests.oracle_torch.head_traps import (
    CHAIN,
    Mistake,
    before_the_targets_last_norm,
    check_letter,
    check_red,
)
from tests.oracle_torch.heads import (
    CLOSE,
    PROMPTS,
    TOKENS,
    Case,
    case_loader,
    check_case,
    compare,
    drafted,
)
from tests.support.running import one

NAMES = ("eagle", "eagle-bias", "eagle3", "eagle3-speculators")


@pytest.fixture(scope="module")
def case(eagle_cases: Path) -> Callable[[str], Case]:
    return case_loader(eagle_cases, lambda folder, target: load_eagle(folder / "head", target)[0])


@pytest.mark.parametrize("length", PROMPTS)
@pytest.mark.parametrize("name", NAMES)
def test_target_drafts_and_text(
    case: Callable[[str], Case], monkeypatch: pytest.MonkeyPatch, name: str, length: int
) -> None:
    """Logits; four chained steps a round; the text, with and without drafts."""
    check_case(case(name), monkeypatch, length)


@pytest.mark.parametrize("length", PROMPTS)
@pytest.mark.parametrize("name", NAMES)
def test_what_a_head_reads_of_the_target(
    case: Callable[[str], Case], name: str, length: int
) -> None:
    found = case(name)
    target = found.model.target
    ids = mx.array([found.prompt(length)], mx.uint32)
    hidden = target.hidden(ids, [None] * len(target.body.layers))
    taps = target.tapped()
    assert (taps is None) == (found.head.taps == ())
    features = np.array((hidden if taps is None else taps)[0])
    np.testing.assert_allclose(features, found.cases[f"features_{length}"], atol=CLOSE, rtol=0)


@pytest.mark.parametrize("name", NAMES)
def test_the_whole_way(case: Callable[[str], Case], name: str, tmp_path: Path) -> None:
    """From the folders through gate and scheduler, with the head's own drafts."""
    found = case(name)
    settings = Settings(cache_dir=tmp_path, enable_mtp_b1=True)
    engine = build_engine(found.folder / "target", found.folder / "head", settings)
    for length in PROMPTS:
        answer = one(engine, found.prompt(length), 4, max_tokens=TOKENS, ignore_eos=True)
        assert answer.speculation.ran, answer.speculation.reason
        assert answer.token_ids == found.greedy(length)


def test_the_command_for_a_pickle_converts_it(
    case: Callable[[str], Case], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found = case("eagle3")
    shutil.copy(found.folder / "head" / "config.json", tmp_path)
    shutil.copy(found.folder / "pytorch_model.bin", tmp_path)
    with pytest.raises(LoadError, match="pickle format") as refused:
        load_eagle(tmp_path, found.model.target)
    command = re.search(r'python (-c ".*")', str(refused.value))
    assert command is not None
    subprocess.run([PYTHON, *shlex.split(command[1])], cwd=tmp_path, check=True)
    found.head, _ = load_eagle(tmp_path, found.model.target)
    drafter, _ = drafted(found, monkeypatch, 9)
    assert compare(drafter, found.cases, 9) > 4


# -- every trap, built in again -------------------------------------------------------


def _hidden_first(patch: pytest.MonkeyPatch, found: Case) -> None:
    kind = type(found.head)

    def fuse(self: Any, hidden: mx.array, tokens: mx.array) -> mx.array:
        embedding = self._target.body.embed_tokens(tokens)
        both = mx.concatenate([hidden, embedding], axis=-1)
        return self.fc(both) if kind is EagleHead else both

    patch.setattr(kind, "fuse", fuse)


def _scaled_embedding(patch: pytest.MonkeyPatch, found: Case) -> None:
    plain = EagleHead.fuse

    def fuse(self: EagleHead, hidden: mx.array, tokens: mx.array) -> mx.array:
        root = hidden.shape[-1] ** 0.5
        return plain(self, hidden / root, tokens) * root  # this head has no bias

    patch.setattr(EagleHead, "fuse", fuse)


def _norm_in_front(patch: pytest.MonkeyPatch, found: Case) -> None:
    layer = found.head.layers[0]
    attention = layer.self_attn
    norm = nn.RMSNorm(64, eps=1e-5)
    patch.setitem(layer, "self_attn", lambda x, mask, cache: attention(norm(x), mask, cache))


def _last_norm(patch: pytest.MonkeyPatch, found: Case) -> None:
    plain, norm = EagleHead.logits, found.model.target.body.norm
    patch.setattr(EagleHead, "logits", lambda self, hidden: plain(self, norm(hidden)))


def _without(module: Callable[[Any], Any], name: str, value: Any = None) -> Mistake:
    def mistake(patch: pytest.MonkeyPatch, found: Case) -> None:
        held = module(found.head)
        patch.setitem(held, name, nn.Identity() if value is None else value(held[name]))

    return mistake


def _layers_later(patch: pytest.MonkeyPatch, found: Case) -> None:
    found.model.target.tap([at + 1 for at in found.head.taps])


def _high_to_low(patch: pytest.MonkeyPatch, found: Case) -> None:
    plain = Eagle3Head.reduce

    def reduce(self: Eagle3Head, features: mx.array) -> mx.array:
        parts = mx.split(features, 3, axis=-1)
        return plain(self, mx.concatenate(parts[::-1], axis=-1))

    patch.setattr(Eagle3Head, "reduce", reduce)


def _offsets_as_ids(patch: pytest.MonkeyPatch, found: Case) -> None:
    ids = found.head.draft_ids
    own = mx.arange(ids.shape[0], dtype=mx.uint32)
    patch.setattr(found.head, "_draft_ids", ids - own)


def _rows_as_ids(patch: pytest.MonkeyPatch, found: Case) -> None:
    size = found.head.draft_ids.shape[0]
    patch.setattr(found.head, "_draft_ids", mx.arange(size, dtype=mx.uint32))


def _other_residual(patch: pytest.MonkeyPatch, found: Case) -> None:
    layer = found.head.midlayer
    patch.setattr(layer, "_norm_before_residual", not layer._norm_before_residual)


def _normed_state_goes_on(patch: pytest.MonkeyPatch, found: Case) -> None:
    plain = Eagle3Head.forward
    patch.setattr(Eagle3Head, "forward", lambda self, *args: self.norm(plain(self, *args)))
    patch.setattr(Eagle3Head, "logits", lambda self, hidden: self.lm_head(hidden))


def _targets_embedding(patch: pytest.MonkeyPatch, found: Case) -> None:
    found.head.share_embedding()


ONE: dict[str, tuple[str, Mistake]] = {
    "hidden state first": ("eagle", _hidden_first),
    "target's state before its last norm": ("eagle", before_the_targets_last_norm),
    "embedding scaled": ("eagle", _scaled_embedding),
    "a norm in front of the attention": ("eagle", _norm_in_front),
    "a last norm": ("eagle", _last_norm),
    "no bias": ("eagle-bias", _without(lambda head: head.fc, "bias", mx.zeros_like)),
}
THREE: dict[str, tuple[str, Mistake]] = {
    "hidden state first": ("eagle3", _hidden_first),
    "layers later": ("eagle3", _layers_later),
    "highest layer first": ("eagle3", _high_to_low),
    "offsets taken for ids": ("eagle3", _offsets_as_ids),
    "rows taken for ids": ("eagle3", _rows_as_ids),
    "no norm of the state": ("eagle3", _without(lambda head: head.midlayer, "hidden_norm")),
    "no norm of the embedding": (
        "eagle3", _without(lambda head: head.midlayer, "input_layernorm")
    ),
    "no last norm": ("eagle3", _without(lambda head: head, "norm")),
    "residual normed": ("eagle3", _other_residual),
    "residual not normed": ("eagle3-speculators", _other_residual),
    "the normed state goes on": ("eagle3", _normed_state_goes_on),
    "the target's embedding": ("eagle3-speculators", _targets_embedding),
}  # fmt: skip
MISTAKES = [
    *(("eagle", name, trap) for name, trap in CHAIN.items()),
    *((case, name, trap) for name, (case, trap) in ONE.items()),
    *(("eagle3", name, trap) for name, trap in CHAIN.items()),
    *((case, name, trap) for name, (case, trap) in THREE.items()),
]


@pytest.mark.parametrize(
    ("name", "mistake"),
    [pytest.param(case, trap, id=f"{case}-{name}") for case, name, trap in MISTAKES],
)
def test_a_mistake_turns_it_red(
    case: Callable[[str], Case], monkeypatch: pytest.MonkeyPatch, name: str, mistake: Mistake
) -> None:
    """And it changes no token of the text."""
    check_red(partial(case, name), monkeypatch, mistake)


@pytest.mark.parametrize("name", ["eagle", "eagle3"])
def test_a_width_read_as_a_number_of_drafts(
    case: Callable[[str], Case], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    check_letter(partial(case, name), monkeypatch)
