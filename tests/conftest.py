"""Settings of all tests."""

import torch

import cgpfl  # noqa: F401  before torch's first product: see cgpfl/__init__.py

# The tests' models are so small that threads of one operation only wait for each other.
torch.set_num_threads(1)
