"""Makes, when it is imported, what every process makes for itself when it compiles for the first time.

A process that forks ranks imports it, so that they find it made. Nothing is compiled here: a rank that inherited the
state of a compilation would write another log than a job of its own.
"""

from __future__ import annotations

import torch
import torch._dynamo
import torch._inductor.codegen.cpp
import torch._inductor.compile_fx
import torch.utils.cpp_extension
from torch._inductor.codegen.common import init_backend_registration
from torch._inductor.fx_passes import joint_graph, post_grad, pre_grad

torch._dynamo.list_backends()  # imports them
init_backend_registration()
pre_grad.lazy_init()
joint_graph.lazy_init(torch.device("cpu"))
post_grad.lazy_init()
