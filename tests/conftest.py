"""Settings of all tests."""

import torch

# The tests' models are so small that threads of one operation only wait for each other.
torch.set_num_threads(1)
