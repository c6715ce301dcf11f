"""Linear kernels against float64, and against themselves: a row's bits are its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llvmlite import ir
from numpy.typing import NDArray

from tripower.backends.picolm.native.kernels.linear import candidates, emit_linear, tile_word
from tripower.backends.picolm.native.kernels.linear.tiles import ROWS_PER_TILE_MAX
from tripower.backends.picolm.native.kernels.weights.formats import FORMATS
from tripower.backends.picolm.native.kernels.weights.packing import Packed, pack, unpack
from tripower.backends.picolm.native.target import Target, host_target, narrower_targets, target_machine

Floats = NDArray[np.float32]
RunLayer = Callable[..., Floats]
Matrix = Callable[..., NDArray[np.uint8]]
AsMultiplied = Callable[[Packed, Floats], NDArray[np.float64]]

K = 256
ROWS_MAX = 17
OUTPUTS = (1, 77)
SHAPES = ((4, 2), (8, 1))
EVERYWHERE = {"Q4_1", "Q3_K", "Q8_0", "F16"}
"""One type of each kind is tried on every target by each run of the suite; the rest on the host's target, and all by `long` ones."""


def _cases() -> list[Any]:
    found = []
    for index, target in enumerate(narrower_targets()):
        for name in FORMATS:
            marks = [] if index == 0 or name in EVERYWHERE else [pytest.mark.long]
            found.append(pytest.param(name, target, id=f"{name}-{target.name}", marks=marks))
    host = host_target()
    plain = msgspec.structs.replace(
        host, architecture="another", dot_product=False
    )  # no instruction named, as on other processors
    found.append(pytest.param("Q4_1", plain, id="Q4_1-plain"))
    if host.dot_product and host.lanes == 16:  # as processors with short vectors and a dot product have it
        short = msgspec.structs.replace(host, lanes=8)
        found.append(pytest.param("Q4_1", short, id=f"Q4_1-{short.name}"))
    return found


cases = pytest.mark.parametrize(("type_name", "target"), _cases())


def inputs(rows: int, k: int = K, seed: int = 1) -> Floats:
    return (np.random.default_rng(seed).standard_normal((rows, k)) * 3).astype(np.float32)


@cases
def test_a_layer_gives_the_products_of_its_weights_and_rows(
    matrix: Matrix, run_layer: RunLayer, as_multiplied: AsMultiplied, type_name: str, target: Target
) -> None:
    x = inputs(ROWS_MAX)
    for n in OUTPUTS:
        packed = pack(type_name, matrix(type_name, n, K), K, target)
        weights, rows = unpack(packed).astype(np.float64), as_multiplied(packed, x)
        size = np.abs(rows) @ np.abs(weights).T
        for shape in SHAPES:
            out = run_layer(target=target, packed=packed, x=x, shape=shape)
            assert np.all(np.abs(out - rows @ weights.T) <= 5e-7 * size)


@cases
def test_the_bits_of_a_row_are_the_same_with_any_company_and_at_any_width(
    matrix: Matrix, run_layer: RunLayer, type_name: str, target: Target
) -> None:
    x, raw = inputs(ROWS_MAX), matrix(type_name, 77, K)
    packed = pack(type_name, raw, K, target)
    expected = run_layer(target=host_target(), packed=pack(type_name, raw, K, host_target()), x=x)
    for rows in range(1, ROWS_MAX + 1):
        for shape in SHAPES:
            out = run_layer(target=target, packed=packed, x=x[-rows:].copy(), shape=shape, rows_per_tile=1 + rows % 7)
            assert np.array_equal(out.view(np.uint32), expected[-rows:].view(np.uint32))


@settings(deadline=None, max_examples=40)
@given(
    n=st.integers(1, 150),
    rows=st.integers(1, 20),
    shape=st.sampled_from(SHAPES),
    rows_per_tile=st.integers(1, 24),
    tile_strips=st.integers(0, 9),
    ahead=st.integers(0, 40),
    backwards=st.booleans(),
)
def test_tiles_cover_every_output_exactly_once(
    matrix: Matrix, run_layer: RunLayer, n: int, rows: int, backwards: bool, **tile: Any
) -> None:
    target, x = host_target(), inputs(20, 32)[:rows].copy()
    packed = pack("Q4_1", matrix("Q4_1", 150, 32)[:n], 32, target)
    whole = run_layer(target=target, packed=packed, x=x, rows_per_tile=20)
    added = run_layer(target=target, packed=packed, x=x, accumulate=True, backwards=backwards, **tile)
    assert np.array_equal(added, whole + np.float32(7.25))


