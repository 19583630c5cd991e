"""From a folder to a model that runs; which drafters fit it, and which targets take none."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import pytest
from mlx_lm.generate import generate_step
from mlx_lm.models import lfm2

from mlxcel.config import Settings
from mlxcel.engine.engine import Engine
from mlxcel.engine.prepare import build_engine, make_drafter
from mlxcel.errors import ConfigError, LoadError, RequestError
from mlxcel.models.lean import LeanRMSNorm
from mlxcel.runtime.loader import LoadedModel, load_checkpoint
from mlxcel.types import Request, SamplingParams
from tests.support import tiny
from tests.support.checkpoints import MERGES, SPECIAL, write_tiny_llama
from tests.support.drafters import make
from tests.support.running import one, run

SETTINGS = Settings(length_step=64, prefill_chunk=16)
PROMPT = (12, 40, 41, 12, 40, 77, 12, 40)


def load(folder: Path, weights: str = "auto") -> LoadedModel:
    return load_checkpoint(folder, cache_dir=folder.parent, weights=weights)


def greedy(model: LoadedModel, count: int = 40) -> tuple[int, ...]:
    return one(Engine(model, None, SETTINGS), PROMPT, max_tokens=count, ignore_eos=True).token_ids


def test_a_folder(tmp_path: Path) -> None:
    model = load(write_tiny_llama(tmp_path / "tiny"))
    assert model.checkpoint.name == "tiny"
    assert model.target.context_length == 4096
    assert model.target.split
    assert model.target.layout.windows == (None, None)
    assert model.tokenizer.has_chat_template
    assert model.tokenizer.eos_token_ids == {0}
    text = "hello ab\n日本語 👩‍👧"
    assert model.tokenizer.decode(model.tokenizer.encode(text)) == text
    assert any(isinstance(module, LeanRMSNorm) for _, module in model.target.model.named_modules())
    reference = tiny.llama_model(seed=0, vocab=model.target.vocab_size)
    assert greedy(model) == greedy(tiny.loaded(reference))


def test_the_same_folder_without_a_template(tmp_path: Path) -> None:
    model = load(write_tiny_llama(tmp_path / "tiny", template=False))
    assert not model.tokenizer.has_chat_template


@pytest.mark.parametrize("bits", [4, 8])
def test_stored_and_dense_weights_choose_the_same(tmp_path: Path, bits: int) -> None:
    folder = write_tiny_llama(tmp_path / "tiny", bits=bits)
    stored, dense = load(folder, "stored"), load(folder, "dense")
    assert (stored.representation.form, dense.representation.form) == ("stored", "dense")
    assert stored.representation.reason == dense.representation.reason == "asked for"
    assert stored.representation.nbytes < dense.representation.nbytes
    quantized = (nn.QuantizedLinear, nn.QuantizedEmbedding)
    for model, any_left in ((stored, True), (dense, False)):
        found = [isinstance(m, quantized) for _, m in model.target.model.named_modules()]
        assert any(found) == any_left
    auto = load(folder)
    on_cpu = mx.default_device() == mx.Device(mx.cpu)
    assert auto.representation.form == ("dense" if on_cpu else "stored")
    assert auto.representation.reason != "asked for"
    assert greedy(stored) == greedy(dense) == greedy(auto)


def test_settings_choose_the_weights(tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path / "tiny", bits=4)
    engine = build_engine(folder, None, Settings(weights="stored"))
    assert engine.model.representation.form == "stored"
    with pytest.raises(ConfigError, match="weights must be"):
        load(folder, "sparse")


def test_a_config_that_mlx_lm_divides_by_zero_with(tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path / "tiny")
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"num_attention_heads": 0}))
    with pytest.raises(LoadError, match=r"tiny: .*division"):
        load(folder)


def test_weights_that_do_not_fit_the_config(tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path / "tiny")
    config = folder / "config.json"
    layers = '"num_hidden_layers": '
    config.write_text(config.read_text().replace(f"{layers}2", f"{layers}3"))
    with pytest.raises(LoadError, match="tiny"):
        load(folder)


# -- drafters of the target's vocabulary ----------------------------------------------


def drafted(tmp_path: Path, **drafter: Any) -> Engine:
    target = write_tiny_llama(tmp_path / "target")
    return build_engine(target, write_tiny_llama(tmp_path / "drafter", **drafter), forced(tmp_path))


def forced(cache: Path) -> Settings:
    """Nothing is measured before a burst, and nothing written to the user's cache folder."""
    return Settings(cache_dir=cache, enable_mtp_b1=True, mtp_exactness="off")


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_draft_model_changes_no_token(tmp_path: Path, temperature: float) -> None:
    params: dict[str, Any] = {"max_tokens": 40, "temperature": temperature, "seed": 5}
    params["ignore_eos"] = True
    engine = drafted(tmp_path, seed=1)
    twin = one(engine, PROMPT, 4, **params)
    classic = one(Engine(engine.model, None, SETTINGS), PROMPT, **params)
    assert twin.token_ids == classic.token_ids
    assert twin.speculation.kind == "draft"
    assert twin.speculation.proposed > 0


