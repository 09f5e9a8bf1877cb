"""What all tests share."""

# In-process runs of pytest put sys.modules back afterwards, and torch cannot be imported a second time:
# it must be there before the first of them.
import torch
import torch._dynamo

torch.set_num_threads(1)
