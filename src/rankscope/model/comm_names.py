"""The names that torch, NCCL and gloo give to one operation or one type, put into the model's terms."""

from __future__ import annotations

DTYPE_BYTES = {
    **dict.fromkeys(("Byte", "Char", "Bool", "Float8_e4m3fn", "Float8_e5m2", "QInt8", "QUInt8"), 1),
    **dict.fromkeys(("Short", "Half", "BFloat16", "UInt16"), 2),
    **dict.fromkeys(("Int", "Float", "UInt32", "QInt32", "ComplexHalf"), 4),
    **dict.fromkeys(("Long", "Double", "UInt64", "ComplexFloat"), 8),
    "ComplexDouble": 16,
}
# As C++ calls them: what profilers write for the inputs of an operator.
CPP_DTYPES = {
    "unsigned char": "Byte",
    "signed char": "Char",
    "bool": "Bool",
    "short": "Short",
    "int": "Int",
    "long": "Long",
    "long int": "Long",
    "float": "Float",
    "double": "Double",
    "c10::Half": "Half",
    "c10::BFloat16": "BFloat16",
    "c10::complex<float>": "ComplexFloat",
    "c10::complex<double>": "ComplexDouble",
    "c10::Float8_e4m3fn": "Float8_e4m3fn",
    "c10::Float8_e5m2": "Float8_e5m2",
}
SAME_OP = {
    "_all_gather_base": "all_gather",
    "_allgather_base": "all_gather",
    "all_gather_into_tensor": "all_gather",
    "all_gather_into_tensor_coalesced": "all_gather",
    "allgather_into_tensor_coalesced": "all_gather",
    "allgather_coalesced": "all_gather",
    "_reduce_scatter_base": "reduce_scatter",
    "reduce_scatter_tensor": "reduce_scatter",
    "reduce_scatter_tensor_coalesced": "reduce_scatter",
    "reducescatter": "reduce_scatter",
    "all_reduce_barrier": "barrier",
    "allreduce_barrier": "barrier",
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "alltoall": "all_to_all",
    "alltoallv": "all_to_all",
    "all_to_allv": "all_to_all",
    "alltoall_base": "all_to_all",
    "all_to_all_single": "all_to_all",
    "allreduce_coalesced": "all_reduce_coalesced",
    "recvAnySource": "recv",
    # torchcomms
    "all_gather_single": "all_gather",
    "all_gather_v": "all_gather",
    "reduce_scatter_single": "reduce_scatter",
    "reduce_scatter_v": "reduce_scatter",
    "all_to_all_v_single": "all_to_all",
    "gather_single": "gather",
    "sendrecv": "send_recv",
}
P2P_OPS = ("send", "recv", "send_recv")
