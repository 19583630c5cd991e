"""Which targets a head can be made for."""

from __future__ import annotations

import pytest

from mlxcel.distill.pipeline import check_target
from mlxcel.errors import LoadError
from tests.support import tiny


def test_full_attention_in_every_layer() -> None:
    check_target(tiny.loaded(tiny.llama_model()))


@pytest.mark.parametrize("name", ["qwen3.5", "qwen3-next"])
def test_recurrent_layers_are_refused(name: str) -> None:
    with pytest.raises(LoadError, match="has recurrent layers; Qwen publishes heads of its own"):
        check_target(tiny.loaded(tiny.HYBRIDS[name]()))
