"""What a process that compiles for the first time makes for itself. Imported before the ranks are forked, made once."""

from __future__ import annotations

import torch
import torch._dynamo.backends.inductor
import torch._dynamo.backends.registry
import torch._dynamo.repro.after_dynamo
import torch._inductor.codegen.cpp
import torch._inductor.codegen.halide
import torch._inductor.compile_fx
import torch.utils.cpp_extension
from torch._inductor.fx_passes import joint_graph, post_grad, pre_grad