def test_the_target_as_its_own_draft_model_is_always_right(tmp_path: Path) -> None:
    stats = one(drafted(tmp_path), PROMPT, 4, max_tokens=41, ignore_eos=True).speculation
    assert (stats.acceptance, stats.rounds) == (1.0, 10)


@pytest.mark.parametrize("extra", [1, 30])
def test_padding_rows_of_either_are_tolerated(tmp_path: Path, extra: int) -> None:
    small = write_tiny_llama(tmp_path / "small")
    large = write_tiny_llama(tmp_path / "large", vocab_extra=extra, seed=1)
    for target, drafter in ((small, large), (large, small)):
        engine = build_engine(target, drafter, forced(tmp_path))
        twin = one(engine, PROMPT, 4, max_tokens=40, ignore_eos=True)
        classic = one(Engine(engine.model, None, SETTINGS), PROMPT, max_tokens=40, ignore_eos=True)
        assert twin.token_ids == classic.token_ids
        assert twin.speculation.ran


@pytest.mark.parametrize(
    ("drafter", "said"),
    [
        ({"permute": True}, "id 10 is"),
        ({"vocab_extra": -1}, f"id {len(SPECIAL) + 256 + len(MERGES) - 1} is None there"),
    ],
    ids=["permuted", "smaller"],
)
def test_another_vocabulary_is_refused(tmp_path: Path, drafter: Any, said: str) -> None:
    with pytest.raises(LoadError, match=said) as caught:
        drafted(tmp_path, **drafter)
    assert "drafter drafter has another vocabulary than target target" in str(caught.value)


def test_names_of_drafters(tmp_path: Path) -> None:
    model = load(write_tiny_llama(tmp_path / "tiny"))
    assert make_drafter(None, model, SETTINGS) is None
    assert make_drafter("none", model, SETTINGS) is None
    lookup = make_drafter("lookup", model, SETTINGS)
    assert lookup is not None
    assert lookup.kind == "lookup"
    with pytest.raises(LoadError, match="'nothing': no such folder"):
        make_drafter("nothing", model, SETTINGS)


# -- targets that cannot be rewound ---------------------------------------------------


def lfm2_model() -> Any:
    args = lfm2.ModelArgs(
        model_type="lfm2", vocab_size=tiny.VOCAB, hidden_size=32, num_hidden_layers=3,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=4096,
        norm_eps=1e-5, conv_bias=False, conv_L_cache=3, block_dim=32, block_ff_dim=64,
        block_multiple_of=8, block_ffn_dim_multiplier=1.0, block_auto_adjust_ff_dim=False,
        full_attn_idxs=[1],
    )  # fmt: skip
    return tiny._randomised(lfm2.Model(args), 0, 0.3)


RECURRENT = {"mamba": tiny.mamba_model, "lfm2": lfm2_model}
TINY_PROMPT = tuple(token % tiny.VOCAB for token in PROMPT * 5)


def request(speculation: Any = "auto", tokens: int = 30, **params: Any) -> Request:
    sampling = SamplingParams(max_tokens=tokens, **params)
    return Request(prompt_ids=TINY_PROMPT, params=sampling, speculation=speculation, width=4)


@pytest.mark.parametrize("name", sorted(RECURRENT))
def test_a_target_that_cannot_rewind_runs_classic_alone(name: str) -> None:
    model = tiny.loaded(RECURRENT[name]())
    assert model.target.layout.windows is None
    engine = Engine(model, make("lookup", model, SETTINGS), SETTINGS)
    steps = generate_step(mx.array(TINY_PROMPT), model.target.model, max_tokens=30)
    reference = tuple(int(token) for token, _ in itertools.islice(steps, 30))
    completions = run(engine, *(request() for _ in range(3)))
    assert engine.scheduler.max_rows == 1
    for completion in completions:
        assert completion.token_ids == reference
        assert not completion.speculation.ran
        assert "ArraysCache, which cannot be rewound" in completion.speculation.reason
    reason = "speculation is not available: the model keeps a ArraysCache"
    with pytest.raises(RequestError, match=reason) as caught:
        engine.add(request("on"))
    assert caught.value.param == "speculation"
    assert not engine.busy


def test_requests_of_such_a_target_do_not_disturb_each_other() -> None:
    model = tiny.loaded(lfm2_model())
    different = [request(seed=seed, temperature=1.0, tokens=20) for seed in (1, 2, 3)]
    solo = [run(Engine(model, None, SETTINGS), one_of)[0].token_ids for one_of in different]
    together = run(Engine(model, None, SETTINGS), *different)
    assert [completion.token_ids for completion in together] == solo
