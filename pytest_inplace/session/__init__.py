"""The pytest side: options, one test's check and second run, the fixture, outcomes and the summary."""
