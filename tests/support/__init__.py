"""Helpers of the tests: oracles, formats, a browser, programs that are killed. Not collected."""
