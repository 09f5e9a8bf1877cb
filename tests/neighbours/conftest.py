"""The fixtures of the integration tests, here with the real neighbours."""

import concurrent.futures.process  # noqa: F401 - pytester forgets what an inner run imports first
import multiprocessing.pool  # noqa: F401

import torch._dynamo
import torch.distributed.fsdp  # noqa: F401

from tests.integration.conftest import (  # noqa: F401
    check,
    nothing_left_behind,
    plain,
    plain_surroundings,
)