@pytest.mark.parametrize("type_name", ["Q4_1", "F16"])
def test_bias_comes_before_what_is_there(matrix: Matrix, run_layer: RunLayer, target: Target, type_name: str) -> None:
    x, n = inputs(5), 77
    packed = pack(type_name, matrix(type_name, n, K), K, target)
    plain = run_layer(target=target, packed=packed, x=x)
    bias = np.linspace(-2, 2, n, dtype=np.float32)
    assert np.array_equal(run_layer(target=target, packed=packed, x=x, bias=bias), plain + bias)
    both = run_layer(target=target, packed=packed, x=x, bias=bias, accumulate=True)
    assert np.array_equal(both, np.float32(7.25) + (plain + bias))


@pytest.mark.parametrize("type_name", ["Q8_0", "F16"])
def test_nothing_is_written_past_the_last_output(matrix: Matrix, run_layer: RunLayer, target: Target, type_name: str) -> None:
    packed = pack(type_name, matrix(type_name, 21, K), K, target)
    for shape in SHAPES:
        out = run_layer(target=target, packed=packed, x=inputs(9), stride=90, shape=shape)
        assert np.all(out[:, 21:] == np.float32(7.25))
        assert not np.any(out[:, :21] == np.float32(7.25))


@pytest.mark.parametrize("k", [1, 2, 3, 5, 31])
def test_float_weights_may_have_any_number_of_inputs(matrix: Matrix, run_layer: RunLayer, target: Target, k: int) -> None:
    packed = pack("F16", matrix("F16", 20, k), k, target)
    x = inputs(3, k)
    out = run_layer(target=target, packed=packed, x=x)
    assert np.allclose(out, x.astype(np.float64) @ unpack(packed).astype(np.float64).T, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("type_name", ["Q4_1", "Q6_K", "F32"])
def test_what_is_not_a_number_stays_with_its_row_and_its_output(matrix: Matrix, run_layer: RunLayer, type_name: str) -> None:
    target, raw = host_target(), matrix(type_name, 40, K).copy()
    at = {"Q4_1": 0, "Q6_K": 208, "F32": 2}[type_name]
    raw[7, at : at + 2] = np.array([0x7E00 if type_name != "F32" else 0x7FC0], np.uint16).view(np.uint8)
    x = inputs(6)
    x[3, 100] = np.inf
    out = run_layer(target=target, packed=pack(type_name, raw, K, target), x=x)
    lost = ~np.isfinite(out)
    assert np.all(lost[3]) and np.all(lost[:, 7])
    assert lost.sum() == 40 + 6 - 1


@pytest.mark.parametrize("x_per_pair", [False, True])
@pytest.mark.parametrize("type_name", ["Q4_1", "F16"])
def test_pairs_of_row_and_expert_have_the_bits_of_the_experts_own_layer(
    matrix: Matrix, run_layer: RunLayer, target: Target, type_name: str, x_per_pair: bool
) -> None:
    experts, n, used, rows = 5, 48, 3, 7
    raw = matrix(type_name, experts * n, K)
    packed = pack(type_name, raw, K, target)
    ids = np.array([np.random.default_rng(row).permutation(experts)[:used] for row in range(rows)], np.int32)
    x = inputs(rows * used if x_per_pair else rows)
    out = [
        run_layer(
            target=target, packed=packed, x=x, experts=ids, expert_outputs=n, x_per_pair=x_per_pair, rows_per_tile=rows_per_tile
        )
        for rows_per_tile in (1, 4, 64)
    ]
    own = [run_layer(target=target, packed=pack(type_name, raw[e * n : (e + 1) * n], K, target), x=x) for e in range(experts)]
    expected = [own[ids.flat[pair]][pair if x_per_pair else pair // used] for pair in range(rows * used)]
    for found in out:
        assert np.array_equal(found, np.array(expected))


@pytest.mark.skipif(not host_target().dot_product, reason="the processor has no dot product of 16-bit pairs")
def test_a_pair_of_inputs_costs_one_instruction_that_loads_them_too() -> None:
    import llvmlite.binding as llvm

    module = ir.Module()
    emit_linear(module, "kernel", FORMATS["Q4_1"], host_target(), 8, 1)
    machine = target_machine(host_target())
    parsed = llvm.parse_assembly(str(module))
    builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=2))
    builder.getModulePassManager().run(parsed, builder)
    lines = [line for line in machine.emit_assembly(parsed).splitlines() if "vpdpwssd" in line]
    assert lines and all("{1to16}" in line for line in lines)


@pytest.mark.parametrize("rows", [1, 2, 4, 8, 16, 64, 512])
@pytest.mark.parametrize("type_name", ["Q4_1", "Q6_K", "F32"])
def test_tiles_to_choose_from_are_ones_that_kernels_can_do(target: Target, type_name: str, rows: int) -> None:
    found = candidates(FORMATS[type_name], target, rows)
    assert found and len(set(found)) == len(found)
    for _, _, rows_per_tile in found:
        assert 1 <= rows_per_tile <= min(rows, ROWS_PER_TILE_MAX)


def test_a_tiles_word_holds_two_numbers() -> None:
    assert tile_word(3) == 3
    assert tile_word(3, 8) == 3 + (8 << 32)
