"""The kernels' sources compile for NVIDIA's processors; needs no GPU, but NVIDIA's compiler.

``make test-kernels`` installs it; without it these are skipped and say so.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import pytest

from mlxcel.models.cuda import WIDEST, Attending, FewRowsProduct, Rotation
from mlxcel.models.cuda import attend as attend_module
from mlxcel.models.cuda import products as products_module
from mlxcel.models.cuda.source import TYPES

CPP = {**TYPES, mx.uint32: "unsigned int", mx.float32: "float", mx.int32: "int"}
SHAPE = "struct Shape { int of[8]; __device__ int operator[](int i) const { return of[i]; } };\n"


def _folder() -> Path | None:
    found = (Path(place) / "nvidia" / "cu13" for place in sys.path)
    return next((each for each in found if (each / "lib" / "libnvrtc.so.13").exists()), None)


class Compiler:
    """Compiles what MLX would, with the signature that MLX would make."""

    def __init__(self, folder: Path) -> None:
        self._include = folder / "include"
        self._library = ctypes.CDLL(str(folder / "lib" / "libnvrtc.so.13"))
        self.logs: list[str] = []

    def kernel(self, header: str, call: str, inputs: Sequence[str], outputs: Sequence[str]) -> Any:
        """In place of `mlxcel.models.cuda.source.kernel`."""

        def run(*, inputs: list[mx.array], output_shapes: Any, output_dtypes: Any,
                **_: Any) -> list[mx.array]:  # fmt: skip
            parameters = []
            for name, array in zip(names, inputs, strict=True):
                parameters.append(f"const {CPP[array.dtype]}* {name}")
                if f"{name}_shape" in call:
                    parameters.append(f"const Shape {name}_shape")
            of_type = zip(outputs, output_dtypes, strict=True)
            parameters += [f"{CPP[dtype]}* {name}" for name, dtype in of_type]
            path = Path(products_module.__file__).with_name(f"{header}.cuh")
            self._compile(
                f'#include "{path}"\n{SHAPE}namespace mlx::core::cu {{\n'
                f"__global__ void compiled({', '.join(parameters)}) {{\n{call}\n}}\n}}\n"
            )
            made = zip(output_shapes, output_dtypes, strict=True)
            return [mx.zeros(shape, dtype) for shape, dtype in made]

        names = list(inputs)
        return run

    def _compile(self, source: str) -> None:
        library, program = self._library, ctypes.c_void_p()
        library.nvrtcCreateProgram(
            ctypes.byref(program), source.encode(), b"a.cu", 0, None, None
        )
        flags = [
            b"--gpu-architecture=sm_90a", b"--device-as-default-execution-space",
            f"-I{self._include}".encode(), f"-I{self._include / 'cccl'}".encode(),
            b"--ptxas-options=-v",
        ]  # fmt: skip
        failed = library.nvrtcCompileProgram(
            program, len(flags), (ctypes.c_char_p * len(flags))(*flags)
        )
        size = ctypes.c_size_t()
        library.nvrtcGetProgramLogSize(program, ctypes.byref(size))
        log = ctypes.create_string_buffer(size.value)
        library.nvrtcGetProgramLog(program, log)
        assert not failed, log.value.decode()
        self.logs.append(log.value.decode())


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> Compiler:
    folder = _folder()
    if folder is None:
        pytest.skip("NVIDIA's compiler is not installed: make test-kernels")
    compiler = Compiler(folder)
    for module in (products_module, attend_module):
        monkeypatch.setattr(module, "kernel", compiler.kernel)
    return compiler


def _linear(inner: int, outputs: int, bits: int, dtype: mx.Dtype) -> nn.Module:
    if bits == 16:
        linear: nn.Module = nn.Linear(1, 1, bias=False)
        linear["weight"] = mx.zeros((outputs, inner), dtype)
        return linear
    linear = nn.QuantizedLinear(32, 1, bias=False, bits=bits, group_size=32)
    linear["weight"] = mx.zeros((outputs, inner * bits // 32), mx.uint32)
    linear["scales"] = linear["biases"] = mx.zeros((outputs, inner // 32), dtype)
    return linear


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
@pytest.mark.parametrize("rows", [1, 4, WIDEST])
def test_all_kernels_compile_and_keep_to_registers(
    compiler: Compiler, rows: int, dtype: mx.Dtype
) -> None:
    norm = nn.RMSNorm(576)
    norm.set_dtype(dtype)

    def x(inner: int) -> mx.array:
        return mx.zeros((1, rows, inner), dtype)

    FewRowsProduct(_linear(576, 960, 4, dtype), norm=norm)(x(576))
    FewRowsProduct(_linear(576, 3072, 4, dtype), norm=norm, gated=True)(x(576))
    FewRowsProduct(_linear(1536, 576, 4, dtype))(x(1536), x(576))
    FewRowsProduct(_linear(576, 49152, 8, dtype))(x(576))
    FewRowsProduct(_linear(4096, 14336, 16, dtype))(x(4096))
    for heads, kv_heads, dims in ((9, 3, 64), (32, 8, 128)):
        buffer, offset = mx.zeros((1, kv_heads, 256, dims), dtype), mx.zeros((1,), mx.int32)
        queries = mx.zeros((1, rows, heads, dims), dtype)
        Attending(heads, kv_heads, dims, 0.125, dtype)(queries, buffer, buffer, offset)
        rotate = Rotation(heads, kv_heads, dims, mx.zeros((dims // 2,)), dtype)
        rotate(mx.zeros((1, rows, (heads + 2 * kv_heads) * dims), dtype), offset)
    assert len(compiler.logs) == 9
    spilled = [line for log in compiler.logs for line in log.splitlines() if "spill stores" in line]
    assert len(spilled) == 9
    assert all(" 0 bytes spill stores" in line for line in spilled), spilled


def test_a_mistake_in_a_source_is_seen(compiler: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    call = compiler.kernel("rotate", "rotate<__half, 9, 3, 64>(missing);", ["heads"], ["queries"])
    with pytest.raises(AssertionError, match="missing"):
        call(
            inputs=[mx.zeros((1,), mx.float16)],
            output_shapes=[(1,)], output_dtypes=[mx.float16],
        )  # fmt: skip
