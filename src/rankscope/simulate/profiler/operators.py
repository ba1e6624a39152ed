"""What the simulated model computes: its operators, the kernels that they launch, and how long these take.

The times are those of a transformer layer with a hidden size of 2048 and 4096 tokens per microbatch on a fast GPU.
"""

from __future__ import annotations

from typing import NamedTuple

HIDDEN = 2048
TOKENS = 4096
N_SMS = 132
_MAX_WARPS_PER_SM = 64
_REGISTERS_PER_SM = 65536
_SHARED_PER_SM = 233472


class Kernel(NamedTuple):
    name: str
    cost_ns: int
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    registers: int
    shared: int = 0

    def scaled(self, factor: float) -> Kernel:
        """The kernel on inputs that are larger by the factor."""
        x, y, z = self.grid
        return self._replace(cost_ns=round(self.cost_ns * factor), grid=(max(1, round(x * factor)), y, z))

    @property
    def blocks_per_sm(self) -> float:
        return self.grid[0] * self.grid[1] * self.grid[2] / N_SMS

    @property
    def warps_per_block(self) -> int:
        return -(-self.block[0] * self.block[1] * self.block[2] // 32)

    @property
    def occupancy(self) -> int:
        """In percent, from the one resource that runs out first."""
        resident = min(
            _MAX_WARPS_PER_SM // self.warps_per_block,
            _REGISTERS_PER_SM // (self.registers * 32 * self.warps_per_block),
            _SHARED_PER_SM // self.shared if self.shared else _MAX_WARPS_PER_SM,
        )
        return round(100 * min(resident, self.blocks_per_sm) * self.warps_per_block / _MAX_WARPS_PER_SM)


class Operator(NamedTuple):
    """An operator of the forward pass and what autograd runs for it on the way back."""

    names: tuple[str, ...]
    """The operators that call each other, the innermost launches the kernel."""
    kernel: Kernel
    dims: tuple[tuple[int, ...], ...]
    """Shapes of the inputs; a first dimension of TOKENS follows the length of the sequences."""
    backward: str
    backward_kernels: tuple[tuple[str, Kernel], ...] = ()
    n_parameters: int = 0

    def scaled(self, tokens: int) -> Operator:
        factor = tokens / TOKENS
        return self._replace(
            kernel=self.kernel.scaled(factor),
            dims=tuple((tokens, *shape[1:]) if shape[0] == TOKENS else shape for shape in self.dims),
            backward_kernels=tuple((name, kernel.scaled(factor)) for name, kernel in self.backward_kernels),
        )


def _gemm(microseconds: int, width: int, flavour: str) -> Kernel:
    name = f"nvjet_tst_128x256_64x4_1x2_h_bz_coopA_{flavour}"
    return Kernel(name, microseconds * 1000, (TOKENS // 128, max(1, width // 256), 1), (384, 1, 1), 168, 213_000)


def _elementwise(functor: str, microseconds: int, width: int = HIDDEN) -> Kernel:
    name = f"void at::native::vectorized_elementwise_kernel<4, {functor}>(int, {functor})"
    return Kernel(name, microseconds * 1000, (TOKENS * width // 2048, 1, 1), (128, 1, 1), 32)


def _linear(n_in: int, n_out: int, microseconds: int) -> Operator:
    return Operator(
        ("aten::linear", "aten::addmm"),
        _gemm(microseconds, n_out, "TNT"),
        ((n_out,), (TOKENS, n_in), (n_in, n_out)),
        "AddmmBackward0",
        (
            ("aten::mm", _gemm(microseconds, n_in, "NNT")),
            ("aten::mm", _gemm(microseconds + 8, n_in, "NTT")),
        ),
        n_parameters=n_in * n_out + n_out,
    )


_LAYER_NORM = Operator(
    ("aten::layer_norm", "aten::native_layer_norm"),
    Kernel(
        "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<c10::BFloat16, float>"
        "(int, float, c10::BFloat16 const*, c10::BFloat16 const*, c10::BFloat16 const*, float*, float*)",
        *(18_000, (TOKENS, 1, 1), (32, 4, 1), 40, 24),
    ),
    ((TOKENS, HIDDEN), (HIDDEN,), (HIDDEN,)),
    "NativeLayerNormBackward0",
    (
        (
            "aten::native_layer_norm_backward",
            Kernel(
                "void at::native::(anonymous namespace)::layer_norm_grad_input_kernel_vectorized<c10::BFloat16, float>"
                "(c10::BFloat16 const*, c10::BFloat16 const*, float const*, float const*, c10::BFloat16*, int)",
                *(31_000, (TOKENS, 1, 1), (256, 1, 1), 48, 2_080),
            ),
        ),
    ),
)
_ATTENTION = Operator(
    ("aten::scaled_dot_product_attention", "aten::_flash_attention_forward"),
    Kernel(
        "void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<128, 128, 64, 4, false, false, "
        "cutlass::bfloat16_t>, false, true, false, false, false, true, false, false>(pytorch_flash::Flash_fwd_params)",
        *(152_000, (TOKENS // 128, 16, 1), (128, 1, 1), 255, 81_920),
    ),
    ((TOKENS, 16, 128), (TOKENS, 16, 128), (TOKENS, 16, 128)),
    "ScaledDotProductFlashAttentionBackward0",
    (
        (
            "aten::_flash_attention_backward",
            Kernel(
                "void pytorch_flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<pytorch_flash::"
                "Flash_bwd_kernel_traits<128, 64, 128, 8, 2, 4, 2, false, false, cutlass::bfloat16_t>, false, true>"
                "(pytorch_flash::Flash_bwd_params)",
                *(384_000, (TOKENS // 128, 16, 1), (256, 1, 1), 255, 147_456),
            ),
        ),
    ),
)
_GELU = Operator(
    ("aten::gelu",),
    _elementwise("at::native::GeluCUDAKernelImpl", 61, 4 * HIDDEN),
    ((TOKENS, 4 * HIDDEN),),
    "GeluBackward0",
    (("aten::gelu_backward", _elementwise("at::native::GeluBackwardCUDAKernelImpl", 78, 4 * HIDDEN)),),
)
_RESIDUAL = Operator(
    ("aten::add",),
    _elementwise("at::native::CUDAFunctor_add<c10::BFloat16>", 34),
    ((TOKENS, HIDDEN), (TOKENS, HIDDEN)),
    "AddBackward0",
)

LAYER: tuple[Operator, ...] = (
    _LAYER_NORM,
    _linear(HIDDEN, 3 * HIDDEN, 258),
    _ATTENTION,
    _linear(HIDDEN, HIDDEN, 92),
    _LAYER_NORM,
    _linear(HIDDEN, 4 * HIDDEN, 344),
    _GELU,
    _linear(4 * HIDDEN, HIDDEN, 348),
    _RESIDUAL,
)
_SMALL_HEAD: tuple[Operator, ...] = (
    _linear(HIDDEN, 512, 40),
    Operator(
        ("aten::cross_entropy_loss", "aten::log_softmax", "aten::_log_softmax"),
        Kernel(
            "void (anonymous namespace)::softmax_warp_forward<c10::BFloat16, float, float, 9, true, false>"
            "(float*, c10::BFloat16 const*, int, int, int, bool const*, int, bool)",
            *(14_000, (TOKENS // 4, 1, 1), (32, 4, 1), 34),
        ),
        ((TOKENS, 512),),
        "LogSoftmaxBackward0",
        (
            (
                "aten::_log_softmax_backward_data",
                Kernel(
                    "void (anonymous namespace)::softmax_warp_backward<float, c10::BFloat16, float, 9, true, false>"
                    "(c10::BFloat16*, float const*, float const*, int, int, int, bool const*)",
                    *(17_000, (TOKENS // 4, 1, 1), (32, 4, 1), 36),
                ),
            ),
        ),
    ),
)

ACCUMULATE = _elementwise("at::native::CUDAFunctorOnSelf_add<c10::BFloat16>", 22, 2 * HIDDEN)
ADAMW = Kernel(
    "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous namespace)::"
    "FusedOptimizerTensorListMetadata<4>, at::native::(anonymous namespace)::FusedAdamMathFunctor<float, 4>>"
    "(at::native::(anonymous namespace)::FusedOptimizerTensorListMetadata<4>)",
    *(118_000, (320, 1, 1), (512, 1, 1), 40),
)
ALL_REDUCE = Kernel(
    "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    *(0, (24, 1, 1), (544, 1, 1), 96, 82_240),
)
SEND_RECEIVE = Kernel(
    "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", *(0, (8, 1, 1), (544, 1, 1), 96, 82_240)
)

PARAMETERS_PER_LAYER = sum(operator.n_parameters for operator in LAYER)


def _compute_ns(operators: tuple[Operator, ...]) -> int:
    return sum(
        operator.kernel.cost_ns + sum(kernel.cost_ns for _, kernel in operator.backward_kernels)
        for operator in operators
    )


def make_head(n_layers: int, stage_factor: float) -> tuple[Operator, ...]:
    """The output layer and the loss, with a vocabulary that makes the whole stage larger by the factor."""
    extra_ns = (stage_factor - 1) * n_layers * _compute_ns(LAYER)
    factor = 1 + extra_ns / _compute_ns(_SMALL_HEAD)
    vocabulary = round(512 * factor)
    return tuple(
        operator._replace(
            kernel=operator.kernel.scaled(factor),
            dims=tuple(tuple(vocabulary if size == 512 else size for size in shape) for shape in operator.dims),
            backward_kernels=tuple((name, kernel.scaled(factor)) for name, kernel in operator.backward_kernels),
        )
        for operator in _SMALL_HEAD
    )
