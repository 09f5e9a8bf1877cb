"""The programs are no tests, and one of them takes a compiler."""

import pytest

collect_ignore_glob = ["programs/*"]


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "slow: takes more than a second, because it compiles something")
