"""The programs fail on purpose: only the tests here run them."""

collect_ignore_glob = ["programs/*"]
