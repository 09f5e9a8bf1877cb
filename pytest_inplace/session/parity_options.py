"""The device to compare with: from the command line, the ini file or a marker."""

from __future__ import annotations

import re

import pytest

KEY = "inplace_parity"
_DEVICE = re.compile(r"[a-z][a-z0-9_]*(:[0-9]+)?")


def add(parser: pytest.Parser, group: pytest.OptionGroup) -> None:
    """Declare the option and its ini key."""
    group.addoption(
        "--inplace-parity",
        metavar="DEVICE",
        default=None,
        help="check every test, run each again on DEVICE (cuda, mps, ...) and compare gradients, losses and "
        "findings; cpu: two runs have to agree bit for bit (ini: inplace_parity)",
    )
    parser.addini(KEY, "a device to compare with (see --inplace-parity)", default=None)


def resolve(config: pytest.Config, ini_source: str) -> str | None:
    """The device for the whole run.

    Raises:
        pytest.UsageError: for what cannot be the name of a device.
    """
    option, ini = config.getoption(KEY), config.getini(KEY)
    device = option if option is not None else ini or "never"
    if device == "never":
        return None
    if not is_device(device):
        source = "--inplace-parity" if option is not None else ini_source
        raise pytest.UsageError(f"{source}: {device!r} is no device, such as cuda or cuda:1")
    return str(device)


def is_device(name: str) -> bool:
    """Whether this may be the name of a device; "never" looks like one, and switches the comparison off."""
    return _DEVICE.fullmatch(name) is not None
