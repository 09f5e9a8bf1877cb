"""A pytest plugin (``-p tests.standin.plugin``): the stand-in device is there, with a fault or none."""

from __future__ import annotations

import os

from tests.standin import device, faults

device.load()
if os.environ.get("STANDIN_FAULT"):
    faults.inject(os.environ["STANDIN_FAULT"])
