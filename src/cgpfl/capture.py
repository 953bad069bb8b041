"""Local training on a GPU as one CUDA graph: captured in the first round, replayed in every later one.

A round's local loop is hundreds of small kernels; launching them one by one takes longer than they run. Their
sequence depends on shapes only, so it is recorded once, on buffers of its own, into which a round's models and
minibatch positions are copied. Nothing in the loop waits for the GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

Call = Callable[[Sequence[Tensor], Sequence[Tensor]], None]


class Captured:
    """``call(inputs, rows)``, which changes ``rows`` in place and only reads ``inputs``, as a graph.

    Shapes and types of all tensors, and whatever else the call reads, must stay what they were at the first use.
    """

    def __init__(self, call: Call, inputs: Sequence[Tensor], rows: Sequence[Tensor]):
        self._call = call  # keeps alive what the recorded kernels read
        self._inputs = [x.clone() for x in inputs]
        self._rows = [x.clone() for x in rows]
        warm = torch.cuda.Stream()
        warm.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(warm):  # libraries allocate their workspaces at first use, which a graph must not do
            call(self._inputs, self._rows)
        torch.cuda.current_stream().wait_stream(warm)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            call(self._inputs, self._rows)

    def __call__(self, inputs: Sequence[Tensor], rows: Sequence[Tensor]) -> None:
        for kept, new in zip((*self._inputs, *self._rows), (*inputs, *rows), strict=True):
            kept.copy_(new)
        self._graph.replay()
        for row, kept in zip(rows, self._rows, strict=True):
            row.copy_(kept)
