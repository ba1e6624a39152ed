"""Signatures of the operators that simulated jobs call; an exclamation mark is where one writes to its input."""

from __future__ import annotations

_GROUP = "__torch__.torch.classes.c10d.ProcessGroup process_group"
_WORK = "__torch__.torch.classes.c10d.Work"

OP_SCHEMAS: dict[str, str] = {
    schema.partition("(")[0].partition(".")[0]: schema
    for schema in (
        "aten::to.dtype_layout(Tensor(a) self, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, "
        "bool? pin_memory=None, bool non_blocking=False, bool copy=False, MemoryFormat? memory_format=None) -> "
        "Tensor(a)",
        "aten::copy_(Tensor(a!) self, Tensor src, bool non_blocking=False) -> Tensor(a!)",
        "aten::zero_(Tensor(a!) self) -> Tensor(a!)",
        "aten::layer_norm(Tensor input, SymInt[] normalized_shape, Tensor? weight=None, Tensor? bias=None, "
        "float eps=1.0000000000000001e-05, bool cudnn_enable=True) -> Tensor",
        "aten::native_layer_norm(Tensor input, SymInt[] normalized_shape, Tensor? weight, Tensor? bias, float eps) -> "
        "(Tensor, Tensor, Tensor)",
        "aten::linear(Tensor input, Tensor weight, Tensor? bias=None) -> Tensor",
        "aten::addmm(Tensor self, Tensor mat1, Tensor mat2, *, Scalar beta=1, Scalar alpha=1) -> Tensor",
        "aten::scaled_dot_product_attention(Tensor query, Tensor key, Tensor value, Tensor? attn_mask=None, "
        "float dropout_p=0., bool is_causal=False, *, float? scale=None, bool enable_gqa=False) -> Tensor",
        'aten::gelu(Tensor self, *, str approximate="none") -> Tensor',
        "aten::add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor",
        "aten::cross_entropy_loss(Tensor self, Tensor target, Tensor? weight=None, int reduction=1, "
        "SymInt ignore_index=-100, float label_smoothing=0.) -> Tensor",
        "aten::log_softmax.int(Tensor self, int dim, ScalarType? dtype=None) -> Tensor",
        "aten::_log_softmax(Tensor self, int dim, bool half_to_float) -> Tensor",
        "aten::mm(Tensor self, Tensor mat2) -> Tensor",
        'aten::gelu_backward(Tensor grad_output, Tensor self, *, str approximate="none") -> Tensor',
        "aten::_log_softmax_backward_data(Tensor grad_output, Tensor output, int dim, ScalarType input_dtype) -> "
        "Tensor",
        "aten::add_.Tensor(Tensor(a!) self, Tensor other, *, Scalar alpha=1) -> Tensor(a!)",
        "aten::detach(Tensor(a) self) -> Tensor(a)",
        "aten::item(Tensor self) -> Scalar",
        "aten::_local_scalar_dense(Tensor self) -> Scalar",
        "aten::_fused_adamw_(Tensor(a!)[] self, Tensor(b!)[] grads, Tensor(c!)[] exp_avgs, Tensor(d!)[] exp_avg_sqs, "
        "Tensor(e!)[] max_exp_avg_sqs, Tensor[] state_steps, *, float lr, float beta1, float beta2, "
        "float weight_decay, float eps, bool amsgrad, bool maximize, Tensor? grad_scale=None, "
        "Tensor? found_inf=None) -> ()",
        f"c10d::allreduce_(Tensor[] tensors, {_GROUP}, __torch__.torch.classes.c10d.ReduceOp reduce_op, "
        f"Tensor? sparse_indices, bool async_op=True, int timeout=-1) -> (Tensor[], {_WORK})",
        f"c10d::send(Tensor[] tensors, {_GROUP}, int dst, int tag) -> {_WORK}",
        f"c10d::recv_(Tensor[] tensors, {_GROUP}, int src, int tag) -> {_WORK}",
    )
}
